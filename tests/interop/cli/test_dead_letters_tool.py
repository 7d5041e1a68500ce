"""``martlet dead-letters`` against real brokers."""

from __future__ import annotations

import json

import pytest
from tests import brokers
from tests.interop.asking import ask, until
from tests.interop.cli.tools import Tool, channels, create

from martlet.client.sync import Consumer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process("--journal-interval=10ms")


def call(broker: BrokerProcess, method: str, **fields: object) -> object:
    return ask(broker.http_address, f"/call/{method}", "POST", json.dumps(fields).encode())


def dead(broker: BrokerProcess, topic: str, *bodies: str) -> None:
    """Have messages of a topic's channel c become dead letters."""
    create(broker, topic)
    call(broker, "channel.configure", topic=topic, channel="c", policy={"max_attempts": 1})
    ask(broker.http_address, f"/mpub?topic={topic}", "POST", "\n".join(bodies).encode())
    with Consumer(topic, "c", broker.tcp_address) as consumer:
        for _ in bodies:
            next(consumer).requeue(backoff=False)
    until(lambda: depth(broker, f"{topic}.c.dead", "dead-letters") == len(bodies))


def depth(broker: BrokerProcess, topic: str, channel: str) -> int:
    return int(channels(broker, topic).get(channel, {"depth": 0})["depth"])


def test_dead_letters_are_listed_shown_redriven_and_purged(
    broker: BrokerProcess, at_broker: Tool
) -> None:
    assert "there are no dead letters" in at_broker("dead-letters", "list").err
    dead(broker, "orders", "one", "\x1b[2J", "three")
    head, row = at_broker("dead-letters", "list").out.splitlines()
    assert head.split()[:4] == ["TOPIC", "CHANNEL", "COUNT", "OLDEST"]
    assert row.split()[:3] == ["orders", "c", "3"]
    assert "max_attempts 3" in row
    assert row.endswith("orders.c.dead")
    shown = at_broker("dead-letters", "show", "orders", "c", "--limit=2").out
    assert "max_attempts after 1 failure, 1 attempt," in shown
    assert "body, 3 bytes: one" in shown
    assert r"body, 4 bytes: \x1b[2J" in shown
    assert "three" not in shown
    letters = [
        json.loads(line)
        for line in at_broker("dead-letters", "show", "orders", "c", "--json").out.splitlines()
    ]
    assert [letter["body"] for letter in letters] == ["one", "\x1b[2J", "three"]
    dry = at_broker("dead-letters", "redrive", "orders", "c", "--all", "--dry-run")
    assert (dry.code, "3 dead letters would be redriven" in dry.out) == (0, True)
    done = at_broker("dead-letters", "redrive", "orders", "c", f"--id={letters[1]['id']}")
    assert "1 dead letter redriven" in done.out
    assert depth(broker, "orders", "c") == 1
    done = at_broker("dead-letters", "redrive", "orders", "c", "--since=1h", "--to-topic=later")
    assert "2 dead letters redriven" in done.out
    ask(broker.http_address, "/channel/empty?topic=orders&channel=c", "POST")
    dead(broker, "orders", "four")
    done = at_broker("dead-letters", "purge", "orders", "c", "--reason=timeout")
    assert "0 dead letters purged" in done.out
    done = at_broker("dead-letters", "purge", "orders", "c", "--all")
    assert "1 dead letter purged" in done.out
    assert depth(broker, "orders.c.dead", "dead-letters") == 0
    none = at_broker("dead-letters", "show", "orders", "c").err
    assert "channel c of topic orders has no dead letters\n" in none
    none = at_broker("dead-letters", "show", "orders", "c", "--reason=timeout").err
    assert "channel c of topic orders has no such dead letters\n" in none


def test_an_unknown_id_is_reported(broker: BrokerProcess, tool: Tool) -> None:
    dead(broker, "sales", "one", "two")
    with BrokerProcess(None) as other:
        dead(other, "sales", "three")
        brokers = broker, other
        where = [f"--nsqd-http-address={broker.http_address}" for broker in brokers]
        shown = tool("dead-letters", "show", "sales", "c", "--json", *where).out.splitlines()
        letters = [json.loads(line) for line in shown]
        for action in ("redrive", "purge"):
            said = tool("dead-letters", action, "sales", "c", "--id=0123456789abcdef", *where)
            said.fails("no selected dead letter has the id 0123456789abcdef")
        # By either id, at whichever broker, and not without the one that is missing.
        stored_ids = [letters[0]["id"], letters[2]["message_id"]]
        ids = [f"--id={one}" for one in (*stored_ids, "0123456789abcdef")]
        said = tool("dead-letters", "purge", "sales", "c", *ids, *where)
        assert (said.code, said.err.count("no selected dead letter")) == (1, 1)
        said = tool("dead-letters", "purge", "sales", "c", *ids[:1], *where)
        assert (said.code, stored_ids[0] in said.err) == (1, True)  # purged already
        said = tool("dead-letters", "purge", "sales", "c", f"--id={letters[1]['id']}", *where)
        assert (said.code, "no selected dead letter" in said.err) == (0, False)
        assert [depth(broker, "sales.c.dead", "dead-letters") for broker in brokers] == [0, 0]


def test_dead_letters_that_cannot_go_back_stay_and_are_reported(
    broker: BrokerProcess, at_broker: Tool
) -> None:
    dead(broker, "gone", "one")
    ask(broker.http_address, "/channel/delete?topic=gone&channel=c", "POST")
    at_broker("dead-letters", "redrive", "gone", "c", "--all").fails(
        "1 stay where they are: there is no channel 'c' of topic 'gone'"
    )


def test_a_broker_without_any_is_passed_over(broker: BrokerProcess, tool: Tool) -> None:
    dead(broker, "here", "one")
    with BrokerProcess(None) as other:
        where = [f"--nsqd-http-address={server.http_address}" for server in (other, broker)]
        said = tool("dead-letters", "show", "here", "c", "--json", *where)
    assert (said.code, len(said.out.splitlines())) == (0, 1)
