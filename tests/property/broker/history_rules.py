"""Operators who have finished messages kept."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from tests.property.broker.beside_model import MILLISECOND_NS, SEGMENT_BYTES
from tests.property.broker.consumer_rules import picks
from tests.property.broker.replay_rules import ReplayRules

from martlet.broker.policy import TopicPolicy
from martlet.log.retention import SegmentLocator


class HistoryRules(ReplayRules):
    pressed = False
    """The disk was ever so full that history may have gone before its time."""

    @rule(
        pick=picks,
        retention_ms=st.sampled_from([None, 0, 300, 4000, 100_000, 10_000_000]),
        retention_bytes=st.sampled_from([None, None, None, 0, SEGMENT_BYTES]),
    )
    def keep_history(
        self, pick: int, retention_ms: int | None, retention_bytes: int | None
    ) -> None:
        if not self.topics:
            return
        topic = list(self.topics.values())[pick % len(self.topics)]
        policy = TopicPolicy(retention_ms=retention_ms, retention_bytes=retention_bytes)
        if not self.refused(lambda: self.real_topic(topic).configure(policy)):
            for part in topic.at_queues:
                part.changed_position = self.position
                part.keep(self.kept_ms(policy))

    @invariant()
    def history_is_stored(self) -> None:
        """Finished messages stay for their time, wherever cleaning has put them."""
        if not hasattr(self, "broker"):
            return
        self.pressed |= self.storage.capacity_bytes is not None
        if self.pressed:
            return
        locator = SegmentLocator(self.broker.log.segments)
        for topic in self.parts():
            index = self.real_topic(topic).queue.index
            rows = index.array(index.first_row, index.end_row)
            rows = rows[locator.find(rows["position"]) >= 0]
            stored: set[int] = set()
            for first, count in zip(rows["first_offset"], rows["count"], strict=True):
                stored.update(range(int(first), int(first) + int(count)))
            # No channel can be set back beyond a gap that a power cut left: nothing is kept there.
            gaps = [offset for offset, message in enumerate(topic.messages) if message.lost]
            for offset, message in enumerate(topic.messages):
                kept_until_ns = message.stored_at_ns + message.kept_ms * MILLISECOND_NS
                is_kept = message.kept_ms and self.clock.now_ns <= kept_until_ns
                if is_kept and offset > max(gaps, default=-1):
                    assert offset in stored, f"{topic.name} {offset} went before its time"
