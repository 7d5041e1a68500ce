"""``martlet groups`` against real brokers."""

from __future__ import annotations

import json

import pytest
from tests import brokers
from tests.interop.asking import ask
from tests.interop.cli.test_dead_letters_tool import call
from tests.interop.cli.tools import Tool

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process("--journal-interval=10ms")


def test_groups_are_listed_described_and_reset(broker: BrokerProcess, at_broker: Tool) -> None:
    assert "there are no groups" in at_broker("groups", "list").err
    ask(broker.http_address, "/topic/create?topic=orders&queues=3", "POST")
    place = {"topic": "orders", "group": "report"}
    for name in ("a", "b\x1b[2J"):
        call(broker, "group.join", **place, client_id=name, room="here")
    for _ in range(5):
        ask(broker.http_address, "/pub?topic=orders&queue=0", "POST", b"x")
    head, row = at_broker("groups", "list").out.splitlines()
    assert head.split() == ["TOPIC", "GROUP", "MEMBERS", "QUEUES", "LAG", "BROKER"]
    assert row.split()[:5] == ["orders", "report", "2", "3", "5"]
    answer = json.loads(at_broker("groups", "describe", "orders", "report", "--json").out)
    offset = sum(queue["end_offset"] for queue in answer["queues"])
    assert (offset, answer["lag"]) == (5, 5)
    shown = at_broker("groups", "describe", "orders", "report").out.splitlines()
    assert "lag 5, 2 members, sticky" in shown[0]
    assert shown[2].split() == ["QUEUE", "MEMBER", "COMMITTED", "END", "LAG", "DEFERRED"]
    assert any(line.split()[:3] == ["2", "a", "(releasing)"] for line in shown)
    assert r"b\x1b[2J" in shown[-1]
    at_broker("groups", "reset", "orders", "report", "--to-last").fails("the group has 2 members")
    tried = at_broker("groups", "reset", "orders", "report", "--to-last", "--dry-run").out
    assert tried.startswith(f"would be reset at http://{broker.http_address}")
    assert tried.splitlines()[2].split() == ["QUEUE", "IS", "AT", "WOULD", "BE", "AT", "LAG"]
    answer = json.loads(at_broker("groups", "describe", "orders", "report", "--json").out)
    assert (answer["lag"], len(answer["members"])) == (5, 2)
    done = at_broker("groups", "reset", "orders", "report", "--to-last", "--force").out
    assert "WAS AT  IS AT  LAG" in done
    answer = json.loads(at_broker("groups", "describe", "orders", "report", "--json").out)
    assert (answer["lag"], answer["members"]) == (0, [])
    at_broker("groups", "reset", "orders", "report", "--to-time=1h")
    answer = json.loads(at_broker("groups", "list", "orders", "--json").out)
    assert [group["lag"] for group in answer["groups"]] == [5]


def test_a_reader_that_keeps_its_own_place_is_shown(broker: BrokerProcess, at_broker: Tool) -> None:
    ask(broker.http_address, "/mpub?topic=read", "POST", b"1\n2\n3")
    call(broker, "group.follow", topic="read", group="spark", retain=True, offsets={"0": 1})
    _, row = at_broker("groups", "list", "read").out.splitlines()
    assert row.split()[:7] == ["read", "spark", "(follower,", "retains)", "0", "1", "2"]
    shown = at_broker("groups", "describe", "read", "spark").out
    assert "lag 2, follower, retains\n" in shown
    at_broker("groups", "reset", "read", "spark", "--to-last").fails("keeps its own position")
