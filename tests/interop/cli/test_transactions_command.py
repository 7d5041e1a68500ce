"""``martlet transactions`` against a real broker."""

from __future__ import annotations

import json

import pytest
from tests import brokers
from tests.interop.asking import ask
from tests.interop.cli.nsq_tools.test_tools_look import Tool, tool

from martlet.client.sync import Producer
from martlet.testing import BrokerProcess

__all__ = ["tool"]
pytestmark = pytest.mark.interop


broker = brokers.process()


def test_transactions_are_listed_shown_committed_and_rolled_back(
    broker: BrokerProcess, tool: Tool
) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    assert "no transaction is open or set aside" in tool("transactions", "list", where).err
    with Producer(broker.tcp_address, group="billing") as producer:
        for id in ("paid-1", "paid-2"):
            transaction = producer.transaction(id, check_after_s=600)
            transaction.publish("orders", b"one \x1b[2J", tag="red", keys=["k"])
            transaction.publish("mails", b"\xff")
    head, *listed = tool("transactions", "list", where, "--state=open").out.splitlines()
    assert head.split() == ["ID", "STATE", "GROUP", "AGE", "CHECKS", "MESSAGES", "TOPICS"]
    assert [row.split()[:3] for row in listed] == [
        ["paid-1", "open", "billing"],
        ["paid-2", "open", "billing"],
    ]
    assert listed[0].endswith("mails 1, orders 1")
    assert tool("transactions", "list", where, "--group=other", "--json").out == ""
    shown = tool("transactions", "show", "paid-1", where).out
    assert r"orders (tag red; keys k): 8 bytes: one \x1b[2J" in shown
    assert r"mails: 1 byte: \xff" in shown
    done = tool("transactions", "commit", "paid-1", where)
    assert (done.code, "paid-1 is committed" in done.out) == (0, True)
    done = tool("transactions", "rollback", "paid-2", where)
    assert (done.code, "paid-2 is rolled back" in done.out) == (0, True)
    depths = {
        topic["topic_name"]: topic["depth"]
        for topic in ask(broker.http_address, "/stats?format=json")["topics"]
    }
    assert depths == {"orders": 1, "mails": 1}
    ended = json.loads(tool("transactions", "show", "paid-1", where, "--json").out)
    assert (ended["id"], ended["state"]) == ("paid-1", "committed")
    assert "ended at" in tool("transactions", "show", "paid-2", where).out


def test_impossible_commands_are_reported(broker: BrokerProcess, tool: Tool) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    done = tool("transactions", "commit", "nobody", where)
    assert (done.code, "there is no transaction 'nobody'" in done.err) == (1, True)
    with Producer(broker.tcp_address) as producer, producer.transaction("done") as transaction:
        transaction.publish("orders", b"one")
    done = tool("transactions", "rollback", "done", where)
    assert (done.code, "is committed, and cannot be rolled back" in done.err) == (1, True)
    for arguments, said in (
        (("undo",), "there is no action 'undo'; name list, show, commit or rollback"),
        (("commit",), "the transaction is missing"),
        (("commit", "t" * 256), "--id must be a text of at most 255 characters"),
        (("list", "--state=gone"), "--state=gone: it is one of open, silent, prepared"),
        (("list", "x"), "'list' takes no --id"),
    ):
        wrong = tool("transactions", *arguments, where)
        assert (wrong.code, said in wrong.err) == (2, True), arguments
