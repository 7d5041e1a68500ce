"""What consumers do to a broker and its model: subscribe, take, answer, and leave."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.property.broker_beside_model import MAX_TIMEOUT_NS, MILLISECOND_NS, BesideModel
from tests.property.broker_model import ModelConsumer, Place

from martlet.broker.channel import Channel
from martlet.broker.consumer import Consumer
from martlet.broker.errors import NotInFlight

picks = st.integers(0, 1 << 16)
"""One of many, whichever there are then."""
delays_ms = st.sampled_from([0, 1, 50, 700, 3000])


class ConsumerRules(BesideModel):
    """The rules of consumers."""

    @rule(
        pick=picks,
        timeout_ms=st.sampled_from([100, 1000, 4000]),
        ready_count=st.sampled_from([0, 1, 2, 5, 40]),
    )
    def subscribe(self, pick: int, timeout_ms: int, ready_count: int) -> None:
        channel = self.pick_channel(pick)
        if channel is None or len(channel.consumers) == 4:
            return
        consumer = ModelConsumer(channel, timeout_ms * MILLISECOND_NS, self.sent)
        real_channel = self.real_channel(channel)
        self.real[consumer] = real_channel.add_consumer(consumer, consumer.timeout_ns)
        channel.consumers.append(consumer)
        consumer.ready_count = ready_count
        real_channel.set_ready(self.real[consumer], ready_count)

    @rule(pick=picks, count=st.sampled_from([0, 1, 3, 10, 40]))
    def set_ready(self, pick: int, count: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.ready_count = count
            self.real_channel(consumer.channel).set_ready(self.real[consumer], count)

    @rule(pick=picks, blocked=st.booleans())
    def block(self, pick: int, blocked: bool) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.blocked = blocked
            self.real_channel(consumer.channel).set_blocked(self.real[consumer], blocked)

    @rule(pick=picks)
    def disconnect(self, pick: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        for offset in consumer.in_flight:
            consumer.channel.put_back(offset)
        consumer.channel.consumers.remove(consumer)
        self.real_channel(consumer.channel).remove_consumer(self.real.pop(consumer))

    def _some_offset(self, consumer: ModelConsumer, pick: int) -> int:
        """As a rule one that the consumer holds, at times any other."""
        held = consumer.in_flight
        if held and pick % 8:
            return held[pick % len(held)]
        return pick % (len(consumer.channel.topic.messages) + 2) if pick % 3 else (1 << 64) - pick

    def _answer(
        self, consumer: ModelConsumer, offset: int, act: Callable[[Channel, Consumer], None]
    ) -> bool:
        """Answer for a message; whether it was in flight to the consumer."""
        message = consumer.channel.messages.get(offset)
        channel, real = self.real_channel(consumer.channel), self.real[consumer]
        if message is not None and message.owner is consumer:
            act(channel, real)
            return True
        anothers = message is not None and message.owner is not None
        why = "client does not own message" if anothers else "ID not in flight"
        with pytest.raises(NotInFlight, match=why):
            act(channel, real)
        return False

    @rule(pick=picks, which=picks)
    def finish(self, pick: int, which: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        if self._answer(consumer, offset, lambda channel, real: channel.finish(real, offset)):
            consumer.channel.done(offset)
            consumer.finished_count += 1

    @rule(pick=picks, seed=st.integers(0, 1 << 20), share=st.sampled_from([20, 60, 100]))
    def finish_run(self, pick: int, seed: int, share: int) -> None:
        """Many FINs at once, in any order, among which may be one of another's, or one twice."""
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        random = Random(seed)
        held = consumer.in_flight
        chosen = {offset for offset in held if random.randrange(100) < share}
        if random.randrange(4) == 0:
            chosen.add(random.randrange(-3, len(consumer.channel.topic.messages) + 3))
        if not chosen:
            return
        said = sorted(chosen)
        if random.randrange(2):
            random.shuffle(said)
        if random.randrange(8) == 0:
            said.append(said[0])
        channel, real = self.real_channel(consumer.channel), self.real[consumer]
        left = channel.finish_run(real, np.array(said, np.int64)).tolist()
        done = chosen - set(left)
        assert done <= set(held)
        assert left == [offset for offset in said if offset not in done]
        for offset in done:
            consumer.channel.done(offset)
        consumer.finished_count += len(done)
        self.settle()
        assert channel.in_flight_count == sum(len(c.in_flight) for c in consumer.channel.consumers)
        for offset in left:
            if offset >= 0 and offset in consumer.in_flight:
                channel.finish(real, offset)
                consumer.channel.done(offset)
                consumer.finished_count += 1
                self.settle()

    @rule(pick=picks, which=picks, delay_ms=delays_ms)
    def requeue(self, pick: int, which: int, delay_ms: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        delay_ns = delay_ms * MILLISECOND_NS
        if self._answer(
            consumer, offset, lambda channel, real: channel.requeue(real, offset, delay_ns)
        ):
            message = consumer.channel.messages[offset]
            consumer.channel.put_back(offset)
            consumer.channel.requeue_count += 1
            consumer.requeued_count += 1
            if delay_ns:
                message.place = Place.DEFERRED
                message.due_ns = self.clock.now_ns + delay_ns

    @rule(pick=picks, which=picks)
    def touch(self, pick: int, which: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        offset = self._some_offset(consumer, which)
        if self._answer(consumer, offset, lambda channel, real: channel.touch(real, offset)):
            message = consumer.channel.messages[offset]
            message.due_ns = min(
                self.clock.now_ns + consumer.timeout_ns, message.delivered_at_ns + MAX_TIMEOUT_NS
            )
