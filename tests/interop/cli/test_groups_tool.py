"""``martlet groups`` against real brokers."""

from __future__ import annotations

import json

import pytest
from tests import brokers
from tests.interop.asking import ask
from tests.interop.cli.nsq_tools.test_tools_look import Tool, tool
from tests.interop.cli.test_dead_letters_tool import call

from martlet.testing import BrokerProcess

__all__ = ["tool"]
pytestmark = pytest.mark.interop


broker = brokers.process("--journal-interval=10ms")


def test_groups_are_listed_described_and_reset(broker: BrokerProcess, tool: Tool) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    assert "there are no groups" in tool("groups", "list", where).err
    ask(broker.http_address, "/topic/create?topic=orders&queues=3", "POST")
    place = {"topic": "orders", "group": "report"}
    for name in ("a", "b\x1b[2J"):
        call(broker, "group.join", **place, client_id=name, room="here")
    for _ in range(5):
        ask(broker.http_address, "/pub?topic=orders&queue=0", "POST", b"x")
    head, row = tool("groups", "list", where).out.splitlines()
    assert head.split() == ["TOPIC", "GROUP", "MEMBERS", "QUEUES", "LAG", "BROKER"]
    assert row.split()[:5] == ["orders", "report", "2", "3", "5"]
    answer = json.loads(tool("groups", "describe", "orders", "report", where, "--json").out)
    offset = sum(queue["end_offset"] for queue in answer["queues"])
    assert (offset, answer["lag"]) == (5, 5)
    shown = tool("groups", "describe", "orders", "report", where).out.splitlines()
    assert "lag 5, 2 members, sticky" in shown[0]
    assert shown[2].split() == ["QUEUE", "MEMBER", "COMMITTED", "END", "LAG", "DEFERRED"]
    assert any(line.split()[:3] == ["2", "a", "(releasing)"] for line in shown)
    assert r"b\x1b[2J" in shown[-1]
    refused = tool("groups", "reset", "orders", "report", where, "--to-last")
    assert refused.code == 1
    assert "the group has 2 members" in refused.err
    tried = tool("groups", "reset", "orders", "report", where, "--to-last", "--dry-run").out
    assert tried.startswith(f"would be reset at http://{broker.http_address}")
    assert tried.splitlines()[2].split() == ["QUEUE", "IS", "AT", "WOULD", "BE", "AT", "LAG"]
    answer = json.loads(tool("groups", "describe", "orders", "report", where, "--json").out)
    assert (answer["lag"], len(answer["members"])) == (5, 2)
    done = tool("groups", "reset", "orders", "report", where, "--to-last", "--force").out
    assert "WAS AT  IS AT  LAG" in done
    answer = json.loads(tool("groups", "describe", "orders", "report", where, "--json").out)
    assert (answer["lag"], answer["members"]) == (0, [])
    tool("groups", "reset", "orders", "report", where, "--to-time=1h")
    answer = json.loads(tool("groups", "list", "orders", where, "--json").out)
    assert [group["lag"] for group in answer["groups"]] == [5]


def test_a_reader_that_keeps_its_own_place_is_shown(broker: BrokerProcess, tool: Tool) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    ask(broker.http_address, "/mpub?topic=read", "POST", b"1\n2\n3")
    call(broker, "group.follow", topic="read", group="spark", retain=True, offsets={"0": 1})
    _, row = tool("groups", "list", "read", where).out.splitlines()
    assert row.split()[:7] == ["read", "spark", "(follower,", "retains)", "0", "1", "2"]
    shown = tool("groups", "describe", "read", "spark", where).out
    assert "lag 2, follower, retains\n" in shown
    refused = tool("groups", "reset", "read", "spark", where, "--to-last")
    assert (refused.code, "keeps its own position" in refused.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name an action: list, describe or reset"),
        (["explode"], "there is no action 'explode'; name list, describe or reset"),
        (["describe", "orders"], "the argument --group is missing"),
        (["describe", "orders", "a b"], "a b"),
        (["reset", "orders", "g"], "say where to, with one of --to-first"),
        (["reset", "orders", "g", "--to-last", "--to-first"], "say where to, with one of"),
        (["reset", "orders", "g", "--to-time=soon"], "--to-time=soon is no time"),
        (["reset", "orders", "g", "--to-last", "--queue=-1"], "--queue is -1; it must be between"),
        (["reset", "orders", "g", "--to-offset=1", "--address=h:1"], "needs one --address"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason(
    broker: BrokerProcess, tool: Tool, arguments: list[str], why: str
) -> None:
    done = tool("groups", *arguments, f"--nsqd-http-address={broker.http_address}")
    assert done.code == 2
    assert why in done.err


def test_missing_topics_and_groups_are_named(broker: BrokerProcess, tool: Tool) -> None:
    where = f"--nsqd-http-address={broker.http_address}"
    done = tool("groups", "describe", "nowhere", "g", where)
    assert (done.code, "there is no topic 'nowhere'" in done.err) == (1, True)
    ask(broker.http_address, "/topic/create?topic=plain", "POST")
    ask(broker.http_address, "/channel/create?topic=plain&channel=c", "POST")
    done = tool("groups", "describe", "plain", "c", where)
    assert (done.code, "is a channel that consumers share" in done.err) == (1, True)
