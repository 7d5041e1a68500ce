"""``martlet transactions`` against a real broker."""

from __future__ import annotations

import json

import pytest
from tests import brokers
from tests.interop.cli.tools import Tool, topics

from martlet.client.sync import Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process()


def test_transactions_are_listed_shown_committed_and_rolled_back(
    broker: BrokerProcess, at_broker: Tool
) -> None:
    assert "no transaction is open or set aside" in at_broker("transactions", "list").err
    with Producer(broker.tcp_address, group="billing") as producer:
        for id in ("paid-1", "paid-2"):
            transaction = producer.transaction(id, check_after_s=600)
            transaction.publish("orders", b"one \x1b[2J", tag="red", keys=["k"])
            transaction.publish("mails", b"\xff")
    head, *listed = at_broker("transactions", "list", "--state=open").out.splitlines()
    assert head.split() == ["ID", "STATE", "GROUP", "AGE", "CHECKS", "MESSAGES", "TOPICS"]
    assert [row.split()[:3] for row in listed] == [
        ["paid-1", "open", "billing"],
        ["paid-2", "open", "billing"],
    ]
    assert listed[0].endswith("mails 1, orders 1")
    assert at_broker("transactions", "list", "--group=other", "--json").out == ""
    shown = at_broker("transactions", "show", "paid-1").out
    assert r"orders (tag red; keys k): 8 bytes: one \x1b[2J" in shown
    assert r"mails: 1 byte: \xff" in shown
    done = at_broker("transactions", "commit", "paid-1")
    assert (done.code, "paid-1 is committed" in done.out) == (0, True)
    done = at_broker("transactions", "rollback", "paid-2")
    assert (done.code, "paid-2 is rolled back" in done.out) == (0, True)
    assert {name: topic["depth"] for name, topic in topics(broker).items()} == {
        "orders": 1,
        "mails": 1,
    }
    ended = json.loads(at_broker("transactions", "show", "paid-1", "--json").out)
    assert (ended["id"], ended["state"]) == ("paid-1", "committed")
    assert "ended at" in at_broker("transactions", "show", "paid-2").out


def test_a_committed_transaction_is_not_rolled_back(broker: BrokerProcess, at_broker: Tool) -> None:
    with Producer(broker.tcp_address) as producer, producer.transaction("done") as transaction:
        transaction.publish("orders", b"one")
    done = at_broker("transactions", "rollback", "done")
    done.fails("is committed, and cannot be rolled back")
