"""Steps of consumers at a broker and its model: subscribe, take, answer, and leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.property.broker.beside_model import MAX_TIMEOUT_NS, MILLISECOND_NS
from tests.property.broker.delay_rules import DelayRules
from tests.property.broker.model import MessageState, ModelConsumer

from martlet.broker.errors import NotInFlight

picks = st.integers(0, 1 << 16)
"""One of many, whichever there are then."""
delays_ms = st.sampled_from([0, 1, 50, 700, 3000])


class ConsumerRules(DelayRules):
    @rule(
        pick=picks,
        timeout_ms=st.sampled_from([100, 1000, 4000]),
        ready_count=st.sampled_from([0, 1, 2, 5, 40]),
    )
    def subscribe(self, pick: int, timeout_ms: int, ready_count: int) -> None:
        channel = self.pick_channel(pick)
        if channel is None or len(channel.consumers) == 4:
            return
        consumer = ModelConsumer(channel.at_queues[0], timeout_ms * MILLISECOND_NS, self.sent)
        real_channel = self.real_all_queues(channel)
        self.real[consumer] = real_channel.add_consumer(consumer, consumer.timeout_ns)
        channel.consumers.append(consumer)
        consumer.ready_count = ready_count
        real_channel.set_ready(self.real[consumer], ready_count)

    @rule(pick=picks, count=st.sampled_from([0, 1, 3, 10, 40]))
    def set_ready(self, pick: int, count: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.ready_count = count
            self.real_all_queues(consumer.channel).set_ready(self.real[consumer], count)

    @rule(pick=picks, blocked=st.booleans())
    def block(self, pick: int, blocked: bool) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is not None:
            consumer.blocked = blocked
            self.real_all_queues(consumer.channel).set_blocked(self.real[consumer], blocked)

    @rule(pick=picks)
    def disconnect(self, pick: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        for position in consumer.in_flight:
            channel, offset = consumer.at(position)
            channel.put_back(offset)
        consumer.channel.consumers.remove(consumer)
        self.real_all_queues(consumer.channel).remove_consumer(self.real.pop(consumer))

    def _some_position(self, consumer: ModelConsumer, pick: int) -> int:
        """As a rule one that the consumer holds, at times any other."""
        held = consumer.in_flight
        if held and pick % 8:
            return held[pick % len(held)]
        if pick % 3 == 0:
            return (1 << 64) - 1 - pick
        parts = consumer.channel.at_queues
        channel = parts[pick % len(parts)]
        return channel.position(pick % (len(channel.topic.messages) + 2))

    def _answer(
        self, consumer: ModelConsumer, position: int, act: Callable[[Any, Any], None]
    ) -> bool:
        """Answer for a message; whether it was in flight to the consumer."""
        message = consumer.held(position)
        channel, real = self.real_all_queues(consumer.channel), self.real[consumer]
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
        position = self._some_position(consumer, which)
        if self._answer(consumer, position, lambda channel, real: channel.finish(real, position)):
            channel, offset = consumer.at(position)
            channel.done(offset)
            consumer.finished_count += 1

    @rule(pick=picks, seed=st.integers(0, 1 << 20), share=st.sampled_from([20, 60, 100]))
    def finish_run(self, pick: int, seed: int, share: int) -> None:
        """Many FINs at once, in any order, among which may be one of another's, or one twice."""
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        random = Random(seed)
        held = consumer.in_flight
        chosen = {position for position in held if random.randrange(100) < share}
        if random.randrange(4) == 0:
            some = random.choice(consumer.channel.at_queues)
            chosen.add(some.position(random.randrange(-3, len(some.topic.messages) + 3)))
        if not chosen:
            return
        said = sorted(chosen)
        if random.randrange(2):
            random.shuffle(said)
        if random.randrange(8) == 0:
            said.append(said[0])
        channel, real = self.real_all_queues(consumer.channel), self.real[consumer]
        left = channel.finish_run(real, np.array(said, np.int64)).tolist()
        # Of a message that is given twice one answer may be done, and the other is left.
        done = {position for position in chosen if said.count(position) > left.count(position)}
        assert done <= set(held)
        assert Counter(left) == Counter(said) - Counter(done)
        if len(channel.at_queues) == 1 and len(said) == len(chosen):
            assert left == [position for position in said if position not in done]
        for position in done:
            part, offset = consumer.at(position)
            part.done(offset)
        consumer.finished_count += len(done)
        self.settle()
        assert channel.in_flight_count == sum(len(c.in_flight) for c in consumer.channel.consumers)
        for position in left:
            if position in consumer.in_flight:
                channel.finish(real, position)
                part, offset = consumer.at(position)
                part.done(offset)
                consumer.finished_count += 1
                self.settle()

    @rule(pick=picks, which=picks, delay_ms=delays_ms)
    def requeue(self, pick: int, which: int, delay_ms: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        position = self._some_position(consumer, which)
        delay_ns = delay_ms * MILLISECOND_NS
        if self._answer(
            consumer, position, lambda channel, real: channel.requeue(real, position, delay_ns)
        ):
            channel, offset = consumer.at(position)
            message = channel.messages[offset]
            channel.put_back(offset)
            channel.requeue_count += 1
            consumer.requeued_count += 1
            if delay_ns:
                message.state = MessageState.DEFERRED
                message.due_ns = self.clock.now_ns + delay_ns

    @rule(pick=picks, which=picks)
    def touch(self, pick: int, which: int) -> None:
        consumer = self.pick_consumer(pick)
        if consumer is None:
            return
        position = self._some_position(consumer, which)
        if self._answer(consumer, position, lambda channel, real: channel.touch(real, position)):
            message = consumer.held(position)
            assert message is not None
            message.due_ns = min(
                self.clock.now_ns + consumer.timeout_ns, message.delivered_at_ns + MAX_TIMEOUT_NS
            )
