"""Groups: whatever is published, deferred, committed, reset or crashes, nothing is skipped.

One group reads a topic by offset, and goes back now and then, beside a channel; the topic gets more
queues, the disk is full for a while, the broker is killed or loses its power.  What is checked:

- Always: what was promised to be stored was fetched and committed, or is ahead of the group's
  offset, or waits for its time.
- A deferred message is not there before its time; without a crash it is there once.
- What a member went back over is there again, also after a kill; in a power cut it may have been as
  though it had not.
- Offsets go back only by a reset, and in a crash no further than to what was
  written down, and in a power cut durable.
- The lag is how many messages can be fetched from the committed offset on.
- The channel gets every message once, and nothing that is there for the group alone.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.broker.message_life import MessageLife
from tests.unit.broker.core import SECOND_NS, group_of, parse

from martlet.broker.channel.channel import Channel
from martlet.broker.groups.fetch import Fetch
from martlet.broker.topic.offset_reset import reset_group
from martlet.broker.topic.topic import Topic
from martlet.log.record import FRAME_HEADER_BYTES


class Grouped(MessageLife):
    """A broker with a group, and the known state of its messages."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        super().__init__(seed, sync=sync)
        self.core.waits_for_flush = self.core.broker.transfers.waits_for_flush = sync
        self.due_ns: dict[bytes, int] = {}
        self.fetched: dict[int, dict[int, bytes]] = {}
        """By queue: what was fetched, by where the next was then, and not committed."""
        self.handled: set[bytes] = set()
        """Fetched and committed."""
        self.undone: set[bytes] = set()
        """The same, or passed, but a member went back over it since."""
        self.passed: set[bytes] = set()
        """The offset was set forward past it."""
        self.written: dict[int, list[tuple[int, int]]] = {}
        """By queue: (position, offset) of what was written down of the offset, the last first."""
        self.holes = False
        self.core.channel("t", "c")
        self.core.configure(channel="g", kind="offsets")
        self.core.flush()
        self.begin()

    def begin(self) -> None:
        """Begin a life of the broker."""
        self.fetched = {}
        self.offsets = {part.queue.number: part.cursor.next for part in self.at_queues}
        self.other = self.core.client("t", "c").ready(1000)
        self.other_seen = 0
        self.siblings: dict[bytes, int] = {}
        self.brought: set[bytes] = set()

    @property
    def topic(self) -> Topic:
        return self.core.broker.topics["t"]

    @property
    def at_queues(self) -> list[Channel]:
        return self.topic.channels["g"].at_queues

    def ahead(
        self, part: Channel, offset: int, max_count: int = 1 << 30
    ) -> tuple[list[bytes], int]:
        """The bodies that can be fetched from an offset on, and where the next one would be."""
        fetch = Fetch(self.core.broker.log, part.queue, offset, part.id)
        bodies: list[bytes] = []
        while len(bodies) < max_count:
            fetched = fetch.read_on(
                part.source, max_count - len(bodies), self.random.choice([1, 99, 999])
            )
            bodies += [message.body for part in fetched.frames for message in parse(bytes(part))]
            assert fetched.count <= max_count
            if fetched.is_end:
                break
        return bodies, fetch.next

    def check(self) -> None:
        """Look at where all is."""
        super().check()
        there = set(self.handled | self.passed)
        for part in self.at_queues:
            bodies, end = self.ahead(part, part.cursor.next)
            assert end == part.source.limit
            there.update(bodies)
            for body in bodies:
                assert self.core.clock.now_ns >= self.due_ns.get(body, 0), "before its time"
            for offset in part.cursor.pending.by_offset:
                frame = part.cursor.frame(offset, 1)
                assert frame is not None or self.holes
                if frame is not None:
                    there.add(bytes(frame[FRAME_HEADER_BYTES:]))
            if not self.holes:
                ready = part.cursor.pending.ready_count
                assert part.depth == len(bodies) + ready
        lost = self.promised - there
        assert not lost, f"lost: {sorted(lost)}"
        self._look_at_the_channel()

    def _look_at_the_channel(self) -> None:
        got = self.other.got[self.other_seen :]
        self.other_seen += len(got)
        for message in got:
            assert message.body not in self.siblings, "twice, or once for the group alone"
            self.siblings[message.body] = 1

    # what happens

    def publish(self) -> None:
        part = self.random.choice(self.topic.at_queues)
        for _ in range(self.random.choice([1, 1, 3, 9])):
            body = self.body()
            self.published[body] = part.stage([body])
        self.core.broker.commit()

    def defer(self) -> None:
        part = self.random.choice(self.topic.at_queues)
        due_ns = self.core.clock.now_ns + self.random.choice([1, SECOND_NS, 3 * SECOND_NS])
        bodies = [self.body() for _ in range(self.random.choice([1, 3]))]
        receipt = part.stage(bodies, due_ns)
        for body in bodies:
            self.published[body], self.due_ns[body] = receipt, due_ns

    def fetch(self) -> None:
        part = self.random.choice(self.at_queues)
        number = part.queue.number
        offset = self.offsets.setdefault(number, 0)
        max_count = self.random.choice([1, 2, 5, 100])
        bodies, self.offsets[number] = self.ahead(part, offset, max_count)
        assert len(bodies) <= max_count
        kept = self.fetched.setdefault(number, {})
        for at, body in enumerate(bodies):
            kept[self.offsets[number] * 1000 + at] = body
            if not self.crashed:
                assert body not in self.brought, "fetched twice, though nothing was set back"
            self.brought.add(body)

    def commit(self) -> None:
        part = self.random.choice(self.at_queues)
        number = part.queue.number
        offset = self.offsets.get(number, 0)
        before = part.cursor.next
        assert group_of(part).commit(offset) == max(before, offset) == part.cursor.next
        self.handled.update(self.fetched.pop(number, {}).values())
        assert group_of(part).commit(self.random.randrange(offset + 1)) == part.cursor.next

    def reset(self) -> None:
        part = self.random.choice(self.at_queues)
        number = part.queue.number
        start, limit = self._bounds(part)
        offset = self.random.randint(start, limit)
        channel = self.topic.channels["g"]
        before = part.cursor.next
        ahead = self.ahead(part, before)[0]
        if self.refused(lambda: reset_group(self.topic, channel, [number], "offset", 0, offset)):
            assert part.cursor.next == before
            return
        assert part.cursor.next == offset
        if offset > before:
            self.passed.update(set(ahead) - set(self.ahead(part, offset)[0]))
        self.crashed = True  # What was fetched may come again.
        self.offsets[number] = offset
        self.fetched.pop(number, None)
        self._written_down(part)

    def go_back(self) -> None:
        part = self.random.choice(self.at_queues)
        number, before = part.queue.number, part.cursor.next
        start, _ = self._bounds(part)
        target = self.random.randint(0, before)
        offset = max(target, min(start, before))
        ahead = set(self.ahead(part, before)[0])
        answers: list[int] = []
        if self.refused(lambda: answers.append(group_of(part).go_back(target))):
            assert part.cursor.next == before
            return
        assert answers == [offset] == [part.cursor.next]
        again = set(self.ahead(part, offset)[0])
        self.undone |= (again - ahead) & (self.handled | self.passed)
        self.handled -= again
        self.passed -= again
        self.brought -= again
        self.offsets[number] = offset
        self.fetched.pop(number, None)
        if offset < before:
            self._written_down(part)

    def _bounds(self, part: Channel) -> tuple[int, int]:
        limit = part.source.limit
        return min(part.queue.start_offset, limit), limit

    def grow(self) -> None:
        if len(self.at_queues) < 3:
            self.refused(lambda: self.core.broker.set_queues("t", len(self.at_queues) + 1))

    def pause(self) -> None:
        self.refused(lambda: self.topic.pause_channel("g", True))

    def unpause(self) -> None:
        self.refused(lambda: self.topic.pause_channel("g", False))

    def finish(self) -> None:
        """The channel's consumer has done with all, or the log would keep it for that."""
        for number in range(len(self.other.got)):
            id = self.other.got[number].id
            queue = next(p for p in self.topic.at_queues if self._is_of(p, id))
            channel = queue.channels["c"]
            offset = channel.queue.offset_of(id)
            for consumer in channel.consumers:
                if channel.cursor.window.holds(consumer.number, offset):
                    channel.finish(consumer, offset)

    def _is_of(self, part: Topic, id: bytes) -> bool:
        return part.queue.offset_of(id) < part.queue.end_offset

    def wait(self) -> None:
        self.core.wait(self.random.choice([0, 1, SECOND_NS, 3 * SECOND_NS]))

    def journal(self) -> None:
        if not self.refused(self.core.broker.write_journal):
            for part in self.at_queues:
                self._written_down(part)

    def _written_down(self, part: Channel) -> None:
        written = self.written.setdefault(part.queue.number, [])
        written.insert(0, (self.core.broker.log.position, part.cursor.next))

    def kill(self) -> None:
        self._crash(power=False)

    def cut_power(self) -> None:
        self._crash(power=self.sync)

    def _crash(self, *, power: bool) -> None:
        self.make_room()
        durable = self.core.broker.log.durable_position if power else 1 << 62
        if power:
            self.lose_power()
            self.handled |= self.undone
            self.holes = True
        self.crashed = True
        self.core.kill(power=power)
        # A later entry may have survived that was not durable, an earlier one must have.
        for part in self.at_queues:
            written = self.written.get(part.queue.number, [])
            sure = next(
                (at for at, (position, _) in enumerate(written) if position <= durable), None
            )
            if sure is not None:
                min_value = min(offset for _, offset in written[: sure + 1])
                assert part.cursor.next >= min_value, "it goes back behind what was written down"
            self._written_down(part)
        self.begin()

    def drain(self) -> None:
        """In the end all is fetched that was not."""
        self.make_room()
        self.unpause()
        for _ in range(12):
            self.core.wait(SECOND_NS)
            self.flush()
        assert not self.core.broker.transfers
        self.check()
        for part in self.at_queues:
            assert not part.cursor.pending.by_offset
            assert part.deferred_count == 0
            bodies, end = self.ahead(part, part.cursor.next)
            group_of(part).commit(end)
            self.handled.update(bodies)
            assert part.depth == 0
        assert not self.promised - self.handled - self.passed


STEPS = [
    *["publish"] * 4,
    *["defer"] * 3,
    *["fetch"] * 6,
    *["commit"] * 4,
    *["wait"] * 4,
    *["finish"] * 2,
    *["journal"] * 2,
    *["checkpoint"] * 3,
    *["flush"] * 2,
    "reset",
    *["go_back"] * 2,
    "grow",
    "pause",
    "unpause",
    "fill",
    "make_room",
    "kill",
    *["cut_power"] * 2,
]
steps = st.lists(st.sampled_from(STEPS), min_size=20, max_size=80)


@settings(max_examples=30, derandomize=True)
@given(steps, st.integers(0, 1 << 16), st.booleans())
def test_nothing_is_skipped(steps: list[str], seed: int, sync: bool) -> None:
    Grouped(seed, sync=sync).live(steps)


@pytest.mark.slow
@settings(max_examples=3000)
@given(steps, st.integers(0, 1 << 16), st.booleans())
def test_nothing_is_skipped_for_long(steps: list[str], seed: int, sync: bool) -> None:
    Grouped(seed, sync=sync).live(steps)
