"""Messages that fail, with clients of NSQ and with Martlet's own: retries and dead letters."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import channels_of, http
from tests.interop.agent import Agent
from tests.interop.connections import connected

from martlet.broker.dead_letters.dead_letter import CHANNEL
from martlet.broker.queue.channel_state import MovingMessages
from martlet.cli import log
from martlet.cli.operations.dead_letters import letter_lines
from martlet.client import CallRefused, Consumer, Producer, Properties
from martlet.client.admin import Admin
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.message_run import MessageRun
from martlet.server.rpc import dead_letters as dead_letter_calls
from martlet.testing import Broker

AMPLE_S = 60
ROOT = Path(__file__).parents[3]


async def call(broker: Broker, method: str, **fields: Any) -> tuple[int, Any]:
    url = f"http://{broker.http_address}/call/{method}"
    async with aiohttp.ClientSession() as session, session.post(url, json=fields) as answer:
        return answer.status, json.loads(await answer.read())


async def publish(broker: Broker, *bodies: bytes, topic: str = "t") -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many(topic, list(bodies))


async def configured(broker: Broker, **policy: Any) -> None:
    broker.server.broker.topic("t").channel("c")
    status, answer = await call(broker, "channel.configure", topic="t", channel="c", policy=policy)
    assert status == 200, answer


async def dead_letter(broker: Broker, topic: str = "t.c.dead") -> tuple[bytes, Properties]:
    async with asyncio.timeout(AMPLE_S), Consumer(topic, CHANNEL, broker.tcp_address) as consumer:
        message = await anext(consumer)
        message.finish()
        return message.body, message.properties


class Subscriber:
    """A consumer at the level of the wire, that speaks the extensions."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.runs: asyncio.Queue[MessageRun] = asyncio.Queue()
        connection.on_run = self.runs.put_nowait

    async def message(self) -> tuple[str, int]:
        async with asyncio.timeout(AMPLE_S):
            run = await self.runs.get()
        ((_, attempts, id, _),) = run.fields()
        return id.decode(), attempts


@asynccontextmanager
async def subscribed(broker: Broker) -> AsyncIterator[Subscriber]:
    async with connected(broker) as connection:
        subscriber = Subscriber(connection)
        await connection.ask(commands.subscribe("t", "c"))
        connection.write(commands.ready(1))
        yield subscriber


@pytest.fixture
async def subscriber(broker: Broker) -> AsyncIterator[Subscriber]:
    async with subscribed(broker) as subscriber:
        yield subscriber


async def test_an_error_that_is_no_text_holds_up_no_dead_letter(
    broker: Broker, subscriber: Subscriber
) -> None:
    """As in Python's error of a file whose name is not UTF-8."""
    await configured(broker, max_attempts=1)
    await publish(broker, b"bad")
    id, _ = await subscriber.message()
    await subscriber.connection.call("message.later", id=id, error="no file \udcff")
    body, properties = await dead_letter(broker)
    assert body == b"bad"
    assert properties.system["dead_last_error"] == "no file ?"
    status, answer = await call(broker, "trace.find", key="\udcff")
    assert (status, answer["code"]) == (400, "BAD_ARGUMENT")
    assert "'key' is no text that UTF-8 can encode" in answer["message"]


async def test_a_message_that_a_client_of_nsq_always_fails_becomes_a_dead_letter(
    broker: Broker,
) -> None:
    await configured(broker, max_attempts=3, retry_delays_ms=[20, 40])
    await publish(broker, b"good", b"bad", b"fine")
    command = [sys.executable, "-m", "tests.interop.agents.pynsq_failing_agent"]
    with Agent([*command, broker.tcp_address, "t", "c"], cwd=ROOT) as agent:
        body, properties = await dead_letter(broker)

        def seen() -> list[int]:
            return [
                event["attempts"]
                for event in agent.events_named("received")
                if event["body"] == "bad"
            ]

        agent.wait("three attempts", 10, lambda: len(seen()) == 3)
        assert set(agent.bodies("received")) == {"good", "bad", "fine"}
    assert body == b"bad"
    assert properties.system["dead_reason"] == "max_attempts"
    assert properties.system["dead_attempts"] == "3"
    assert seen() == [1, 2, 3]
    channel = (await channels_of(broker.http_address))["t", "c"]
    assert (channel["dead_letter_count"], channel["requeue_count"]) == (1, 3)
    assert channel["depth"] == channel["in_flight_count"] == 0
    metrics = await http(broker.http_address, "/metrics")
    assert b'martlet_channel_dead_letters_total{topic="t",channel="c"} 1' in metrics


async def test_a_consumer_may_give_an_error_and_a_delay(
    broker: Broker, subscriber: Subscriber
) -> None:
    await configured(broker, max_attempts=4, retry_delays_ms=[3_600_000])
    await publish(broker, b"1")
    connection = subscriber.connection
    id, attempts = await subscriber.message()
    await connection.call("message.later", id=id, delay_ms=1, error="no connection")
    assert await subscriber.message() == (id, 2)
    await connection.call("message.later", id=id, level=1)
    assert await subscriber.message() == (id, 3)
    await connection.call("message.later", id=id, level=-1, error="out of stock " * 1000)
    body, properties = await dead_letter(broker)
    assert (body, attempts) == (b"1", 1)
    assert properties.system["dead_reason"] == "rejected"
    assert properties.system["dead_first_error"] == "no connection"
    assert properties.system["dead_last_error"].startswith("out of stock")
    assert len(properties.system["dead_last_error"]) == 1000
    assert properties.system["dead_id"] == id


async def test_a_consumer_may_reject_a_message_and_give_others_back(
    broker: Broker, subscriber: Subscriber
) -> None:
    await configured(broker, max_attempts=4, retry_delays_ms=[3_600_000])
    await publish(broker, b"1")
    connection = subscriber.connection
    id, _ = await subscriber.message()
    assert (await connection.call("message.give_back", ids=[id])).fields == {"count": 1}
    assert await subscriber.message() == (id, 1)
    # The application has had it: that is an attempt, and no failure.
    await connection.call("message.give_back", ids=[id], started=True)
    assert await subscriber.message() == (id, 2)
    assert (await connection.call("message.started", id=id)).fields == {}
    await connection.call("message.dead", id=id, reason="given_up", error="twice")
    _, properties = await dead_letter(broker)
    assert properties.system["dead_reason"] == "given_up"
    refusals: list[tuple[str, dict[str, Any], str]] = [
        ("message.dead", {"id": id}, "NOT_IN_FLIGHT.*ID not in flight"),
        ("message.started", {"id": id}, "NOT_IN_FLIGHT.*ID not in flight"),
        ("message.later", {"id": "x"}, "no message id"),
        ("message.later", {"id": id, "level": 1, "delay_ms": 1}, "not both"),
        ("message.dead", {"id": id, "reason": "timeout"}, "must be one of rejected, given_up"),
    ]
    for method, fields, why in refusals:
        with pytest.raises(CallRefused, match=why):
            await connection.call(method, **fields)


async def test_bad_policies_are_refused(broker: Broker) -> None:
    broker.server.broker.topic("t").channel("c")
    for policy, error_text in (
        ({"dead_letter_topic": "t"}, "is the topic itself"),
        ({"dead_letter_topic": "no such name!"}, "dead_letter_topic must be the name of a topic"),
        ({"max_attempts": -2}, "from -1 to 65000"),
        ({"retry_delays_ms": [-1]}, "retry_delays_ms must be a whole number from 0"),
    ):
        status, answer = await call(
            broker, "channel.configure", topic="t", channel="c", policy=policy
        )
        assert (status, error_text in answer["message"]) == (400, True), answer
    status, answer = await call(broker, "message.dead", id="0123456789abcdef")
    assert (status, answer["code"]) == (400, "NOT_SUBSCRIBED")


async def test_with_flush_sync_a_dead_letter_is_durable_before_it_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Broker(flush="sync") as broker:
        await configured(broker, max_attempts=1)
        core = broker.server.broker
        channel = core.topics["t"].channels["c"]
        finish, finished = MovingMessages.finish, asyncio.Event()

        def checked_finish(moving: MovingMessages, offset: int) -> None:
            entry = core.topics["t.c.dead"].queue.index.row(0)
            assert core.log.durable_position >= entry.position + entry.length
            finish(moving, offset)
            finished.set()

        monkeypatch.setattr(MovingMessages, "finish", checked_finish)
        async with (
            Producer(broker.tcp_address) as producer,
            Consumer("t", "c", broker.tcp_address) as consumer,
        ):
            await producer.publish("t", b"1")
            (await anext(consumer)).requeue(backoff=False)
            async with asyncio.timeout(AMPLE_S):
                await finished.wait()
        assert not channel.cursor.pending


async def dead_letters(broker: Broker, count: int) -> list[bytes]:
    """Have messages die, the last one with another error, and wait until they are dead."""
    await configured(broker, max_attempts=1)
    bodies = [b"%d" % number for number in range(count)]
    async with subscribed(broker) as subscriber:
        await publish(broker, *bodies)
        for number in range(count):
            id, _ = await subscriber.message()
            error = "out of stock" if number == count - 1 else "no connection"
            await subscriber.connection.call("message.later", id=id, error=error)
    core = broker.server.broker
    core.run()
    assert core.topics["t"].channels["c"].dead_letter_count == count
    return bodies


async def test_dead_letters_are_listed_shown_brought_back_and_thrown_away(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_calls, "_AT_ONCE", 2)
    monkeypatch.setattr(dead_letter_calls, "_MAX_READ", 4)
    await dead_letters(broker, 5)
    status, listed = await call(broker, "dead_letters.list")
    assert status == 200
    (topic,) = listed["dead_letter_topics"]
    assert (topic["dead_letter_topic"], topic["count"]) == ("t.c.dead", 5)
    (group,) = topic["channels"]
    assert (group["topic"], group["channel"]) == ("t", "c")
    assert group["reasons"] == {"max_attempts": group["count"]}
    where = {"topic": "t", "channel": "c"}
    _, shown = await call(broker, "dead_letters.show", **where, limit=3)
    assert [message["body"] for message in shown["messages"]] == ["0", "1", "2"]
    assert shown["messages"][0]["first_error"] == "no connection"
    _, shown = await call(broker, "dead_letters.show", **where, **shown["next"])
    assert [message["body"] for message in shown["messages"]] == ["3", "4"]
    assert shown["next"] is None
    chosen = {**where, "error": "stock"}
    _, dry = await call(broker, "dead_letters.redrive", **chosen, dry_run=True)
    assert (dry["count"], dry["next"]) == (0, {"queue": 0, "offset": 4})
    _, dry = await call(broker, "dead_letters.redrive", **chosen, dry_run=True, offset=4)
    assert (dry["count"], dry["next"], dry["kept"]) == (1, None, {})
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        _, done = await call(broker, "dead_letters.redrive", **chosen, offset=4)
        assert done["count"] == 1
        message = await asyncio.wait_for(anext(consumer), AMPLE_S)
        assert (message.body, message.attempts) == (b"4", 1)
        assert message.properties.system["dead_redrives"] == "1"
        message.finish()
    _, done = await call(broker, "dead_letters.purge", **where, ids=[shown["messages"][0]["id"]])
    assert done["count"] == 1
    _, done = await call(broker, "dead_letters.redrive", **where, all=True, to_topic="elsewhere")
    assert done["count"] == 3
    core = broker.server.broker
    assert core.topics["elsewhere"].message_count == 3
    _, listed = await call(broker, "dead_letters.list", **where)
    assert listed["dead_letter_topics"][0]["count"] == 0
    assert not core.topics["t.c.dead"].channels[CHANNEL].cursor.pending


async def test_a_dead_letter_keeps_an_order_key_and_headers_of_any_bytes(broker: Broker) -> None:
    await configured(broker, max_attempts=1)
    carried = Properties(headers={"a": b"\xff", "b": "text"}, order_key=b"\xfe")
    async with subscribed(broker) as subscriber:
        async with Producer(broker.tcp_address) as producer:
            await producer.publish("t", b"x", headers=carried.headers, order_key=carried.order_key)
        id, _ = await subscriber.message()
        await subscriber.connection.call("message.later", id=id, error="no")
    broker.server.broker.run()
    where = {"topic": "t", "channel": "c"}
    async with Admin(broker.http_address) as admin:
        ((letter,),) = (await admin.dead_letters.show("t", "c")).values.values()
    assert (letter.headers, letter.headers_base64) == ({"b": "text"}, {"a": "/w=="})
    assert (letter.order_key, letter.order_key_base64) == ("", "/g==")
    lines = letter_lines(letter, letter.at_ms)
    assert {"  order key, base64: /g==", "  header a, base64: /w=="} < set(lines)
    await call(broker, "dead_letters.redrive", **where, all=True)
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        properties = (await anext(consumer)).properties
    assert (properties.headers, properties.order_key) == (carried.headers, carried.order_key)


async def test_an_empty_id_selects_no_dead_letter_that_a_client_has_published(
    broker: Broker,
) -> None:
    await dead_letters(broker, 1)
    await publish(broker, b"of no channel", topic="t.c.dead")
    where = {"dead_letter_topic": "t.c.dead"}
    for ids in ([""], []):
        status, _ = await call(broker, "dead_letters.purge", **where, ids=ids)
        assert status == 400
    _, shown = await call(broker, "dead_letters.show", **where)
    assert len(shown["messages"]) == 2


async def test_errors_of_dead_letter_calls_say_what_to_do(
    broker: Broker,
) -> None:
    await dead_letters(broker, 1)
    where = {"topic": "t", "channel": "c"}
    for fields, status, error_text in (
        ({"topic": "t", "channel": "d", "all": True}, 404, "'t.d.dead', where they would be"),
        ({"dead_letter_topic": "t", "all": True}, 404, "'t' is no dead-letter topic"),
        (where, 400, "the selection is missing: add 'all'"),
        ({**where, "all": True, "to_topic": "t.c.dead"}, 400, "already"),
        ({**where, "all": True, "queue": 1}, 400, "'queue' must be a whole number from 0 to 0"),
    ):
        answer = await call(broker, "dead_letters.redrive", **fields)
        assert (answer[0], error_text in answer[1]["message"]) == (status, True), answer
    broker.server.broker.delete_topic("t")
    status, answer = await call(
        broker, "dead_letters.redrive", dead_letter_topic="t.c.dead", all=True
    )
    assert (status, answer["count"]) == (200, 0)
    ((reason, count),) = answer["kept"].items()
    assert count == 1
    assert "there is no topic 't', where dead letters are to go back to" in reason


async def test_a_dump_of_the_log_shows_which_channel_a_batch_is_for(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    await dead_letters(broker, 1)
    await call(broker, "dead_letters.redrive", topic="t", channel="c", all=True)
    number = broker.server.broker.topics["t"].channels["c"].id
    assert log.main(["dump", str(broker.data_path), "--topic=t", "--json"]) == 0
    dumped = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("only_channel") for row in dumped] == [None, number]
    assert all("deliver_at" not in row for row in dumped)
