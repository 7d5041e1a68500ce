"""Pull consumers over real brokers: shared, left, killed, reset; nothing missed, all in order."""

from __future__ import annotations

import asyncio
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.kit import take
from tests.interop.connections import connected
from tests.polling import until
from tests.unit.client.consumer.consuming import refused, running

from martlet.broker.groups.membership import Membership
from martlet.client import (
    Backoff,
    CallRefused,
    Consumer,
    Identity,
    Message,
    PullConsumer,
    PulledMessage,
    QueueId,
    Reject,
    Requeue,
    SubscribeRefused,
)
from martlet.client.group.assignment.membership import BrokerMembership
from martlet.client.transport.calls import Answer
from martlet.properties.model import Properties
from martlet.testing import Broker, BrokerProcess
from martlet.testing.ports import free_port

FAST = Backoff(first_s=0.01, max_s=0.05)
QUEUES = 8
LIMIT_S = 60.0


def with_queues(broker: Broker, count: int, topic: str = "t") -> None:
    broker.server.broker.topic(topic)
    broker.server.broker.set_queues(topic, count)


def put(broker: Broker, bodies: Sequence[bytes], queue: int = 0, topic: str = "t") -> None:
    """Store messages in one queue, at once."""
    broker.server.broker.topic(topic).at_queue(queue).stage(list(bodies))
    broker.server.broker.commit()


def fill(broker: Broker, count: int, start: int = 0) -> list[bytes]:
    """Publish messages to each of 8 queues; return all of them."""
    for queue in range(QUEUES):
        put(broker, [b"%d %d" % (queue, n) for n in range(start, start + count)], queue)
    return [b"%d %d" % (q, n) for q in range(QUEUES) for n in range(start, start + count)]


async def call(broker: Broker | BrokerProcess, method: str, **fields: Any) -> dict[str, Any]:
    async with connected(broker) as connection:
        return dict((await connection.call(method, **fields)).fields)


def member(at: Broker | BrokerProcess | Sequence[str], **settings: Any) -> PullConsumer:
    """A member of the group, of a broker or of the brokers at these addresses."""
    defaults: dict[str, Any] = {
        "start": "first",
        "backoff": FAST,
        "commit_every_s": 0.05,
        "retry": FAST,
    }
    addresses = at.tcp_address if isinstance(at, Broker | BrokerProcess) else at
    return PullConsumer("t", "g", addresses, **(defaults | settings))


def members_of(broker: Broker) -> Membership:
    """The members that the broker knows."""
    group = broker.server.broker.find_topic("t").find_channel("g").group
    assert group is not None
    return group.members


def post_of(consumer: PullConsumer) -> BrokerMembership:
    """What the consumer is at its only broker."""
    (post,) = consumer._brokers.sessions
    assert isinstance(post, BrokerMembership)
    return post


class Ledger:
    """Messages that handlers got, by queue, in their order."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.offsets: dict[QueueId, list[int]] = defaultdict(list)
        self.bodies: set[bytes] = set()
        self.count = 0
        self._delay_s = delay_s

    async def handle(self, message: PulledMessage) -> None:
        self.offsets[message.place].append(message.offset)
        await asyncio.sleep(self._delay_s)
        self.bodies.add(message.body)
        self.count += 1

    def check_order(self) -> None:
        for queue, offsets in self.offsets.items():
            assert offsets == sorted(offsets), queue


async def test_members_share_the_queues_and_each_message_is_handled(broker: Broker) -> None:
    with_queues(broker, QUEUES)
    published = set(fill(broker, 50))
    ledgers = [Ledger(0.001), Ledger(0.001), Ledger(0.001)]
    tasks: list[asyncio.Task[None]] = []
    async with Consumer("t", "channel", broker.tcp_address) as channel:
        seen: set[bytes] = set()
        one, two, three = (
            member(broker, identity=Identity(client_id=name)) for name in ("one", "two", "three")
        )
        async with one:
            assert len(one.assignment) == QUEUES
            tasks.append(asyncio.create_task(one.run(ledgers[0].handle)))
            await until(lambda: ledgers[0].count > 20)
            async with two:
                tasks.append(asyncio.create_task(two.run(ledgers[1].handle)))
                await until(lambda: len(one.assignment) == len(two.assignment) == QUEUES // 2)
                await until(lambda: ledgers[1].count > 20)
                # The one leaves, a third one joins.
                await one.close()
                async with three:
                    tasks.append(asyncio.create_task(three.run(ledgers[2].handle)))
                    await until(lambda: len(three.assignment) == QUEUES // 2)
                    published |= set(fill(broker, 20, 50))
                    # The second one dies.
                    for post in two._brokers.sessions:
                        assert post.connection is not None
                        post._closing.set()
                        post.connection.abort()
                    await until(lambda: len(three.assignment) == QUEUES)
                    await until(
                        lambda: set().union(*(ledger.bodies for ledger in ledgers)) >= published
                    )
                    await until(lambda: three._brokers.sessions[0].held[0].at_work == 0)
        await asyncio.gather(*tasks)
        for ledger in ledgers:
            ledger.check_order()
        # They did not have to be handled twice, but for what the killed one had not committed.
        assert sum(ledger.count for ledger in ledgers) < len(published) + QUEUES * 25

        async def handle(message: Message) -> None:
            seen.add(message.body)
            if seen >= published:
                channel.stop()

        async with asyncio.timeout(LIMIT_S):
            await channel.run(handle)
    description = await call(broker, "group.describe", topic="t", group="g")
    assert (description["members"], description["lag"]) == ([], 0)


async def test_only_unfinished_messages_come_again(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker) as consumer:
        async for message in consumer:
            if message.offset == 4:
                break
    async with member(broker) as consumer:
        assert consumer.position(0) == 4
        async for message in consumer:
            if message.offset == 6:
                message.finish()
                break
    async with member(broker) as consumer:
        assert consumer.position(0) == 7
        assert [m.offset for m in await take(consumer, 3)] == [7, 8, 9]


async def test_without_auto_commit_nothing_but_commit_commits(broker: Broker) -> None:
    """Neither the end of a consumer nor a queue that goes to another commits what was handled."""
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker, auto_commit=False) as consumer:
        assert [m.offset for m in await take(consumer, 4)] == [0, 1, 2, 3]
        await consumer.commit()
        assert [m.offset for m in await take(consumer, 3)] == [4, 5, 6]
        assert consumer.committed(0) == 4
    with_queues(broker, 2)
    put(broker, [b"other"], 1)
    async with member(broker, auto_commit=False) as consumer:
        handled = {(m.queue, m.offset) for m in await take(consumer, 7)}
        assert handled == {(0, n) for n in range(4, 10)} | {(1, 0)}
        async with member(broker, auto_commit=False) as other:
            await until(lambda: other.assignment)
            moved = other.assignment[0].queue
            assert other.position(moved) == (4, 0)[moved]
    description = await call(broker, "group.describe", topic="t", group="g")
    assert [queue["offset"] for queue in description["queues"]] == [4, 0]


async def test_a_commit_in_the_revoked_hook_is_resumed_from(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])

    async def keep(_queues: Sequence[QueueId]) -> None:
        await consumer.commit()

    async with member(broker, auto_commit=False, on_revoked=keep) as consumer:
        assert [m.offset for m in await take(consumer, 4)] == [0, 1, 2, 3]
    async with member(broker) as consumer:
        assert consumer.position(0) == 4


async def test_a_message_left_by_a_loop_is_the_first_of_the_next_loop(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker) as consumer:
        async for message in consumer:
            if message.offset == 2:
                break
        async for batch in consumer.batches(max_messages=3):
            if 9 in batch.offsets:
                break
            assert batch.offsets.tolist() in ([2], [3, 4, 5], [6, 7, 8])
        async for message in consumer:
            assert message.offset == 9
            await consumer.commit()
            break
        assert consumer.committed(0) == 10


async def test_a_new_group_begins_at_its_start_setting_and_an_old_one_resumes(
    broker: Broker,
) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    await asyncio.sleep(0.002)
    moment = datetime.now(UTC)
    put(broker, [b"%d" % n for n in range(10, 20)])
    cases: list[tuple[str, Any, int]] = [
        ("first", "first", 0),
        ("last", "last", 20),
        ("time", moment, 10),
        ("offset", 13, 13),
    ]
    for group, start, offset in cases:
        async with PullConsumer("t", group, broker.tcp_address, start=start) as consumer:
            assert consumer.position(0) == offset, start
            if start == "last":
                put(broker, [b"new"])
            async for message in consumer:
                assert message.offset == offset
                break
        async with PullConsumer("t", group, broker.tcp_address, start="last") as consumer:
            assert consumer.position(0) == offset, start


async def test_a_pull_consumer_seeks_in_a_queue(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    await asyncio.sleep(0.002)
    moment = datetime.now(UTC)
    put(broker, [b"%d" % n for n in range(10, 20)])
    async with member(broker) as consumer:
        targets: list[tuple[Any, int]] = [(15, 15), ("first", 0), (moment, 10), (3, 3)]
        for to, offset in targets:
            await consumer.seek(0, to)
            assert consumer.lag(0) == 20 - offset
            assert [m.offset for m in await take(consumer, 2)] == [offset, offset + 1]
        await consumer.seek(consumer.assignment[0], "last")
        put(broker, [b"new"])
        assert [m.body for m in await take(consumer, 1)] == [b"new"]
        with pytest.raises(ValueError, match="queue 7 of topic t is not assigned to this"):
            await consumer.seek(7, 0)


async def test_a_seek_beyond_the_end_is_a_seek_to_the_end(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker) as consumer:
        await until(lambda: consumer.lag(0) == 10)
        put(broker, [b"%d" % n for n in range(10, 20)])
        await consumer.seek(0, 1000)
        assert consumer.position(0) == 20
        assert "offset 1000 is above the end; continues at offset 20" in caplog.text
        await consumer.seek(0, 20)
        assert consumer.position(0) == 20
        put(broker, [b"new"])
        assert [m.body for m in await take(consumer, 1)] == [b"new"]
    assert caplog.text.count("above the end") == 1


async def test_a_seek_back_counts_though_a_commit_is_answered_late(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(broker, [b"%d" % n for n in range(20)])
    async with member(broker, commit_every_s=60) as consumer:
        await take(consumer, 10)
        connection = post_of(consumer).connection
        assert connection is not None
        call_at_once = connection.call
        taken, answered = asyncio.Event(), asyncio.Event()

        async def call_late(method: str, **fields: Any) -> Answer:
            answer = await call_at_once(method, **fields)
            if method == "group.commit":
                taken.set()
                await answered.wait()
            return answer

        monkeypatch.setattr(connection, "call", call_late)
        committing = asyncio.create_task(consumer.commit())
        await taken.wait()
        await consumer.seek(0, 3)
        answered.set()
        await committing
        await consumer.commit()
        assert consumer.committed(0) == 3
    description = await call(broker, "group.describe", topic="t", group="g")
    assert description["queues"][0]["offset"] == 3


async def test_a_queue_that_is_paused_waits_and_the_others_go_on(broker: Broker) -> None:
    with_queues(broker, 2)
    async with member(broker) as consumer:
        consumer.pause(0)
        put(broker, [b"a", b"b"], 0)
        put(broker, [b"c"], 1)
        assert [m.body for m in await take(consumer, 1)] == [b"c"]
        consumer.resume(0)
        assert [m.body for m in await take(consumer, 2)] == [b"a", b"b"]


async def test_a_group_that_was_reset_while_it_was_empty(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker) as consumer:
        await take(consumer, 10)
    await call(broker, "group.reset", topic="t", group="g", to="offset", offset=6)
    async with member(broker) as consumer:
        assert [m.offset for m in await take(consumer, 4)] == [6, 7, 8, 9]
        with pytest.raises(CallRefused, match="has 1 member, "):
            await call(broker, "group.reset", topic="t", group="g", to="first")
        await call(broker, "group.reset", topic="t", group="g", to="first", force=True)
        assert [m.offset for m in await take(consumer, 3)] == [0, 1, 2]


async def test_groups_whose_dead_letter_topics_form_a_cycle_keep_the_message(
    broker: Broker,
) -> None:
    put(broker, [b"bad"])
    for topic, following in (("t", "d"), ("d", "t")):
        async with PullConsumer(topic, "g", broker.tcp_address, start="first"):
            pass
        policy = {"dead_letter_topic": following}
        await call(broker, "channel.configure", topic=topic, channel="g", policy=policy)

    shown: dict[str, Any] = {}
    for topic, where in (("t", "d"), ("d", "d.g.dead")):
        async with PullConsumer(topic, "g", broker.tcp_address, start="first") as consumer:

            async def reject(message: PulledMessage, consumer: PullConsumer = consumer) -> None:
                consumer.stop()
                raise Reject("no")

            await consumer.run(reject)
        shown = await call(broker, "dead_letters.show", dead_letter_topic=where)
        assert [letter["topic"] for letter in shown["messages"]] == [topic]
    assert shown["messages"][0]["instead_of"] == "t"
    assert broker.server.broker.topics["t"].message_count == 1


async def test_a_handler_that_fails_holds_up_its_queue_and_then_is_a_dead_letter(
    broker: Broker,
) -> None:
    put(broker, [b"good", b"bad", b"later", b"unreadable", b"last"])
    handled: list[tuple[bytes, int]] = []

    async def handle(message: PulledMessage) -> None:
        handled.append((message.body, message.attempts))
        if message.body == b"bad":
            raise RuntimeError(f"no {message.attempts}")
        if message.body == b"later" and len(handled) == 5:
            raise Requeue(5)
        if message.body == b"unreadable":
            raise Reject("no JSON")
        if message.body == b"last":
            consumer.stop()

    async with member(broker, max_attempts=3) as consumer:
        await consumer.run(handle)
        assert consumer.current_counts.dead == 2
    bad = [(b"bad", attempt) for attempt in (1, 2, 3)]
    rest = [(b"later", 1), (b"later", 1), (b"unreadable", 1), (b"last", 1)]
    assert handled == [(b"good", 1), *bad, *rest]
    listed = await call(broker, "dead_letters.list")
    assert [topic["dead_letter_topic"] for topic in listed["dead_letter_topics"]] == ["t.g.dead"]
    back = await call(broker, "dead_letters.redrive", topic="t", channel="g", reason="rejected")
    assert back["count"] == 1
    async with member(broker) as consumer:
        assert [m.body for m in await take(consumer, 1)] == [b"unreadable"]
    async with Consumer("t.g.dead", "dead-letters", broker.tcp_address) as dead:
        message = await anext(dead)
        assert message.body == b"bad"
        assert {
            "dead_reason": "max_attempts",
            "dead_first_error": "RuntimeError: no 1",
            "dead_last_error": "RuntimeError: no 3",
            "dead_topic": "t",
            "dead_channel": "g",
            "dead_offset": "1",
        }.items() <= message.properties.system.items()


async def test_a_message_is_not_finished_while_its_giving_up_hook_fails(broker: Broker) -> None:
    put(broker, [b"bad"])
    kept: list[int] = []

    def keep(message: PulledMessage) -> None:
        kept.append(message.attempts)
        if len(kept) < 3:
            raise OSError("no room")
        consumer.stop()

    def fail(message: PulledMessage) -> None:
        raise RuntimeError

    async with member(broker, max_attempts=2, on_giving_up=keep) as consumer:
        await consumer.run(fail)
    assert kept == [2, 3, 4]
    async with member(broker) as consumer:
        assert consumer.position(0) == 1


async def test_a_broker_that_was_started_again_is_joined_again(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    ledger, consumer = Ledger(), member(address)
    async with AsyncExitStack() as stack:
        for start in (0, 500):
            async with Broker(tmp_path, tcp_address=address) as broker:
                if not start:
                    with_queues(broker, QUEUES)
                    await consumer.__aenter__()
                    await stack.enter_async_context(running(consumer, ledger.handle))
                published = {b"%d" % n for n in range(start, start + 500)}
                for queue in range(QUEUES):
                    numbers = range(start + queue, start + 500, QUEUES)
                    put(broker, [b"%d" % n for n in numbers], queue)
                await until(lambda published=published: ledger.bodies >= published)  # type: ignore[misc]
                if start:
                    await consumer.close()
    assert len(ledger.bodies) == 1000


async def test_a_member_that_was_away_too_long_joins_again_and_undoes_nothing(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    put(broker, [b"%d" % n for n in range(10)])
    async with member(broker, commit_every_s=60) as slow:
        messages = slow.__aiter__()
        assert (await anext(messages)).offset == 0
        # The broker takes it for dead; another has the queue meanwhile.
        members = members_of(broker)
        first = next(iter(members.members.values()))
        async with member(broker) as other:
            members.leave(first)
            assert [m.offset for m in await take(other, 5)] == list(range(5))
            await other.commit()
        # That the first one is done now counts for nothing.
        assert (await anext(messages)).offset == 5
        await slow.commit()
        assert slow.committed(0) == 6
        assert [m.offset for m in await take(slow, 4)] == [6, 7, 8, 9]
    description = await call(broker, "group.describe", topic="t", group="g")
    assert description["queues"][0]["offset"] == 10


async def test_queues_come_and_go_with_a_word(broker: Broker) -> None:
    with_queues(broker, 2)
    events: list[tuple[str, list[int]]] = []

    async def assigned(queues: Sequence[QueueId]) -> None:
        events.append(("assigned", [queue.queue for queue in queues]))

    def revoked(queues: Sequence[QueueId]) -> None:
        events.append(("revoked", [queue.queue for queue in queues]))

    put(broker, [b"slow"], 0)
    put(broker, [b"slow"], 1)
    at_work: set[int] = set()
    release = asyncio.Event()

    async def handle(message: PulledMessage) -> None:
        at_work.add(message.queue)
        await release.wait()

    async with (
        member(broker, on_assigned=assigned, on_revoked=revoked) as one,
        running(one, handle, concurrency=2),
    ):
        await until(lambda: at_work == {0, 1})
        async with member(broker) as two:
            await until(lambda: any(h.hold.value == "leaving" for h in one._all_held()))
            assert not two.assignment
            assert events == [("assigned", [0, 1])]
            release.set()
            await until(lambda: two.assignment)
            queue = two.assignment[0].queue
            assert two.position(queue) == 1
            assert events == [("assigned", [0, 1]), ("revoked", [queue])]
        await until(lambda: len(one.assignment) == 2)
        assert events[2:] == [("assigned", [queue])]
    assert events[3:] == [("revoked", [0, 1])] or events[3:] == [("revoked", [1, 0])]


async def test_messages_have_their_properties_and_tags_are_filtered(broker: Broker) -> None:
    part = broker.server.broker.topic("t")
    red, blue = Properties(tag="red", keys=("k",)), Properties(tag="blue")
    properties = [(n, (red if n % 3 == 0 else blue).pack()) for n in range(30)]
    part.stage([b"%d" % n for n in range(30)], 0, properties)
    broker.server.broker.commit()
    async with member(broker, tags="red", fetch_messages=4) as consumer:
        got = [(m.offset, m.body, m.properties) for m in await take(consumer, 10)]
        assert got == [(n, b"%d" % n, red) for n in range(0, 30, 3)]
        await until(lambda: consumer.position(0) == 30)
        await consumer.commit()
        assert consumer.committed(0) == 30
    async with PullConsumer("t", "all", broker.tcp_address, start="first") as consumer:
        async for batch in consumer.batches():
            assert batch.offsets.tolist() == list(range(30))
            tags = [properties.tag for properties in batch.properties[:3]]
            assert tags == ["red", "blue", "blue"]
            break


async def test_batches_are_of_one_queue_and_done_in_order(broker: Broker) -> None:
    with_queues(broker, QUEUES)
    published = set(fill(broker, 100))
    bodies: list[bytes] = []
    async with member(broker) as consumer:
        async for batch in consumer.batches(max_messages=40):
            assert batch.count <= 40
            assert batch.offsets[0] + batch.count - 1 == batch.offsets[-1]
            assert all(body.split()[0] == b"%d" % batch.queue for body in batch.bodies)
            bodies += batch.bodies
            if len(bodies) == len(published):
                batch.finish()
                break
        await consumer.commit()
    assert set(bodies) == published
    assert len(bodies) == len(published)
    description = await call(broker, "group.describe", topic="t", group="g")
    assert description["lag"] == 0


async def test_a_slow_handler_of_large_messages_has_few_of_them_here(broker: Broker) -> None:
    for _ in range(13):
        put(broker, [bytes(100_000)] * 8)
    max_count = 0
    async with member(broker, max_bytes=1_000_000, fetch_bytes=300_000) as consumer:
        held = consumer._all_held()[0]
        count = 0
        async for _ in consumer:
            await asyncio.sleep(0.002)  # Time for more to come.
            max_count = max(max_count, held.size_bytes)
            count += 1
            if count == 104:
                break
    assert 500_000 < max_count <= 1_100_000


async def test_a_span_of_offsets_holds_up_fetching(broker: Broker) -> None:
    put(broker, [b"%d" % n for n in range(500)])
    release = asyncio.Event()
    handled: set[int] = set()

    async def handle(message: PulledMessage) -> None:
        if message.offset == 0:
            await release.wait()
        handled.add(message.offset)

    async with (
        member(broker, max_span=100, fetch_messages=10) as consumer,
        running(consumer, handle, concurrency=2),
    ):
        await until(lambda: len(handled) == 99)
        await asyncio.sleep(0.02)
        assert handled == set(range(1, 100))
        release.set()
        await until(lambda: len(handled) == 500)


async def test_a_member_alone_has_the_queues_of_all_brokers(broker: Broker) -> None:
    async with Broker() as second:
        addresses = [broker.tcp_address, second.tcp_address]
        for started in (broker, second):
            with_queues(started, 2)
            put(started, [b"x"], 1)
        async with PullConsumer("t", "g", addresses, start="first") as consumer:
            assert set(consumer.assignment) == {QueueId(a, q) for a in addresses for q in (0, 1)}
            got = {m.place for m in await take(consumer, 2)}
            assert got == {QueueId(address, 1) for address in addresses}
            with pytest.raises(ValueError, match=r"say \(broker, queue\)"):
                consumer.position(1)
            assert consumer.position((addresses[0], 1)) == 1


async def test_settings_that_a_broker_refuses_are_reported(broker: Broker) -> None:
    async with (
        PullConsumer("t", "g", broker.tcp_address),
        Consumer("t", "channel", broker.tcp_address),
    ):
        await refused(
            PullConsumer("t", "g", broker.tcp_address, strategy="averagely"),
            SubscribeRefused,
            "strategy",
        )
        await refused(PullConsumer("t", "channel", broker.tcp_address), SubscribeRefused, "channel")


async def test_a_coroutine_function_is_not_run_in_a_thread(broker: Broker) -> None:
    """Nothing would await it there, and its messages would be done without being handled."""
    put(broker, [b"one", b"two"], 0)

    async def handle(message: PulledMessage) -> None:
        raise AssertionError

    async with member(broker) as consumer:
        with pytest.raises(ValueError, match="is a coroutine function"):
            await consumer.run(handle, on="threads")
        assert consumer.stats.counts.finished == 0


async def test_an_exit_in_a_thread_is_a_failure_and_not_the_loops_end(broker: Broker) -> None:
    put(broker, [b"one"], 0)
    seen: list[int] = []

    def handle(message: PulledMessage) -> None:
        seen.append(message.attempts)
        if len(seen) == 1:
            sys.exit(3)

    async with member(broker) as consumer, running(consumer, handle, on="threads"):
        await until(lambda: consumer.stats.counts.finished == 1)
    assert seen == [1, 2]
