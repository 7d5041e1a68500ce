"""The client without await, with a broker that follows a script."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import pytest
from tests.interop.asking import until
from tests.unit.client.scripted_broker import Mood, ScriptedBroker, message_frame

from martlet.client import Closed, ConnectionLost, Hooks, Message, PublishTimeout
from martlet.client.sync import Admin, Consumer, Producer
from martlet.client.sync.loop_thread import LoopThread, loop_thread


@pytest.fixture
def mood() -> Mood:
    return Mood()


@contextmanager
def listening(mood: Mood, message_timeout_ms: int) -> Iterator[ScriptedBroker]:
    """A broker in a thread of its own, which no test's blocking holds up."""
    thread = LoopThread()
    broker = ScriptedBroker(mood, msg_timeout=message_timeout_ms, max_msg_timeout=60_000)
    thread.call(broker.listen())
    yield broker
    thread.call(broker.go_away())
    thread.loop.call_soon_threadsafe(thread.loop.stop)


@pytest.fixture
def broker(mood: Mood) -> Iterator[ScriptedBroker]:
    with listening(mood, 60_000) as broker:
        yield broker


@pytest.fixture
def hasty(mood: Mood) -> Iterator[ScriptedBroker]:
    """A broker whose messages time out soon."""
    with listening(mood, 300) as broker:
        yield broker


class AheadClock:
    """The `time` module of a consumer that has waited `ahead_s` longer than it did."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> AheadClock:
    clock = AheadClock()
    monkeypatch.setattr("martlet.client.sync.consumer.time", clock)
    return clock


def test_heartbeats_are_answered_while_the_caller_blocks(broker: ScriptedBroker) -> None:
    with Producer(broker.address), Consumer("t", "c", broker.address):
        for peer in broker.peers:
            peer.send(b"\0\0\0\x0f\0\0\0\0_heartbeat_")
        until(lambda: broker.nops == 2)


def test_messages_that_waited_too_long_are_not_handed_out(
    broker: ScriptedBroker, clock: AheadClock
) -> None:
    with Consumer("t", "c", broker.address, max_in_flight=10) as consumer:
        until(broker.ready_counts)
        frames = b"".join(message_frame(b"old %d" % n, number=n) for n in range(3))
        broker.peers[-1].send(frames)
        assert next(consumer).body == b"old 0"
        clock.ahead_s = 61
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(next, consumer)
            until(lambda: consumer.counts.expired == 2)
            clock.ahead_s = 0
            broker.peers[-1].send(message_frame(b"new", number=9))
            message = following.result()
        assert message.body == b"new"
        assert consumer.counts.expired == 2
        message.finish()
    assert broker.answered("FIN") == [9]
    assert set(broker.answered("REQ")) <= {0}


def test_messages_that_waited_long_are_touched_when_handed_out(
    broker: ScriptedBroker, clock: AheadClock
) -> None:
    with Consumer("t", "c", broker.address, max_in_flight=10) as consumer:
        until(broker.ready_counts)
        broker.peers[-1].send(message_frame(b"a", number=0) + message_frame(b"b", number=1))
        next(consumer).finish()
        clock.ahead_s = 45
        message = next(consumer)
        until(lambda: broker.answered("TOUCH"))
        message.finish()
    assert broker.answered("TOUCH") == [1]
    assert broker.answered("FIN") == [0, 1]


def test_only_iterated_messages_are_touched(hasty: ScriptedBroker) -> None:
    with Consumer("t", "c", hasty.address, max_in_flight=10) as consumer:
        until(hasty.ready_counts)
        hasty.peers[-1].send(b"".join(message_frame(b"x", number=n) for n in range(3)))
        message = next(consumer)
        until(lambda: len(hasty.answered("TOUCH")) >= 4)
        assert set(hasty.answered("TOUCH")) == {0}
        message.finish()
        until(lambda: hasty.answered("FIN"))
    assert hasty.answered("FIN") == [0]


def test_messages_unanswered_at_the_end_are_given_back(broker: ScriptedBroker) -> None:
    with Consumer("t", "c", broker.address, max_in_flight=10) as consumer:
        until(broker.ready_counts)
        broker.peers[-1].send(b"".join(message_frame(b"x", number=n) for n in range(3)))
        next(consumer)
        next(consumer).finish()
    assert broker.answered("FIN") == [1]
    assert sorted(broker.answered("REQ")) == [0, 2]


def test_a_publish_that_is_cancelled_is_not_sent(broker: ScriptedBroker, mood: Mood) -> None:
    mood.does = "hold"
    with Producer(broker.address, timeout_s=0.5) as producer:
        first = producer.submit("t", b"1")
        until(lambda: mood.held)
        second = producer.submit("t", b"2")
        assert second.cancel()
        with pytest.raises(PublishTimeout):
            first.result(10)
        assert second.cancelled()
        assert producer.stats.pending_messages <= 1


def test_a_future_has_its_error(broker: ScriptedBroker, mood: Mood) -> None:
    mood.does = "hold"
    with Producer(broker.address, timeout_s=0.2) as producer:
        future = producer.submit("t", b"x")
        with pytest.raises(PublishTimeout, match="did not answer"):
            future.result(10)
        with pytest.raises(PublishTimeout):
            producer.publish("t", b"x")


def test_all_share_one_thread(broker: ScriptedBroker) -> None:
    with Producer(broker.address) as one, Producer(broker.address) as two:
        assert one._thread is two._thread is loop_thread()


def test_the_loop_does_not_wait_for_itself(broker: ScriptedBroker) -> None:
    with Producer(broker.address) as producer:

        async def publish() -> None:
            producer.publish("t", b"x")

        with pytest.raises(RuntimeError, match="would wait for itself"):
            loop_thread().call(publish())


EXITS = [SystemExit, KeyboardInterrupt]


@pytest.mark.parametrize("error", EXITS)
def test_an_exit_in_a_callback_does_not_end_the_shared_loop(error: type[BaseException]) -> None:
    thread = LoopThread()
    done: list[int] = []

    def leave() -> None:
        raise error("on purpose")

    async def leave_too() -> None:
        raise error("on purpose")

    thread.loop.call_soon_threadsafe(leave)
    thread.post(leave)
    thread.post(done.append, 1)
    with pytest.raises(error, match="on purpose"):
        thread.start(leave_too()).result(5)
    assert thread.start(asyncio.sleep(0, "goes on")).result(5) == "goes on"
    assert done == [1]
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    until(lambda: thread.has_ended)
    with pytest.raises(Closed, match="was stopped"):
        thread.call(asyncio.sleep(0))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("error", EXITS)
def test_callbacks_that_exit_are_logged_and_change_nothing(
    broker: ScriptedBroker, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def leave(*_args: object) -> None:
        raise error("on purpose")

    hooks = Hooks(**dict.fromkeys(Hooks.__dataclass_fields__, leave))
    with (
        Producer(broker.address, hooks=hooks) as producer,
        Consumer("t", "c", broker.address, hooks=hooks, stall_after_s=0.05, on_stall=leave) as one,
    ):
        producer.publish("t", b"x")
        until(broker.ready_counts)
        broker.peers[-1].send(message_frame(b"1", number=1))
        until(lambda: "on_stall failed" in caplog.text)
        broker.peers[-1].send(message_frame(b"2", number=2))
        for message in one:
            message.finish()
            if message.body == b"2":
                break
        assert producer.stats.stored == 1
    assert broker.answered("FIN")[-1] == 2
    assert "the hook on_received failed" in caplog.text
    assert "the hook on_published failed" in caplog.text


@pytest.mark.timeout(30)
def test_exiting_in_on_giving_up_ends_run_where_it_was_called(broker: ScriptedBroker) -> None:
    def leave(_message: Message) -> None:
        raise SystemExit(3)

    with Consumer("t", "c", broker.address, max_attempts=1, on_giving_up=leave) as consumer:
        until(broker.ready_counts)
        broker.peers[-1].send(message_frame(b"x", number=7, attempts=2))
        with pytest.raises(SystemExit, match="3"):
            consumer.run(lambda _message: None)
        assert consumer.counts.received == 1
    assert broker.answered("REQ") == [7]


def test_a_function_that_fails_does_not_hold_up_others() -> None:
    thread = loop_thread()
    done: list[int] = []

    def fail() -> None:
        raise ConnectionLost("on purpose")

    thread.post(fail)
    thread.post(done.append, 1)
    thread.call(asyncio.sleep(0))
    assert done == [1]


def test_items_that_are_left_in_the_loop_do_not_wait_for_it() -> None:
    """As where the garbage collector ends their iterator there."""

    async def items() -> AsyncGenerator[int]:
        yield 1
        yield 2

    async def leave(iterator: Generator[int]) -> None:
        iterator.close()

    with Admin("127.0.0.1:9") as admin:
        iterator = cast("Generator[int]", admin.topics._iterated(items()))
        assert next(iterator) == 1
        loop_thread().call(leave(iterator))
