"""Whatever brokers do, each publish is stored, in order where asked, and answered once."""

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from martlet.client.errors import (
    ConnectionLost,
    NotSupported,
    PublishLost,
    PublishRefused,
    Refused,
)
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.in_flight import InFlightQueue, ProducerBatch
from martlet.client.producer.limits import Limits
from martlet.client.producer.pending import Extras, OrderKey, PendingPublish, SendFields
from martlet.client.producer.routing import broker_of_key

TOPICS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([None, None, "k", "l"])


class Broker:
    """The messages sent to a broker, read by it, and stored."""

    def __init__(self, queue: InFlightQueue, takes_sends: bool) -> None:
        self.queue = queue
        self.takes_sends = takes_sends
        self.offsets: dict[tuple[bytes, int], int] = {}
        """Where each SEND that it remembers is stored."""
        self.answers: deque[bytes] = deque()
        self.sent: deque[ProducerBatch] = deque()
        self.read = 0
        self.stored: list[bytes] = []
        self.is_full = False


class AccumulatorMachine(RuleBasedStateMachine):
    """An accumulator, connections that may go at any time, and brokers that may have read some."""

    max_brokers = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.published: list[PendingPublish] = []
        self.cancelled: set[bytes] = set()
        self.brokers: list[Broker] = []
        self.gone: list[Broker] = []
        self.number = 0
        self.suspects: set[PendingPublish] = set()
        self.later: list[Callable[[], None]] = []

    @initialize(
        messages=st.integers(1, 12),
        size=st.integers(20, 90),
        brokers=st.integers(1, 3),
        retries=st.sampled_from([None, None, 0, 2]),
    )
    def begin(self, messages: int, size: int, brokers: int, retries: int | None) -> None:
        self.limits = Limits(
            max_in_flight_messages=messages, max_in_flight_bytes=10 * size, max_body_bytes=size
        )
        self.retries = retries
        self.accumulator = Accumulator(self.limits, retries=retries)
        self.accumulator.call_later = lambda _delay_s, function: self.later.append(function)
        for _ in range(min(brokers, self.max_brokers)):
            self.come(takes_sends=True)
            self.connect(self.brokers[-1])

    def teardown(self) -> None:
        self.deliver_all()
        self.loop.close()

    # What the application does.

    @rule(
        topic=TOPICS,
        key=KEYS,
        count=st.integers(1, 3),
        bad=st.sampled_from([b"", b"", b"", b"!"]),
        is_send=st.booleans(),
    )
    def publish(self, topic: str, key: str | None, count: int, bad: bytes, is_send: bool) -> None:
        bodies = []
        for _ in range(count):
            bodies.append(b"%d" % self.number + bad)
            self.number += 1
        pending = PendingPublish(
            topic,
            bodies,
            sum(len(body) + 4 for body in bodies),
            self.loop.create_future(),
            deadline_s=self.number,
            order_key=None if key is None else (topic, key),
            extras=Extras(1.0, fields=SendFields(order_key=key or "", retries=self.retries))
            if is_send
            else None,
        )
        self.published.append(pending)
        self.accumulator.add(pending)

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(self.published))
        if pending.future.cancel():
            self.cancelled.update(pending.bodies)
            self.accumulator.forget_settled()

    # What the connections do.

    @rule()
    def send(self) -> None:
        open_queues = [broker.queue for broker in self.brokers if broker.queue.is_up]
        open_queues = [queue for queue in open_queues if not queue.is_held]
        refused = self.not_supported()
        has_taker = any(queue.takes_sends for queue in self.accumulator.brokers)
        packed = self.accumulator.pack(open_queues)
        assert not has_taker or self.not_supported() == refused, "another broker takes it"
        for batch in packed:
            (broker,) = (broker for broker in self.brokers if broker.queue is batch.broker)
            assert broker.queue.is_up
            for before in broker.sent:
                assert self.suspects.isdisjoint(before.pendings), "nothing goes behind it"
            assert len({pending.topic for pending in batch.pendings}) == 1
            assert len({pending.fields for pending in batch.pendings}) == 1
            assert broker.takes_sends or not batch.number
            if len(batch.pendings) > 1:
                assert batch.size_bytes + 4 <= self.limits.max_body_bytes
                assert batch.number or self.suspects.isdisjoint(batch.pendings), "it goes alone"
            broker.sent.append(batch)

    def not_supported(self) -> int:
        futures = [pending.future for pending in self.published if pending.future.done()]
        return sum(
            not future.cancelled() and isinstance(future.exception(), NotSupported)
            for future in futures
        )

    @rule()
    def time_passes(self) -> None:
        later, self.later = self.later, []
        for function in later:
            function()

    def connect(self, broker: Broker) -> None:
        if not broker.queue.is_up:
            self.accumulator.connected(broker.queue, takes_sends=broker.takes_sends)

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        self.connect(data.draw(st.sampled_from(self.brokers)))

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.hang_up(data.draw(st.sampled_from(self.brokers)))

    def hang_up(self, broker: Broker) -> None:
        unanswered = [pending for batch in broker.sent for pending in batch.pendings]
        self.suspects.update([pending for pending in unanswered if not pending.future.done()][:1])
        for batch in broker.sent:
            batch.lost(ConnectionLost("gone"))
        broker.sent.clear()
        broker.answers.clear()
        broker.read = 0
        self.accumulator.put_back(broker.queue, ConnectionLost("gone"))

    @precondition(lambda self: len(self.brokers) < self.max_brokers)
    @rule(takes_sends=st.sampled_from([True, True, False]))
    def come(self, takes_sends: bool) -> None:
        name = f"broker {len(self.brokers) + len(self.gone)}"
        self.brokers.append(Broker(self.accumulator.add_broker(name), takes_sends))

    @precondition(lambda self: len(self.brokers) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(self.brokers))
        self.hang_up(broker)
        self.accumulator.remove_broker(broker.queue)
        self.brokers.remove(broker)
        self.gone.append(broker)

    # What the brokers do.

    @precondition(lambda self: self.brokers)
    @rule(data=st.data(), is_full=st.booleans())
    def broker_reads(self, data: st.DataObject, is_full: bool) -> None:
        broker = data.draw(st.sampled_from(self.brokers))
        self.read(broker, is_full)

    def read(self, broker: Broker, is_full: bool = False) -> None:
        if broker.read == len(broker.sent):
            return
        batch = broker.sent[broker.read]
        bodies = [body for pending in batch.pendings for body in pending.bodies]
        is_bad = any(body.endswith(b"!") for body in bodies)
        if batch.number and not is_bad:
            self.read_send(broker, batch, bodies, is_full)
            return
        if is_bad or is_full:
            self.answer(broker)
            error = ("E_BAD_MESSAGE", "bad") if is_bad else ("E_MPUB_FAILED", "full")
            broker.sent[0].refused(Refused(*error))
            self.hang_up(broker)
            return
        broker.stored += bodies
        broker.read += 1
        broker.answers.append(b"OK")

    def read_send(
        self, broker: Broker, batch: ProducerBatch, bodies: list[bytes], is_full: bool
    ) -> None:
        send = (broker.queue.producer, batch.number)
        broker.read += 1
        if send not in broker.offsets:
            if is_full:
                broker.answers.append(b'{"status": "REFUSED", "text": "full"}')
                self.suspects.difference_update(batch.pendings)
                return
            broker.offsets[send] = len(broker.stored)
            broker.stored += bodies
        answer = {"status": "OK", "queue": 0, "offset": broker.offsets[send], "id": "0" * 16}
        broker.answers.append(json.dumps(answer).encode())

    def answer(self, broker: Broker) -> None:
        while broker.read:
            broker.read -= 1
            broker.sent.popleft().answered(broker.answers.popleft())

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def deliver_answers(self, data: st.DataObject) -> None:
        self.answer(data.draw(st.sampled_from(self.brokers)))

    # What must hold.

    @invariant()
    def what_is_answered_is_stored(self) -> None:
        stored = {body for broker in self.brokers + self.gone for body in broker.stored}
        for pending in self.published:
            if not pending.future.done() or pending.future.cancelled():
                continue
            error = pending.future.exception()
            if error is None:
                assert stored.issuperset(pending.bodies)
                assert not any(body.endswith(b"!") for body in pending.bodies)
                if pending.fields is not None:
                    result = pending.future.result()
                    assert any(
                        broker.stored[result.offset : result.offset + 1] == pending.bodies[:1]
                        for broker in self.brokers + self.gone
                    )
            elif isinstance(error, PublishLost):
                assert self.retries is not None or "has gone" in str(error)
            elif isinstance(error, NotSupported):
                assert not all(broker.takes_sends for broker in self.brokers + self.gone)
            else:
                assert isinstance(error, PublishRefused)
                is_full = error.code == "E_MPUB_FAILED"
                if pending.fields is not None:
                    is_full = error.code == "REFUSED" and self.retries is not None
                assert is_full or pending.bodies[0].endswith(b"!")

    @invariant()
    def what_is_sent_is_stored_once(self) -> None:
        stored = Counter(body for broker in self.brokers + self.gone for body in broker.stored)
        for pending in self.published:
            if pending.fields is not None:
                assert all(stored[body] <= 1 for body in pending.bodies)

    @invariant()
    def of_a_key_with_a_send_in_flight_nothing_else_is(self) -> None:
        for broker in self.brokers:
            batches: dict[OrderKey, list[ProducerBatch]] = {}
            for batch in broker.sent:
                for key in {pending.order_key for pending in batch.pendings} - {None}:
                    assert key is not None
                    batches.setdefault(key, []).append(batch)
            for some in batches.values():
                assert len(some) == 1 or not any(batch.number for batch in some)

    @invariant()
    def what_is_pending_is_counted(self) -> None:
        if not hasattr(self, "accumulator"):
            return
        pending = sum(len(pending.bodies) for pending in self.accumulator.unanswered())
        self.accumulator.forget_settled()
        batches = list(self.accumulator.batches())
        settled = [p for batch in batches for p in batch.pendings if p.future.done()]
        assert self.accumulator.pending_messages == pending + sum(len(p.bodies) for p in settled)

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        for broker in self.brokers:
            messages = sum(batch.message_count for batch in broker.sent)
            assert messages == broker.queue.message_count
            assert messages <= self.limits.max_in_flight_messages or len(broker.sent) == 1

    @invariant()
    def a_key_is_in_flight_at_one_broker(self) -> None:
        brokers: dict[OrderKey, set[str]] = {}
        for broker in self.brokers:
            for batch in broker.sent:
                for pending in batch.pendings:
                    if pending.order_key is not None:
                        brokers.setdefault(pending.order_key, set()).add(broker.queue.name)
        assert all(len(names) == 1 for names in brokers.values())

    def deliver_all(self) -> None:
        """With connections that stay and brokers that read, everything is answered."""
        if not hasattr(self, "accumulator"):
            return
        for _ in range(10 * len(self.published) + 10):
            self.time_passes()
            for broker in self.brokers:
                self.connect(broker)
            self.send()
            for broker in self.brokers:
                self.read(broker)
                self.answer(broker)
        assert all(pending.future.done() for pending in self.published)
        self.what_is_answered_is_stored()
        self.accumulator.forget_settled()
        assert (self.accumulator.pending_messages, self.accumulator.pending_bytes) == (0, 0)
        assert not self.accumulator._pins
        self.check_order()

    def check_order(self) -> None:
        """At each broker, the messages of a key came in the order in which they were published."""
        for broker in self.brokers + self.gone:
            key_of = {
                body: pending.order_key for pending in self.published for body in pending.bodies
            }
            seen: dict[OrderKey, list[int]] = {}
            for body in dict.fromkeys(broker.stored):
                key = key_of[body]
                if key is not None:
                    seen.setdefault(key, []).append(int(body.rstrip(b"!")))
            assert all(numbers == sorted(numbers) for numbers in seen.values())


class OneBrokerMachine(AccumulatorMachine):
    """With one broker, all of a topic that has no key is in order, as what has one is; but SENDs
    without a key may be declined and come again.
    """

    max_brokers = 1

    def check_order(self) -> None:
        super().check_order()
        (broker,) = self.brokers
        topic_of = {
            body: pending.topic
            for pending in self.published
            for body in pending.bodies
            if pending.order_key is None and pending.fields is None
        }
        for topic in ("a", "b"):
            numbers = [
                int(body) for body in dict.fromkeys(broker.stored) if topic_of.get(body) == topic
            ]
            assert numbers == sorted(numbers)


TestAccumulator = AccumulatorMachine.TestCase
TestAccumulator.settings = settings(max_examples=40, stateful_step_count=40)
TestOneBroker = OneBrokerMachine.TestCase
TestOneBroker.settings = settings(max_examples=25, stateful_step_count=30)


def test_a_key_stays_at_one_broker_until_that_goes() -> None:
    accumulator = Accumulator(Limits())
    brokers = [accumulator.add_broker(f"127.0.0.{number}:4150") for number in range(1, 6)]
    keys: list[OrderKey] = [("t", f"key {number}") for number in range(500)]
    assert broker_of_key(brokers, keys[0]) is None
    for queue in brokers:
        accumulator.connected(queue, takes_sends=False)
    homes = {key: broker_of_key(brokers, key) for key in keys}
    assert {key: broker_of_key(brokers[::-1], key) for key in keys} == homes
    counts = [list(homes.values()).count(queue) for queue in brokers]
    assert min(counts) > 60, "they are spread"
    accumulator.put_back(brokers[2], ConnectionLost("gone"))
    for key, before in homes.items():
        moved = broker_of_key(brokers, key)
        assert moved is not brokers[2]
        assert before is brokers[2] or moved is before


def test_a_suspect_goes_alone_though_others_of_its_topic_were_put_back_before_it() -> None:
    loop = asyncio.new_event_loop()
    accumulator = Accumulator(Limits())
    brokers = [accumulator.add_broker(f"127.0.0.{number}:4150") for number in (1, 2)]

    def publish(body: bytes) -> PendingPublish:
        pending = PendingPublish("t", [body], len(body) + 4, loop.create_future(), deadline_s=9)
        accumulator.add(pending)
        return pending

    for queue in brokers:
        accumulator.connected(queue, takes_sends=False)
    publish(b"first")
    assert [batch.broker for batch in accumulator.pack([brokers[0]])] == [brokers[0]]
    publish(b"second")
    publish(b"third")
    assert [batch.broker for batch in accumulator.pack([brokers[1]])] == [brokers[1]]
    for queue in brokers:  # batches lost last are put back before the rest
        for batch in queue.batches:
            batch.lost(ConnectionLost("gone"))
        accumulator.put_back(queue, ConnectionLost("gone"))
        accumulator.connected(queue, takes_sends=False)
    packed = accumulator.pack(list(brokers))
    assert [[p.bodies for p in batch.pendings] for batch in packed] == [
        [[b"second"]],  # a suspect too, after which nothing goes that way
        [[b"third"]],
        [[b"first"]],
    ]
    loop.close()
