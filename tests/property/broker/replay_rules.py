"""Steps of an operator that shows or replays messages."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.property.broker.beside_model import FRAME
from tests.property.broker.consumer_rules import ConsumerRules, picks
from tests.property.broker.model import MessageState, ModelTopic

from martlet.broker.channel.subscriber import Share
from martlet.broker.errors import OutOfReach
from martlet.broker.queue.peek import PeekedFrames, PeekState, peek
from martlet.broker.topic.rewind import channel_from, offset_at, replay

shares = st.integers(0, 100)
"""A place between the oldest and the newest possible offset, in per cent."""
kinds = st.sampled_from(list(PeekState))
STATES = {
    MessageState.FRESH: PeekState.WAITING,
    MessageState.READY: PeekState.DUE,
    MessageState.DEFERRED: PeekState.DEFERRED,
    MessageState.IN_FLIGHT: PeekState.IN_FLIGHT,
}


class ReplayRules(ConsumerRules):
    def _know_what_was_emptied(self, topic: ModelTopic) -> None:
        """A power cut may bring a segment back that had gone, and with it what was emptied."""
        if self.torn:
            voids = self.real_topic(topic).voids
            topic.emptied &= {offset for first, end in voids for offset in range(first, end)}

    @rule(pick=picks, share=shares)
    def replay_channel(self, pick: int, share: int) -> None:
        channel = self.pick_channel(pick)
        if channel is None:
            return
        real_topic, real = self.real_topic(channel.topic), self.real_channel(channel)
        whole_topic, number = real_topic.at_queues[0], real_topic.number
        start, end = real_topic.queue.start_offset, real.cursor.next
        for offset in (start - 1, end + 1):
            with pytest.raises(OutOfReach) as refused:
                replay(whole_topic, channel.name, {number: offset})
            assert refused.value.gone == (offset < start)
        if start > end:  # all that it has yet to get is lost
            return
        offset = start + (end - start) * share // 100
        if self.refused(lambda: replay(whole_topic, channel.name, {number: offset})):
            assert real.cursor.next == end
            return
        self._know_what_was_emptied(channel.topic)
        channel.replay(offset, self.position, self.clock.now_ns)

    @rule(pick=picks, share=shares, name=st.sampled_from(["x", "y", "z"]))
    def create_channel_in_the_past(self, pick: int, share: int, name: str) -> None:
        if not self.topics:
            return
        topic = self.parts()[pick % len(self.parts())]
        real = self.real_topic(topic)
        start, end = real.queue.start_offset, topic.limit
        if not topic.channels:
            end = topic.backlog_offset
        offset = start + (end - start) * share // 100
        first = real.at_queues[0]
        if name in topic.channels or start > end:
            at = offset if name in topic.channels else end
            with pytest.raises(OutOfReach):
                channel_from(first, name, {topic.number: at})
            return
        if not topic.channels and end < topic.limit:
            with pytest.raises(OutOfReach):
                channel_from(first, name, {topic.number: end + 1})
        if self.refused(lambda: channel_from(first, name, {topic.number: offset})):
            assert name not in real.channels
            self.unmade.add((topic.name, name))
            return
        id = real.channels[name].id
        for part in topic.at_queues:
            self._know_what_was_emptied(part)
            at_offset = offset if part is topic else None
            part.create_channel(name, id, self.position, self.clock.now_ns, at_offset)

    @rule(pick=picks, share=shares)
    def look_for_a_time(self, pick: int, share: int) -> None:
        """Nothing stored since a time is before the offset found for it."""
        if not self.topics:
            return
        topic = self.parts()[pick % len(self.parts())]
        real = self.real_topic(topic)
        index = real.queue.index
        shown = index.find(real.queue.visible_end)
        rows = index.rows(index.find(real.queue.start_offset), shown)
        if not rows:
            return
        time_ns = rows[(len(rows) - 1) * share // 100].stored_at_ns
        offset = offset_at(real, time_ns)
        assert all((row.stored_at_ns >= time_ns) == (row.first_offset >= offset) for row in rows)

    @rule(pick=picks, share=shares, max_count=st.sampled_from([1, 3, 1000]), states=st.sets(kinds))
    def peek_at_a_channel(
        self, pick: int, share: int, max_count: int, states: set[PeekState]
    ) -> None:
        """Every message that is not finished is seen where it is, and nothing changes by that."""
        channel = self.pick_channel(pick)
        if channel is None or channel.topic.has_holes:
            return
        start = len(channel.topic.messages) * share // 100
        real = self.real_channel(channel)
        seen = peek(real, start, max_count, states)
        frames = PeekedFrames(real.cursor)
        limit = channel.topic.limit
        expected = [
            (offset, STATES[message.state], message.attempts)
            for offset, message in sorted(channel.messages.items())
            if offset >= start and (message.state is not MessageState.FRESH or offset < limit)
            if STATES.get(message.state) in states
        ]
        assert [(one.offset, one.state, one.attempts) for one in seen] == expected[:max_count]
        for one in seen:
            message = channel.messages[one.offset]
            owner = message.owner
            owner_there = one.owner.subscriber if isinstance(one.owner, Share) else one.owner
            assert owner_there is (self.real[owner] if owner else None)
            if owner is not None:
                assert one.delivered_at_ns == self.date(message.delivered_at_ns)
            if message.state in (MessageState.IN_FLIGHT, MessageState.DEFERRED):
                assert one.due_ns == self.date(message.due_ns)
            read = frames.read(one.offset)
            assert read is not None
            assert read[1][FRAME.size :] == channel.topic.messages[one.offset].body
