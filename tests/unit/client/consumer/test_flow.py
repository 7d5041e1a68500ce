"""Ready counts as brokers see them: backing off, pausing, and another max_in_flight."""

import asyncio

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import consuming, running
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import Backoff, Consumer, FailureBackoff, Message, Requeue, Rotation

AT_ONCE = Backoff(first_s=0, max_s=0)
QUICK = FailureBackoff(multiplier_s=0.01)
TURNS = Rotation(
    low_rdy_idle_timeout_s=0.03, low_rdy_timeout_s=0.2, rdy_redistribute_interval_s=0.02
)


async def handle(message: Message) -> None:
    if message.body == b"body 13":
        raise RuntimeError("bad")
    if message.body == b"body 14":
        message.requeue(0, backoff=False)


async def shows(broker: ScriptedBroker, expected: list[str]) -> None:
    """Wait until these ready counts and answers have come, in this order."""

    def shown() -> list[str]:
        return [
            f"RDY {command.words[1]}" if command.name == "RDY" else command.name
            for command in broker.named("RDY", "FIN", "REQ")
        ]

    try:
        await broker.until(lambda: shown() == expected)
    except TimeoutError:
        assert shown() == expected
        raise


async def test_a_consumer_backs_off_and_resumes_as_the_clients_of_nsq_do() -> None:
    """The commands that go-nsq sends in its own test of this, in the same order."""
    async with consuming(run=handle, max_in_flight=5, retry=AT_ONCE, failure_backoff=QUICK) as (
        broker,
        consumer,
    ):
        expected = ["RDY 5"]
        for number in (1, 2, 3):
            broker.deliver(number)
            expected += ["FIN"]
        for number, after in ((13, "RDY 1"), (13, "RDY 1"), (4, "RDY 1"), (5, None)):
            await shows(broker, expected)
            broker.deliver(number)
            if after is None:
                expected += ["RDY 5", "FIN"]
            else:
                expected += ["RDY 0", "REQ" if number == 13 else "FIN", after]
        await shows(broker, expected)
        assert consumer.counts.finished == 5


async def test_a_deferral_is_neither_failure_nor_success() -> None:
    async with consuming(run=handle, max_in_flight=5, failure_backoff=QUICK) as (broker, _):
        expected = ["RDY 5", "REQ"]
        broker.deliver(14)
        await shows(broker, expected)
        for number in (13, 14):
            broker.deliver(number)
            expected += ["RDY 0", "REQ", "RDY 1"]
            await shows(broker, expected)
        broker.deliver(1)
        expected += ["RDY 5", "FIN"]
        await shows(broker, expected)


async def test_a_thousand_failures_at_once_are_one_step(caplog: pytest.LogCaptureFixture) -> None:
    async with consuming(failure_backoff=QUICK) as (broker, consumer):
        broker.deliver(*range(200))
        for _ in range(200):
            (await anext(consumer)).requeue(backoff=True)
        await broker.until(lambda: broker.ready_counts()[-1] == 1)
        assert broker.ready_counts() == [200, 0, 1]
        broker.deliver(1)
        batch = await anext(consumer.batches())
        await batch.finish()
        await broker.until(lambda: broker.ready_counts() == [200, 0, 1, 200])
    said = "channel c of topic t: messages fail: no more are requested for 0.02 s (level 1;"
    assert caplog.text.count(said) == 1
    assert "channel c of topic t: messages succeed again" in caplog.text


async def test_a_requeue_by_the_application_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with consuming(failure_backoff=QUICK) as (broker, consumer):
        broker.deliver(*range(4))
        for _ in range(2):
            (await anext(consumer)).requeue(500)
        await (await anext(consumer.batches())).requeue(500)
        await broker.until(lambda: len(broker.named("REQ")) == 4)
        assert broker.ready_counts() == [200]
    assert "messages fail" not in caplog.text


@pytest.mark.parametrize(
    ("error", "fails"),
    [(Requeue(5), False), (Requeue(5, backoff=True), True), (RuntimeError("down"), True)],
)
async def test_an_error_of_a_handler_is_a_failure_unless_it_defers(
    error: Exception, fails: bool
) -> None:
    async def handle(_message: Message) -> None:
        raise error

    async with consuming(run=handle, failure_backoff=FailureBackoff()) as (broker, _):
        broker.deliver(1)
        await broker.until(lambda: len(broker.named("REQ")) == 1)
        assert broker.ready_counts() == ([200, 0] if fails else [200])


async def test_only_one_message_is_tried_and_elsewhere_where_its_broker_goes() -> None:
    async with ScriptedBroker() as one, ScriptedBroker() as two:
        addresses = [one.address, two.address]
        async with (
            Consumer(
                "t", "c", addresses, max_in_flight=10, failure_backoff=QUICK, rotation=TURNS
            ) as consumer,
            running(consumer, handle),
        ):
            await until(lambda: [one.ready_counts()[-1:], two.ready_counts()[-1:]] == [[5]] * 2)
            one.deliver(13)
            await until(lambda: sorted((one.ready_counts()[-1], two.ready_counts()[-1])) == [0, 1])
            trial, other = (one, two) if one.ready_counts()[-1] else (two, one)
            rotated = len(other.ready_counts())
            await other.until(lambda: other.ready_counts()[rotated:] == [1])
            assert trial.ready_counts()[-1] == 0, "nothing came there, so the other is asked"
            await other.go_away()
            await trial.until(lambda: trial.ready_counts()[-1] == 1)
            trial.deliver(1)
            await trial.until(lambda: trial.ready_counts()[-1] == 10)


async def test_backing_off_outlasts_a_time_without_any_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("martlet.client.consumer.handling.backoff.NOBODY_WAIT_S", 0.03)
    soon = Backoff(first_s=0.01, max_s=0.02)
    async with consuming(run=handle, max_in_flight=7, failure_backoff=QUICK, backoff=soon) as (
        broker,
        _,
    ):
        broker.deliver(13)
        await broker.until(lambda: broker.ready_counts() == [7, 0])
        await broker.go_away()
        await asyncio.sleep(0.05)
        await broker.listen()
        await broker.until(lambda: broker.ready_counts() == [7, 0, 1])
        broker.deliver(1)
        await broker.until(lambda: broker.ready_counts() == [7, 0, 1, 7])


async def test_max_in_flight_can_change_and_messages_can_pause() -> None:
    async with (
        ScriptedBroker() as one,
        ScriptedBroker() as two,
        Consumer("t", "c", [one.address, two.address], max_in_flight=10) as consumer,
    ):
        counts = [one.ready_counts, two.ready_counts]

        async def become(expected: list[int]) -> None:
            await until(lambda: [sent()[-1] for sent in counts if sent()] == expected)

        await become([5, 5])
        consumer.change_max_in_flight(4)
        await become([2, 2])
        assert consumer.max_in_flight == 4
        consumer.pause()
        await become([0, 0])
        consumer.change_max_in_flight(20)
        consumer.resume()
        await become([10, 10])
        consumer.change_max_in_flight(0)
        await become([0, 0])
        one.deliver(1)
        assert (await anext(consumer)).body == b"body 1", "what is on its way still comes"
        consumer.change_max_in_flight(2)
        await become([1, 1])
        with pytest.raises(ValueError, match="max_in_flight=-1"):
            consumer.change_max_in_flight(-1)
        consumer.stop()
        await become([0, 0])
        consumer.resume()
        await asyncio.sleep(0.01)
        await become([0, 0])


async def test_a_second_broker_gets_as_the_first_ones_messages_are_finished() -> None:
    async with ScriptedBroker() as one, ScriptedBroker() as two:
        await two.go_away()
        soon = Backoff(first_s=0.01, max_s=0.02)
        addresses = [one.address, two.address]
        async with Consumer("t", "c", addresses, max_in_flight=4, backoff=soon) as consumer:
            one.deliver(1, 2, 3, 4)
            messages = [await anext(consumer) for _ in range(4)]
            await two.listen()
            await one.until(lambda: one.ready_counts() == [4, 2])
            messages[0].finish()
            await two.until(lambda: two.ready_counts() == [1])
            messages[1].requeue(0, backoff=False)
            await two.until(lambda: two.ready_counts() == [1, 2])
            messages[2].finish()
            await asyncio.sleep(0.01)
            assert (one.ready_counts(), two.ready_counts()) == ([4, 2], [1, 2])
