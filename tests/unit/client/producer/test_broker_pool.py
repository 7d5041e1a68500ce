"""A producer over several brokers that follow a script."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.polling import until
from tests.unit.client.scripted_broker import Command, Mood, ScriptedBroker, at, silent_at

from martlet.addresses import Address
from martlet.client import (
    Backoff,
    Health,
    Limits,
    Producer,
    ProducerFull,
    PublishLost,
    PublishRefused,
)
from martlet.client.producer import broker_pool as pool
from martlet.client.producer.in_flight import ProducerBatch
from martlet.client.transport.discovery import Discovery

FAST = Backoff(first_s=0.01, max_s=0.05)
SLOW = Backoff(first_s=30, max_s=30, jitter=0)


class MoodyBroker(ScriptedBroker):
    """A broker that follows its mood."""

    def __init__(self) -> None:
        self.mood = Mood()
        super().__init__(self.mood)


@pytest.fixture
async def brokers() -> AsyncIterator[list[MoodyBroker]]:
    one, two, three = MoodyBroker(), MoodyBroker(), MoodyBroker()
    async with one, two, three:
        yield [one, two, three]


async def connected(producer: Producer, count: int) -> None:
    await until(lambda: producer.stats.connected == count)


def addresses(brokers: list[MoodyBroker]) -> list[str]:
    return [broker.address for broker in brokers]


async def test_messages_go_round(brokers: list[MoodyBroker]) -> None:
    async with Producer(addresses(brokers)) as producer:
        await connected(producer, 3)
        for number in range(9):
            await producer.publish("t", b"%d" % number)
        assert [len(broker.bodies()) for broker in brokers] == [3, 3, 3]
        # Publishes of one turn stay together.
        await asyncio.gather(*(producer.publish("t", b"x%d" % n) for n in range(10)))
        assert sorted(len(broker.bodies()) for broker in brokers) == [3, 3, 13]
        stats = producer.stats
        assert (stats.stored, stats.pending_messages, stats.retried) == (19, 0, 0)
        assert sorted(broker.stored for broker in stats.brokers) == [3, 3, 13]


async def test_a_slow_broker_gets_less(brokers: list[MoodyBroker]) -> None:
    brokers[0].mood.does = "hold"
    async with Producer(addresses(brokers)) as producer:
        await connected(producer, 3)
        slow = asyncio.create_task(producer.publish("t", b"x"))
        await brokers[0].until(lambda: brokers[0].mood.held)
        for _ in range(20):
            await producer.publish("t", b"z")
        assert len(brokers[0].bodies()) == 1
        brokers[0].mood.answer()
        await slow


async def test_unanswered_messages_of_a_lost_broker_go_to_another(
    brokers: list[MoodyBroker],
) -> None:
    brokers[0].mood.does = brokers[1].mood.does = "hold"
    async with Producer(addresses(brokers[:2]), backoff=SLOW) as producer:
        await connected(producer, 2)
        publishes = []
        for number in range(6):
            publishes.append(asyncio.create_task(producer.publish("t", b"%d" % number)))
            await asyncio.sleep(0)
            await until(lambda: len(brokers[0].mood.held + brokers[1].mood.held) == len(publishes))
        brokers[1].mood.does = "store"
        brokers[1].mood.answer()
        await brokers[0].go_away()
        async with asyncio.timeout(50):
            await asyncio.gather(*publishes)
        assert set(brokers[1].bodies()) == {b"%d" % number for number in range(6)}
        assert [broker.health for broker in producer.stats.brokers] == [
            Health.FAILING,
            Health.CONNECTED,
        ]
        assert producer.stats.retried == 3
        await brokers[0].listen()


async def test_a_message_that_one_broker_cannot_store_goes_to_another(
    brokers: list[MoodyBroker],
) -> None:
    brokers[0].mood.does = "refuse"
    async with Producer(addresses(brokers), backoff=SLOW) as producer:
        await connected(producer, 3)
        for number in range(30):
            await producer.publish("t", b"%d" % number)
        stored = brokers[1].bodies() + brokers[2].bodies()
        assert sorted(stored, key=int) == [b"%d" % number for number in range(30)]
        assert len(brokers[0].bodies()) == 1, "it is left alone for a while"
        refusing = producer.stats.brokers[0]
        assert (refusing.health, refusing.refused) == (Health.REFUSING, 1)


async def test_one_message_probes_whether_a_broker_stores_again(brokers: list[MoodyBroker]) -> None:
    brokers[0].mood.does = "refuse"
    async with Producer(addresses(brokers[:2]), backoff=FAST) as producer:
        await connected(producer, 2)
        while not brokers[0].bodies():
            await producer.publish("t", b"x")
        brokers[0].mood.does = "hold"
        await connected(producer, 2)
        publishes = [asyncio.create_task(producer.publish("t", b"y")) for _ in range(3)]
        while not brokers[0].mood.held:
            publishes.append(asyncio.create_task(producer.publish("t", b"y")))
            await asyncio.sleep(0.002)
        publishes += [asyncio.create_task(producer.publish("t", b"y")) for _ in range(50)]
        await asyncio.sleep(0.02)
        assert len(brokers[0].mood.held) == 1
        brokers[0].mood.does = "store"
        brokers[0].mood.answer()
        await asyncio.gather(*publishes)


async def test_a_message_that_no_broker_can_store_is_refused(brokers: list[MoodyBroker]) -> None:
    for broker in brokers:
        broker.mood.does = "refuse"
    async with Producer(addresses(brokers), backoff=FAST) as producer:
        await connected(producer, 3)
        with pytest.raises(PublishRefused, match="disk full"):
            await producer.publish("t", b"x")
        assert all(len(broker.bodies()) == 1 for broker in brokers)
        with pytest.raises(PublishRefused, match="disk full"):
            await producer.publish("t", b"y", order_key="k")
        brokers[1].mood.does = "store"
        await producer.publish("t", b"z", order_key="k")
    assert b"z" in brokers[1].bodies()


async def test_a_broker_that_says_nothing_is_given_up_for_others(
    brokers: list[MoodyBroker],
) -> None:
    brokers[0].mood.does = "hold"
    async with Producer(addresses(brokers[:2]), answer_timeout_s=0.2) as producer:
        await connected(producer, 2)
        async with asyncio.timeout(50):
            await asyncio.gather(*(producer.publish(f"t{n}", b"%d" % n) for n in range(8)))
        assert len(brokers[1].bodies()) == 8
        assert brokers[0].mood.held
        assert "does not answer" in str(producer.stats.brokers[0].last_error)


async def test_the_only_broker_is_not_given_up(brokers: list[MoodyBroker]) -> None:
    brokers[0].mood.does = "hold"
    async with Producer(brokers[0].address, answer_timeout_s=0.05) as producer:
        publish = asyncio.create_task(producer.publish("t", b"x"))
        await until(lambda: producer.stats.brokers[0].health is Health.SILENT)
        await asyncio.sleep(0.15)
        assert len(brokers[0].peers) == 1
        brokers[0].mood.answer()
        await publish


async def test_a_publish_is_not_tried_more_often_than_asked(brokers: list[MoodyBroker]) -> None:
    for broker in brokers:
        broker.mood.does = "hang up"
    async with Producer(addresses(brokers), retries=2, backoff=FAST) as producer:
        with pytest.raises(PublishLost, match="sent 3 times, and not answered"):
            await producer.publish("t", b"x")
        assert sum(len(broker.bodies()) for broker in brokers) == 3


async def test_a_key_has_one_broker_and_moves_as_a_whole(brokers: list[MoodyBroker]) -> None:
    async with Producer(addresses(brokers), backoff=FAST) as producer:
        await connected(producer, 3)
        for number in range(12):
            await producer.publish("t", b"%d" % number, order_key="k")
        (owner,) = [n for n, broker in enumerate(brokers) if broker.bodies()]
        assert brokers[owner].bodies() == [b"%d" % number for number in range(12)]
        brokers[owner].mood.does = "hold"
        publishes = []
        for number in range(12, 16):
            publishes.append(
                asyncio.create_task(producer.publish("t", b"%d" % number, order_key="k"))
            )
            await until(lambda: len(brokers[owner].mood.held) == len(publishes))
        await brokers[owner].go_away()
        publishes.append(asyncio.create_task(producer.publish("t", b"16", order_key="k")))
        await asyncio.gather(*publishes)
        rest = [broker.bodies() for n, broker in enumerate(brokers) if n != owner]
        assert sorted(rest) == [[], [b"%d" % number for number in range(12, 17)]]
        brokers[owner].mood.does = "store"
        await brokers[owner].listen()
        await connected(producer, 3)
        await producer.publish("t", b"17", order_key="k")
        assert brokers[owner].bodies()[-1] == b"17"


async def test_ordered_keeps_each_topic_at_one_broker(brokers: list[MoodyBroker]) -> None:
    async with Producer(addresses(brokers), ordered=True) as producer:
        await connected(producer, 3)
        for number in range(40):
            await producer.publish(f"t{number}", b"%d" % number)
            await producer.publish_many(f"t{number}", [b"%d" % number, b"%d" % number])
        for number in range(40):
            have = [broker for broker in brokers if b"%d" % number in broker.bodies()]
            assert len(have) == 1
        assert all(broker.bodies() for broker in brokers)


async def test_submit_gives_a_future_for_each_message(brokers: list[MoodyBroker]) -> None:
    brokers[0].mood.does = "hold"
    limits = Limits(max_pending_messages=3, max_message_bytes=100)
    async with Producer(brokers[0].address, limits=limits) as producer:
        futures = [producer.submit("t", b"%d" % number) for number in range(3)]
        with pytest.raises(ProducerFull, match=r"3 messages .* max_pending_messages=3"):
            producer.submit("t", b"3")
        with pytest.raises(TypeError, match="not int"):
            producer.submit("t", 5)  # type: ignore[arg-type]
        # Who waits for the answer waits, and is refused nothing.
        publish = asyncio.create_task(producer.publish("t", b"4"))
        await brokers[0].until(brokers[0].bodies)
        assert not any(future.done() for future in futures)
        brokers[0].mood.does = "store"
        brokers[0].mood.answer()
        await asyncio.gather(*futures, publish)
        await producer.submit("t", b"5")
        assert producer.stats.pending_messages == 0
        gone = producer.submit("t", b"6")
        gone.cancel()
        await producer.publish("t", b"7")
    assert brokers[0].bodies() == [b"0", b"1", b"2", b"4", b"5", b"7"]


async def test_submit_is_limited_by_bytes_too(brokers: list[MoodyBroker]) -> None:
    limits = Limits(max_pending_bytes=100)
    async with Producer(brokers[0].address, limits=limits) as producer:
        one = producer.submit("t", b"x" * 500)
        with pytest.raises(ProducerFull, match="max_pending_bytes=100"):
            producer.submit("t", b"x")
        await one
        await producer.submit("t", b"x")


async def test_closing_does_not_wait_for_a_silent_broker(brokers: list[MoodyBroker]) -> None:
    async with (
        ScriptedBroker(silent_at("IDENTIFY")) as silent,
        asyncio.timeout(50),
        Producer([brokers[0].address, silent.address]) as producer,
    ):
        await producer.publish("t", b"x")


async def test_a_silent_lookup_daemon_delays_no_publish(brokers: list[MoodyBroker]) -> None:
    async with (
        ScriptedBroker() as says_nothing,  # For HTTP it is that.
        asyncio.timeout(50),
        Producer(brokers[0].address, lookup=says_nothing.address) as producer,
    ):
        await producer.publish("t", b"x")
    assert brokers[0].bodies() == [b"x"]


async def test_a_search_that_breaks_begins_again(
    brokers: list[MoodyBroker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(pool, "REVIVAL_S", 0.01)
    searches = 0

    async def watch(self: Discovery) -> None:
        nonlocal searches
        searches += 1
        if searches == 1:
            raise KeyError("on purpose")
        self._on_found([Address.parse(brokers[0].address)], True)
        await asyncio.Event().wait()

    monkeypatch.setattr(Discovery, "watch", watch)
    async with asyncio.timeout(50), Producer(lookup="127.0.0.1:1") as producer:
        await producer.publish("t", b"x")
    assert "begins again" in caplog.text


async def test_a_batch_that_cannot_be_encoded_fails_and_delays_no_other(
    brokers: list[MoodyBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ProducerBatch.command

    def broken(self: ProducerBatch, now_s: float) -> bytes:
        if self.pendings[0].topic == "broken":
            raise KeyError("on purpose")
        return command(self, now_s)

    monkeypatch.setattr(ProducerBatch, "command", broken)
    async with asyncio.timeout(50), Producer(brokers[0].address) as producer:
        topics = ["before", "broken", "behind"]
        futures = [producer.submit(topic, b"x", order_key="k") for topic in topics]
        with pytest.raises(KeyError, match="on purpose"):
            await futures[1]
        await asyncio.gather(futures[0], futures[2])
        await producer.publish("after", b"x")
        assert producer.stats.pending_messages == 0
        assert producer.stats.brokers[0].in_flight_messages == 0
    assert [command.words[1] for command in brokers[0].commands] == ["before", "behind", "after"]


async def test_a_send_that_is_never_answered_holds_up_publishes_until_it_fails() -> None:
    script = at("SEND", act=lambda peer: peer.hang_up())
    async with (
        asyncio.timeout(50),
        ScriptedBroker(script, martlet={"version": 1}) as broker,
        Producer(broker.address, backoff=FAST) as producer,
    ):
        await connected(producer, 1)
        send = producer.send_async("t", b"send")
        publish = producer.submit("t", b"publish")
        with pytest.raises(PublishLost, match="sent 3 times"):
            await send
        await publish
        assert broker.names() == ["SEND"] * 3 + ["PUB"]


async def test_publishes_behind_a_refused_one_do_not_count_as_attempts() -> None:
    async def refuse_first(command: Command) -> bool:
        if command.bodies != [b"refused"]:
            return bool(held)
        held.append(command)
        return True

    held: list[Command] = []
    async with (
        asyncio.timeout(50),
        ScriptedBroker(refuse_first) as broker,
        Producer(broker.address, backoff=FAST, retries=0) as producer,
    ):
        refused = producer.submit("t", b"refused")
        await broker.until(lambda: held)
        behind = producer.submit("u", b"behind")
        await broker.until(lambda: len(broker.commands) == 2)
        held.pop().peer.fail(b"E_PUB_FAILED PUB failed disk full")
        with pytest.raises(PublishRefused, match="disk full"):
            await refused
        await behind
    assert broker.bodies() == [b"refused", b"behind", b"behind"]
