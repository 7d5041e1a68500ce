"""Delayed messages beside the model: published, cancelled, due, and where each is after a crash."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.property.broker.beside_model import FRAME, MILLISECOND_NS, BesideModel
from tests.property.broker.model import Message, ModelTopic

from martlet.broker.delayed.bucket import PROPERTY, Bucket
from martlet.broker.errors import WritesRefused
from martlet.broker.retention.eviction import EvictionLoss
from martlet.log.index import IndexEntry
from martlet.log.record import RecordFlag, frame_ends, properties, read_record
from martlet.properties.block import Block
from martlet.properties.model import system_value

delayed_ms = st.sampled_from([1, 40, 400, 400, 3500, 9000, 60_000, 2_000_000])


@dataclass(eq=False)
class ModelDelayed:
    topic: ModelTopic
    body: bytes
    due_ns: int
    position: int
    """Behind its batch in the log."""
    was_due: bool = False
    """It was before the wall clock was set back, so it may have been forwarded."""
    forwarded: Message | None = None
    """The message that it has become."""
    gone_position: int | None = None
    """It was cancelled, or given up; once the log is durable up to here it is for good."""

    @property
    def waits(self) -> bool:
        return self.forwarded is None and self.gone_position is None


class DelayRules(BesideModel):
    """Publishes for later, and looks at what becomes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.delayed: dict[bytes, ModelDelayed] = {}

    if TYPE_CHECKING:  # the machine has them

        def model_topic(self, name: str) -> ModelTopic | None:
            """The topic of that name, made if it is new; None where that is refused."""

        def some_bodies(self, sizes: list[int]) -> list[bytes]: ...

    @rule(
        name=st.sampled_from(["a", "b"]),
        sizes=st.lists(st.integers(1, 90), min_size=1, max_size=5),
        delay_ms=delayed_ms,
        times=st.sampled_from([1, 1, 5]),
    )
    def publish_for_later(self, name: str, sizes: list[int], delay_ms: int, times: int) -> None:
        model = self.model_topic(name)
        if model is None:
            return
        for number in range(times):
            topic = model.at_queues[number % len(model.at_queues)]
            bodies = self.some_bodies(sizes)
            due_ns = self.clock.now_ns + delay_ms * MILLISECOND_NS
            try:
                bucket, first, receipt = self.broker.delays.publish(
                    self.real_topic(topic), bodies, self.date(due_ns)
                )
            except WritesRefused:
                assert self.broker.log.failed is not None or self.broker.log.full is not None
                return
            if receipt.error is not None:
                return
            for number, body in enumerate(bodies):
                id = bucket.queue.message_id(first + number)
                assert id not in self.delayed
                self.delayed[id] = ModelDelayed(topic, body, due_ns, receipt.position)

    @rule(picks=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=6))
    def cancel(self, picks: list[int]) -> None:
        if not self.delayed:
            return
        ids_so_far = list(self.delayed)
        ids = list(dict.fromkeys(ids_so_far[pick % len(ids_so_far)] for pick in picks))
        hidden = self.hidden_ids()
        waited = {id for id in ids if self.delayed[id].waits and id not in hidden}
        for topic in self.topics.values():
            cancelled: set[bytes] = set()
            if self.refused(partial(self._cancel, topic, ids, cancelled)):
                return
            of_topic = {id for id in ids if self.delayed[id].topic in topic.at_queues}
            assert cancelled == {id for id in of_topic if id in waited}

    def _cancel(self, topic: ModelTopic, ids: list[bytes], cancelled: set[bytes]) -> None:
        """One by one, since some may be refused."""
        for id in ids:
            if self.broker.delays.cancel(self.real_topic(topic), [id]):
                cancelled.add(id)
                self.delayed[id].gone_position = self.position

    def last_date_ns(self) -> int:
        return max(super().last_date_ns(), *self.due_times_ns(), 0)

    def shift_dates(self, step_ns: int) -> None:
        super().shift_dates(step_ns)
        for delayed in self.delayed.values():
            delayed.was_due |= delayed.due_ns <= self.clock.now_ns
            delayed.due_ns -= step_ns

    # what becomes of them

    def settle(self) -> None:
        for topic in self.topics.values():
            for part in topic.at_queues:
                self._take_in_forwarded(part)
        super().settle()

    def _take_in_forwarded(self, topic: ModelTopic) -> None:
        """Take in messages of a topic that were delayed and are due now."""
        queue = self.real_topic(topic).queue
        while len(topic.messages) < queue.visible_end:
            entry = queue.index.row(queue.index.find(len(topic.messages)))
            forwarded = self.forwarded_in(entry)
            if not forwarded:
                self.take_in_confirmed(topic)
                continue
            assert entry.first_offset == len(topic.messages)
            for id, body in forwarded:
                delayed = self.delayed[id]
                assert delayed.waits, "what was forwarded, or cancelled, comes again"
                assert (delayed.topic, delayed.body) == (topic, body)
                assert delayed.was_due or delayed.due_ns <= self.clock.now_ns, "before its time"
                position = entry.position + entry.length
                topic.publish([body], 0, position, entry.stored_at_ns - self.stored_ahead_ns)
                delayed.forwarded = topic.messages[-1]

    def forwarded_in(self, entry: IndexEntry) -> list[tuple[bytes, bytes]]:
        """Return the former ids and the bodies of a batch of messages that were delayed; none of
        another batch.
        """
        record = self.broker.log.view(entry.position, entry.length)
        assert record is not None
        header, record = read_record(record, 0, entry.position)
        if not header.flags & RecordFlag.FORWARDED:
            return []
        block = Block(properties(header, record))
        assert len(block) == entry.count
        ends = [0, *frame_ends(header, record).tolist()]
        messages = []
        for number in range(entry.count):
            id = system_value(block.entry(number), PROPERTY)
            assert id is not None
            body = bytes(record[80 + ends[number] + FRAME.size : 80 + ends[number + 1]])
            messages.append((id, body))
        return messages

    def hidden_ids(self) -> set[bytes]:
        """The former ids of messages that are forwarded, and shown to nobody yet."""
        return set()

    def take_in_confirmed(self, topic: ModelTopic) -> None:
        """Take in a batch that was published and is shown only now."""
        raise AssertionError("a batch that nobody has published")

    def bucket_given_up(self, loss: EvictionLoss, position: int) -> None:
        """Delayed messages were dropped for space."""
        for offset in loss.unfinished[None].tolist():
            delayed = self.delayed[loss.topic.queue.message_id(offset)]
            assert delayed.waits
            delayed.gone_position = position
            delayed.topic.dropped_count += 1

    def due_times_ns(self) -> set[int]:
        """When something that waits is due."""
        return {delayed.due_ns for delayed in self.delayed.values() if delayed.waits}

    def waiting_of(self, topic: ModelTopic) -> int:
        """How many messages of a topic wait, as the model has it."""
        hidden = self.hidden_ids()
        return sum(
            delayed.waits and delayed.topic is topic and id not in hidden
            for id, delayed in self.delayed.items()
        )

    def _is_there(self, topic: ModelTopic) -> bool:
        model = self.topics.get(topic.name)
        return model is not None and topic in model.at_queues

    def compare_waiting(self) -> None:
        """The core waits with what the model waits with."""
        self.delayed = {
            id: delayed for id, delayed in self.delayed.items() if self._is_there(delayed.topic)
        }
        wait = {id for id, delayed in self.delayed.items() if delayed.waits} - self.hidden_ids()
        assert self._really_waiting() == wait
        assert self.broker.delays.pending_count == len(wait)

    def _really_waiting(self) -> set[bytes]:
        waiting: set[bytes] = set()
        for topic in self.broker.topics.values():
            *_, shown = self.broker.delays.listing(topic, None, 1 << 20)
            assert shown is not None
            assert [position for position, _ in shown] == sorted(position for position, _ in shown)
            waiting.update(message.id.encode() for _, message in shown)
        buckets = [b for b in self.broker.by_id.values() if isinstance(b, Bucket)]
        assert all(bucket.target is self.broker.by_id[bucket.target.id] for bucket in buckets)
        return waiting

    def compare_after_restart(self, *, power: bool, durable: int) -> None:
        super().compare_after_restart(power=power, durable=durable)
        waiting = self._really_waiting()
        for id, delayed in list(self.delayed.items()):
            topic = delayed.topic
            if not self._is_there(topic):
                del self.delayed[id]
                continue
            was = delayed.forwarded
            if was is not None and (was.lost or not any(m is was for m in topic.messages)):
                assert was.position > durable, "what was forwarded has gone"
                assert id in waiting or delayed.position > durable, "neither here nor there"
                delayed.forwarded = None
            elif was is not None:
                assert id not in waiting, "in both places"
            elif delayed.gone_position is not None:
                assert id not in waiting or delayed.gone_position > durable
                if id in waiting:
                    delayed.gone_position = None
                elif delayed.position > durable:
                    # Nothing may know of it, and its id is another's then.
                    del self.delayed[id]
                    continue
            else:
                assert id in waiting or delayed.position > durable, "a durable one has gone"
            if delayed.waits and id not in waiting:
                assert power
                topic.lost_delayed = True
                del self.delayed[id]
            elif power and delayed.position > durable:
                delayed.position = 0
        assert waiting <= set(self.delayed), "one that was never published"
