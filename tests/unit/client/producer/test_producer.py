"""The producer against a broker that follows a script."""

import asyncio
import logging
import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.client.scripted_broker import Mood, ScriptedBroker, at

from martlet.client import (
    Backoff,
    BadBody,
    Closed,
    InvalidName,
    Limits,
    Producer,
    PublishRefused,
    PublishTimeout,
    PublishUnclear,
)
from martlet.client.producer.options import SendOptions

FAST = Backoff(first_s=0.01, max_s=0.05)


async def test_a_publish_returns_when_the_broker_has_said_ok() -> None:
    mood = Mood("hold")
    async with ScriptedBroker(mood) as broker, Producer(broker.address) as producer:
        publish = asyncio.create_task(producer.publish("orders", b"one"))
        await broker.until(lambda: mood.held)
        await asyncio.sleep(0.01)
        assert not publish.done()
        mood.answer()
        await publish
    assert [(command.words, command.bodies) for command in broker.commands] == [
        (["PUB", "orders"], [b"one"])
    ]
    assert broker.identities[0]["user_agent"]


async def test_publishes_of_one_turn_go_in_one_command_per_topic() -> None:
    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        await asyncio.gather(
            *(producer.publish("a" if n % 2 else "b", b"%d" % n) for n in range(20)),
            producer.publish("a", b"later", defer_ms=1500),
        )
    commands = {" ".join(command.words): command.bodies for command in broker.commands}
    assert commands == {
        "MPUB b": [b"%d" % n for n in range(0, 20, 2)],
        "MPUB a": [b"%d" % n for n in range(1, 20, 2)],
        "DPUB a 1500": [b"later"],
    }


async def test_unanswered_publishes_are_sent_again_in_order() -> None:
    mood = Mood("hold")
    async with (
        ScriptedBroker(mood) as broker,
        Producer(broker.address, backoff=FAST) as producer,
    ):
        publishes = []
        for number in range(4):
            publishes.append(asyncio.create_task(producer.publish("t", b"%d" % number)))
            await broker.until(lambda: len(mood.held) == len(publishes))
        mood.held.pop(0).peer.answer()
        await publishes[0]
        before = len(broker.commands)
        mood.does = "store"
        await broker.go_away()
        publishes.append(asyncio.create_task(producer.publish("t", b"4")))
        await asyncio.sleep(0.05)
        await broker.listen()
        await asyncio.gather(*publishes)
        again = [body for command in broker.commands[before:] for body in command.bodies]
        assert again == [b"1", b"2", b"3", b"4"], "each once, and not what was answered"


async def test_a_refused_publish_is_reported_and_the_next_one_works() -> None:
    script = at(b"bad", act=lambda peer: peer.fail(b"E_PUB_FAILED PUB failed disk full"))
    async with ScriptedBroker(script) as broker, Producer(broker.address, backoff=FAST) as producer:
        with pytest.raises(PublishRefused, match="disk full") as refused:
            await producer.publish("t", b"bad")
        assert (refused.value.code, refused.value.text) == ("E_PUB_FAILED", "PUB failed disk full")
        await producer.publish("t", b"good")
    assert broker.bodies() == [b"bad", b"good"]


@pytest.mark.parametrize("answer", [b"CLOSE_WAIT", b'{"max_rdy_count":1}', b"", b"OKAY"])
async def test_only_ok_is_an_ok(answer: bytes) -> None:
    """Whatever came in the place of the answer was taken for one."""
    script = at("PUB", act=lambda peer: peer.answer(answer), times=1)
    async with ScriptedBroker(script) as broker, Producer(broker.address, backoff=FAST) as producer:
        with pytest.raises(PublishUnclear) as raised:
            await producer.publish("t", b"one")
        said = f"{broker.address} answered a publish with {answer!r} instead of OK"
        assert str(raised.value) == said
        await producer.publish("t", b"two")
        assert len(broker.peers) == 2, "what it says next may be the answer to the one before"
        assert producer.stats.pending_messages == 0
        (broker_stats,) = producer.stats.brokers
        assert (broker_stats.stored, broker_stats.refused, broker_stats.lost) == (1, 0, 1)
    assert broker.bodies() == [b"one", b"two"]


async def test_a_bad_message_does_not_fail_those_that_came_along() -> None:
    script = at(b"bad", act=lambda peer: peer.fail(b"E_BAD_MESSAGE MPUB message too big"))
    async with ScriptedBroker(script) as broker, Producer(broker.address, backoff=FAST) as producer:
        outcomes = await asyncio.gather(
            *(producer.publish("t", body) for body in [b"a", b"bad", b"c"]),
            producer.publish_many("t", [b"d", b"e"]),
            return_exceptions=True,
        )
    assert isinstance(outcomes.pop(1), PublishRefused)
    assert outcomes == [None, None, 2]
    sent = [command.bodies for command in broker.commands[1:]]
    assert sent == [[b"a"], [b"bad"], [b"c"], [b"d", b"e"]]


async def test_a_publish_gives_up_in_time_and_is_not_sent_later() -> None:
    async with ScriptedBroker() as broker:
        async with Producer(broker.address, timeout_s=0.3, backoff=FAST) as producer:
            await broker.go_away()
            with pytest.raises(PublishTimeout, match=r"0\.3 s.*no connection.*it is not stored"):
                await producer.publish("t", b"late")
            await broker.listen()
            await producer.publish("t", b"next")
        assert broker.bodies() == [b"next"]


async def test_a_broker_that_never_answers_is_a_timeout_that_names_it() -> None:
    mood = Mood("hold")
    async with (
        ScriptedBroker(mood) as broker,
        Producer(broker.address, timeout_s=0.2) as producer,
    ):
        with pytest.raises(
            PublishTimeout,
            match=f"{broker.address} did not answer.*it may be stored all the same; timeout_s",
        ):
            await producer.publish("t", b"one")


async def test_a_cancelled_publish_is_not_sent() -> None:
    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        publish = asyncio.create_task(producer.publish("t", b"cancelled"))
        publish.cancel()
        await asyncio.wait([publish])
        waiting = asyncio.create_task(producer.publish("t", b"cancelled too"))
        asyncio.get_running_loop().call_soon(waiting.cancel)
        await asyncio.wait([waiting])
        await producer.publish("t", b"kept")
    assert broker.bodies()[-1] == b"kept"
    assert b"cancelled" not in broker.bodies()


@pytest.mark.parametrize(
    ("topic", "body", "error", "why"),
    [
        ("a b", b"x", InvalidName, "'a b' is no name of a topic"),
        ("a\nNOP", b"x", InvalidName, "no name"),
        ("t" * 65, b"x", InvalidName, "1 to 64"),
        ("t", b"", BadBody, "empty"),
        ("t", b"x" * 101, BadBody, "101 bytes is above max_message_bytes=100.*--max-msg-size"),
        ("t", "text", TypeError, "not str: encode it"),
        ("t", 5, TypeError, "not int"),
    ],
)
async def test_bad_input_is_refused_before_it_is_sent(
    topic: str, body: bytes, error: type[Exception], why: str
) -> None:
    limits = Limits(max_message_bytes=100)
    async with ScriptedBroker() as broker, Producer(broker.address, limits=limits) as producer:
        with pytest.raises(error, match=why):
            await producer.publish(topic, body)
        with pytest.raises(error, match=why):
            await producer.publish_many(topic, [b"good", body])
        with pytest.raises(ValueError, match="defer_ms=-1"):
            await producer.publish("t", b"x", defer_ms=-1)
    assert broker.commands == []


async def test_bodies_may_be_any_bytes() -> None:
    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        body = bytearray(b"one")
        publish = asyncio.create_task(producer.publish("t", body))
        await asyncio.sleep(0)
        body[:] = b"two"
        await publish
        await producer.publish_many("t", [memoryview(b"three"), b"four"])
    assert broker.bodies() == [b"one", b"three", b"four"]


async def test_publish_many_is_cut_to_the_limits_of_the_broker() -> None:
    limits = Limits(max_body_bytes=100, max_message_bytes=50)
    bodies = [b"%02d" % number * 5 for number in range(60)]
    async with ScriptedBroker() as broker, Producer(broker.address, limits=limits) as producer:
        assert await producer.publish_many("t", bodies) == 60
        assert await producer.publish_many("t", iter(bodies[:1])) == 1
        assert await producer.publish_many("t", []) == 0
    assert broker.bodies() == [*bodies, bodies[0]]
    assert all(
        sum(len(body) + 4 for body in command.bodies) + 4 <= 100 for command in broker.commands
    )
    assert [command.name for command in broker.commands].count("PUB") == 1


async def test_publish_many_leaves_the_loop_its_turns() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with ScriptedBroker() as broker, Producer(broker.address) as producer:
        turning = asyncio.create_task(turn())
        assert await producer.publish_many("t", [b"x"] * 200_000) == 200_000
        turning.cancel()
    assert turns > 20


async def test_publish_many_takes_no_more_than_may_be_in_flight() -> None:
    mood = Mood("hold")
    limits = Limits(max_in_flight_bytes=1040, max_body_bytes=208)  # 20 messages, 3 a command
    taken = 0

    def bodies() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b"x" * 48

    async with (
        ScriptedBroker(mood) as broker,
        Producer(broker.address, limits=limits) as producer,
    ):
        publish = asyncio.create_task(producer.publish_many("t", bodies()))
        await broker.until(lambda: len(broker.bodies()) >= 18)
        await asyncio.sleep(0.02)
        assert len(broker.bodies()) <= 20
        assert taken <= 30
        mood.does = "store"
        mood.answer()
        assert await publish == 1000
    assert len(broker.bodies()) == 1000


async def test_a_producer_is_used_in_its_block_and_once() -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(Closed, match="async with"):
            await Producer(broker.address).publish("t", b"x")
        async with Producer(broker.address) as producer:
            pass
        with pytest.raises(Closed, match="closed"):
            await producer.publish("t", b"x")
        with pytest.raises(Closed, match="used once"):
            await producer.__aenter__()


async def test_the_connection_is_made_again_while_nothing_is_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "martlet.client")
    async with ScriptedBroker() as broker, Producer(broker.address, backoff=FAST) as producer:
        await broker.go_away()
        await broker.listen()
        await broker.until(lambda: len(broker.identities) == 2)
        await producer.publish("t", b"one")
    assert any(broker.address in record.getMessage() for record in caplog.records)


async def test_a_broker_that_hangs_up_each_time_is_not_stormed() -> None:
    backoff = Backoff(first_s=0.05, max_s=10, jitter=0)
    async with (
        ScriptedBroker(Mood("hang up")) as broker,
        Producer(broker.address, timeout_s=1, backoff=backoff) as producer,
    ):
        with pytest.raises(PublishTimeout):
            await producer.publish("t", b"poison")
        assert producer.stats.timed_out == 1
    # At 0, 0.05, 0.15, 0.35 and 0.75 s.
    assert 3 <= len(broker.commands) <= 5


async def test_a_send_that_is_refused_for_now_is_tried_as_often_as_it_may_be() -> None:
    refuse = at("SEND", act=lambda peer: peer.fail(b"E_AUTH_FAILED AUTH failed"))
    async with (
        ScriptedBroker(refuse, martlet={"version": 1}) as broker,
        Producer(broker.address, send_timeout_s=60) as producer,
    ):
        with pytest.raises(PublishRefused, match="E_AUTH_FAILED"):
            await producer.send("t", b"x")
        assert len(broker.named("SEND")) == 3


def test_numbers_of_other_kinds_are_plain_integers() -> None:
    options = SendOptions(queue=cast(int, np.int64(1)), defer_ms=cast(int, np.int64(5)))
    assert (type(options.queue), type(options.defer_ms)) == (int, int)
    with pytest.raises(TypeError):
        SendOptions(queue=cast(int, 1.5))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout_s": math.nan}, "timeout_s=nan must be above 0"),
        ({"timeout_s": 0}, "timeout_s=0 must be above 0"),
        ({"defer_ms": math.nan}, "defer_ms=nan: a number of milliseconds"),
        ({"defer_ms": math.inf}, "defer_ms=inf: a number of milliseconds"),
        ({"defer_ms": "soon"}, "defer_ms='soon': a number of milliseconds"),
        ({"deliver_at": math.nan}, "deliver_at=nan: seconds since 1970, or a datetime"),
        ({"deliver_at": math.inf}, "deliver_at=inf: seconds since 1970, or a datetime"),
    ],
)
def test_a_time_that_is_no_number_is_refused_by_its_name(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        assert SendOptions(**options).deliver_at_ms
