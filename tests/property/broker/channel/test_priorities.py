"""Priorities deliver as a scan of all queues at each answer would, whatever happens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.core import SECOND_NS, Core
from tests.unit.broker.test_queues import Client

from martlet.broker.channel import partitioned, priority_turns
from martlet.broker.channel.channel import Channel
from martlet.broker.channel.priority_turns import PriorityTurns
from martlet.broker.channel.subscriber import Subscriber
from martlet.broker.policy import ChannelPolicy
from martlet.broker.topic.rewind import replay
from martlet.properties.model import NORMAL_PRIORITY, Properties

MAX_PASSED, TURN = 10, 2
"""Small, so that a short run has many turns."""
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"rate_per_s": 1, "rate_burst": 3},
    {"tags": ["red"]},
)
ORDERS: tuple[dict[str, Any], ...] = ({"order": "key"}, {"order": "queue"})
"""For one client: which one of several gets a message depends on how often a lock is looked at."""
_Op = tuple[str, int, int, int]


class _ScannedLevel:
    """The queues of one priority, all of which are looked at each time."""

    def __init__(self, parts: Sequence[Channel]) -> None:
        self.parts = deque(parts)
        self.passed = 0

    @property
    def has_messages(self) -> bool:
        return any(_has_messages(part) for part in self.parts)

    def deliver(self, subscriber: Subscriber, max_count: int) -> int:
        before, ready_count = subscriber.in_flight_count, subscriber.ready_count
        subscriber.ready_count = min(ready_count, before + max_count)
        for _ in range(len(self.parts)):
            if subscriber.room <= 0:
                break
            part = self.parts[0]
            self.parts.rotate(-1)
            if _has_messages(part):
                part.resume(subscriber.shares[part.queue.number])
        subscriber.ready_count = ready_count
        return subscriber.in_flight_count - before


def _has_messages(part: Channel) -> bool:
    cursor = part.cursor
    waits = cursor.pending.ready_count or part.delivery.limit() > cursor.next
    return bool(waits) and not part.paused


class Scan(PriorityTurns):
    """The turns, each found by a look at all queues."""

    def __init__(self, parts: Sequence[Channel]) -> None:
        super().__init__(parts)
        priorities = sorted({part.queue.priority for part in parts}, reverse=True)
        self._levels: Any = [
            _ScannedLevel([part for part in parts if part.queue.priority == priority])
            for priority in priorities
        ]


class Taker(Client):
    """A client that writes down what it gets, beside what the others get."""

    def __init__(self, core: Core, number: int, log: list[tuple[int, bytes, int]]) -> None:
        self.number = number
        self.log = log
        super().__init__(core)

    def send_messages(self, frames: Any) -> None:
        before = len(self.got)
        super().send_messages(frames)
        self.log += [(self.number, got.body, got.attempts) for got in self.got[before:]]


class Run:
    """A topic, a channel and clients, with the turns of a kind."""

    def __init__(self, turns: type[PriorityTurns], client_count: int) -> None:
        self.core = Core(segment_bytes=1 << 20)
        self.log: list[tuple[int, bytes, int]] = []
        self.published = 0
        self.turns = turns
        core = self.core
        with patch.object(partitioned, "PriorityTurns", turns):
            core.broker.set_queues("t", 3)
            self.topic = core.broker.topics["t"]
            core.broker.queue_of_priority(self.topic, 9)
            self.topic.channel("c")
        self.takers = [Taker(core, number, self.log) for number in range(client_count)]
        self.policies = POLICIES if client_count > 1 else POLICIES + ORDERS

    @property
    def passed(self) -> list[int]:
        """What has passed each level since its last turn."""
        return [level.passed for level in self.takers[0].consumer.turns._levels]

    def publish(self, priority: int, count: int, seconds: int) -> None:
        with patch.object(partitioned, "PriorityTurns", self.turns):
            part = self.core.broker.queue_of_priority(self.topic, priority)
        if priority == NORMAL_PRIORITY:
            part = self.topic.normal_queues[count % len(self.topic.normal_queues)]
        bodies = [b"%d-%d" % (priority, self.published + number) for number in range(count)]
        self.published += count
        properties = [
            (number, Properties(order_key="ab"[number % 2], tag=("", "red")[number % 2]).pack())
            for number in range(count)
        ]
        due_ns = self.core.clock.now_ns + seconds * SECOND_NS if seconds else 0
        assert part.stage(bodies, due_ns, properties).error is None
        self.core.broker.commit()

    def ready(self, number: int, count: int, _: int) -> None:
        self.takers[number % len(self.takers)].ready(count % 7)

    def blocked(self, number: int, is_blocked: int, _: int) -> None:
        taker = self.takers[number % len(self.takers)]
        taker.channel.set_blocked(taker.consumer, is_blocked % 2 == 0)

    def finish(self, number: int, count: int, _: int) -> None:
        taker = self.takers[number % len(self.takers)]
        for _ in range(count):
            if taker.got:
                self.answer(taker, "finish")

    def finish_all(self, number: int, _count: int, _: int) -> None:
        taker = self.takers[number % len(self.takers)]
        held = {got.id: got for got in taker.got if self.holds(taker, got)}
        taker.got = list(held.values())
        if held:
            taker.finish_all()

    def requeue(self, number: int, which: int, seconds: int) -> None:
        taker = self.takers[number % len(self.takers)]
        if taker.got:
            self.answer(taker, "requeue", seconds * SECOND_NS, which=which)

    def touch(self, number: int, _which: int, _: int) -> None:
        taker = self.takers[number % len(self.takers)]
        if taker.got and self.holds(taker, taker.got[0]):
            taker.channel.touch(taker.consumer, taker.position(taker.got[0]))

    def holds(self, taker: Taker, got: Any) -> bool:
        position = taker.position(got)
        queue, offset = position >> 54, position & ((1 << 54) - 1)
        part, share = taker.channel.at_queues[queue], taker.consumer.shares[queue]
        cursor = part.cursor
        return bool(cursor.window.holds(share.number, offset) or cursor.pending.get(offset, share))

    def answer(self, taker: Taker, how: str, *more: int, which: int = 0) -> None:
        got = taker.got.pop(which % len(taker.got))
        if self.holds(taker, got):
            getattr(taker.channel, how)(taker.consumer, taker.position(got), *more)

    def come_again(self, number: int, count: int, _: int) -> None:
        number %= len(self.takers)
        self.takers[number].leave()
        self.takers[number] = Taker(self.core, number, self.log)
        self.takers[number].ready(count % 7)

    def wait(self, _number: int, count: int, seconds: int) -> None:
        self.core.wait(seconds * SECOND_NS + count)

    def time_out(self, _number: int, _count: int, _: int) -> None:
        self.core.wait(60 * SECOND_NS)

    def pause(self, number: int, paused: int, _: int) -> None:
        if number % 2:
            self.topic.pause_channel("c", paused % 3 == 0)
        else:
            self.topic.set_paused(paused % 3 == 0)

    def configure(self, number: int, _count: int, _: int) -> None:
        policy = ChannelPolicy.read(self.policies[number % len(self.policies)])
        self.topic.configure_channel("c", policy)

    def go_back(self, number: int, _count: int, _: int) -> None:
        parts = self.topic.at_queues
        chosen = parts if number % 2 else parts[number % len(parts) :]
        offsets = {part.number: part.channels["c"].cursor.next // 2 for part in chosen}
        replay(self.topic, "c", offsets)

    def empty(self, _number: int, _count: int, _: int) -> None:
        self.core.broker.empty_channel(self.topic, "c")

    def grow(self, _number: int, _count: int, _: int) -> None:
        with patch.object(partitioned, "PriorityTurns", self.turns):
            if len(self.topic.normal_queues) < 6:
                self.core.broker.set_queues("t", len(self.topic.normal_queues) + 1)


FREQUENT = ("publish", "publish", "ready", "finish", "finish", "requeue", "wait")
RARE = (
    *("blocked", "touch", "come_again", "time_out", "pause", "pause"),
    *("configure", "go_back", "empty", "grow", "finish_all"),
)
_ops = st.tuples(
    st.sampled_from(3 * FREQUENT + RARE),
    st.sampled_from([4, 9, 0, 1, 4, 2, 3, 4]),
    st.integers(0, 12),
    st.sampled_from([0, 0, 1, 5]),
)


@given(
    st.sampled_from([1, 3]),
    st.lists(_ops, min_size=5, max_size=60),
)
def test_the_next_message_is_the_one_that_a_scan_of_all_queues_finds(
    client_count: int, ops: list[_Op]
) -> None:
    with (
        patch.object(priority_turns, "MAX_PASSED", MAX_PASSED),
        patch.object(priority_turns, "TURN", TURN),
    ):
        run, scan = Run(PriorityTurns, client_count), Run(Scan, client_count)
        for number, (name, *values) in enumerate(ops):
            if name == "publish":
                values[1] += 1
            getattr(run, name)(*values)
            getattr(scan, name)(*values)
            assert run.log == scan.log, f"operation {number}: {name} {values}"
            assert run.passed == scan.passed, f"operation {number}: {name} {values}"
