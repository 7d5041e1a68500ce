"""Whatever brokers do, what is published is stored, in order where asked, and answered once."""

import asyncio
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from martlet.client.errors import ConnectionLost, PublishLost, PublishRefused, Refused
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.limits import Limits
from martlet.client.producer.publication import OrderKey, PendingPublish, PublishBatch
from martlet.client.producer.routing import home

TOPICS = st.sampled_from(["a", "b"])
KEYS = st.sampled_from([None, None, "k", "l"])


class Broker:
    """What a broker has been sent, has read of it, and has stored."""

    def __init__(self, lane: InFlightQueue) -> None:
        self.lane = lane
        self.sent: deque[PublishBatch] = deque()
        self.read = 0
        self.stored: list[bytes] = []
        self.is_full = False


class OutboxMachine(RuleBasedStateMachine):
    """An outbox, connections that may go at any time, and brokers that may have read some."""

    lanes_at_most = 3

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.published: list[PendingPublish] = []
        self.cancelled: set[bytes] = set()
        self.brokers: list[Broker] = []
        self.gone: list[Broker] = []
        self.number = 0
        self.suspects: set[PendingPublish] = set()

    @initialize(
        messages=st.integers(1, 12),
        size=st.integers(20, 90),
        lanes=st.integers(1, 3),
        retries=st.sampled_from([None, None, 0, 2]),
    )
    def begin(self, messages: int, size: int, lanes: int, retries: int | None) -> None:
        self.limits = Limits(
            max_in_flight_messages=messages, max_in_flight_bytes=10 * size, max_body_bytes=size
        )
        self.retries = retries
        self.outbox = Accumulator(self.limits, retries=retries)
        for _ in range(min(lanes, self.lanes_at_most)):
            self.come()
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
    )
    def publish(self, topic: str, key: str | None, count: int, bad: bytes) -> None:
        bodies = []
        for _ in range(count):
            bodies.append(b"%d" % self.number + bad)
            self.number += 1
        publication = PendingPublish(
            topic,
            bodies,
            sum(len(body) + 4 for body in bodies),
            self.loop.create_future(),
            deadline_s=self.number,
            order_key=None if key is None else (topic, key),
        )
        self.published.append(publication)
        self.outbox.add(publication)

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        publication = data.draw(st.sampled_from(self.published))
        if publication.future.cancel():
            self.cancelled.update(publication.bodies)
            self.outbox.forget_settled()

    # What the connections do.

    @rule()
    def send(self) -> None:
        open_lanes = [each.lane for each in self.brokers if each.lane.is_up]
        open_lanes = [lane for lane in open_lanes if not lane.is_held]
        for shipment in self.outbox.pack(open_lanes):
            (broker,) = (each for each in self.brokers if each.lane is shipment.lane)
            assert broker.lane.is_up
            for before in broker.sent:
                assert self.suspects.isdisjoint(before.publications), "nothing goes behind it"
            assert len({each.topic for each in shipment.publications}) == 1
            if len(shipment.publications) > 1:
                assert shipment.size_bytes + 4 <= self.limits.max_body_bytes
                assert self.suspects.isdisjoint(shipment.publications), "it goes alone"
            broker.sent.append(shipment)

    def connect(self, broker: Broker) -> None:
        if not broker.lane.is_up:
            self.outbox.raise_lane(broker.lane)

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        self.connect(data.draw(st.sampled_from(self.brokers)))

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        self.hang_up(data.draw(st.sampled_from(self.brokers)))

    def hang_up(self, broker: Broker) -> None:
        unanswered = [each for shipment in broker.sent for each in shipment.publications]
        self.suspects.update([each for each in unanswered if not each.future.done()][:1])
        for shipment in broker.sent:
            shipment.lost(ConnectionLost("gone"))
        broker.sent.clear()
        broker.read = 0
        self.outbox.put_back(broker.lane, "gone")

    @precondition(lambda self: len(self.brokers) < self.lanes_at_most)
    @rule()
    def come(self) -> None:
        name = f"broker {len(self.brokers) + len(self.gone)}"
        self.brokers.append(Broker(self.outbox.add_lane(name)))

    @precondition(lambda self: len(self.brokers) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        broker = data.draw(st.sampled_from(self.brokers))
        self.hang_up(broker)
        self.outbox.remove_lane(broker.lane)
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
        shipment = broker.sent[broker.read]
        bodies = [body for each in shipment.publications for body in each.bodies]
        is_bad = any(body.endswith(b"!") for body in bodies)
        if is_bad or is_full:
            self.answer(broker)
            error = ("E_BAD_MESSAGE", "bad") if is_bad else ("E_MPUB_FAILED", "full")
            broker.sent[0].refused(Refused(*error))
            self.hang_up(broker)
            return
        broker.stored += bodies
        broker.read += 1

    def answer(self, broker: Broker) -> None:
        while broker.read:
            broker.read -= 1
            broker.sent.popleft().answered(b"OK")

    @precondition(lambda self: self.brokers)
    @rule(data=st.data())
    def deliver_answers(self, data: st.DataObject) -> None:
        self.answer(data.draw(st.sampled_from(self.brokers)))

    # What must hold.

    @invariant()
    def what_is_answered_is_stored(self) -> None:
        stored = {body for each in self.brokers + self.gone for body in each.stored}
        for publication in self.published:
            if not publication.future.done() or publication.future.cancelled():
                continue
            error = publication.future.exception()
            if error is None:
                assert stored.issuperset(publication.bodies)
                assert not any(body.endswith(b"!") for body in publication.bodies)
            elif isinstance(error, PublishLost):
                assert self.retries is not None
            else:
                assert isinstance(error, PublishRefused)
                assert error.code == "E_MPUB_FAILED" or publication.bodies[0].endswith(b"!")

    @invariant()
    def what_is_pending_is_counted(self) -> None:
        if not hasattr(self, "outbox"):
            return
        pending = sum(len(each.bodies) for each in self.outbox.unanswered())
        in_flight = [shipment for each in self.brokers for shipment in each.sent]
        settled = [p for each in in_flight for p in each.publications if p.future.done()]
        waiting_in_vain = self.outbox.pending_messages - pending
        assert waiting_in_vain >= sum(len(each.bodies) for each in settled)
        self.outbox.forget_settled()
        assert self.outbox.pending_messages == pending + sum(len(p.bodies) for p in settled)

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        for broker in self.brokers:
            messages = sum(shipment.message_count for shipment in broker.sent)
            assert messages == broker.lane.message_count
            assert messages <= self.limits.max_in_flight_messages or len(broker.sent) == 1

    @invariant()
    def a_key_is_in_flight_at_one_broker(self) -> None:
        places: dict[OrderKey, set[str]] = {}
        for broker in self.brokers:
            for shipment in broker.sent:
                for publication in shipment.publications:
                    if publication.order_key is not None:
                        places.setdefault(publication.order_key, set()).add(broker.lane.name)
        assert all(len(names) == 1 for names in places.values())

    def deliver_all(self) -> None:
        """With connections that stay and brokers that read, everything is answered."""
        if not hasattr(self, "outbox"):
            return
        for _ in range(10 * len(self.published) + 10):
            for broker in self.brokers:
                self.connect(broker)
            self.send()
            for broker in self.brokers:
                self.read(broker)
                self.answer(broker)
        assert all(publication.future.done() for publication in self.published)
        self.what_is_answered_is_stored()
        self.outbox.forget_settled()
        assert (self.outbox.pending_messages, self.outbox.pending_bytes) == (0, 0)
        assert not self.outbox._pins
        self.check_order()

    def check_order(self) -> None:
        """At each broker, the messages of a key came in the order in which they were published."""
        for broker in self.brokers + self.gone:
            key_of = {
                body: publication.order_key
                for publication in self.published
                for body in publication.bodies
            }
            seen: dict[OrderKey, list[int]] = {}
            for body in dict.fromkeys(broker.stored):
                key = key_of[body]
                if key is not None:
                    seen.setdefault(key, []).append(int(body.rstrip(b"!")))
            assert all(numbers == sorted(numbers) for numbers in seen.values())


class OneLaneMachine(OutboxMachine):
    """With one broker, all of a topic that has no key is in order, as what has one is."""

    lanes_at_most = 1

    def check_order(self) -> None:
        super().check_order()
        (broker,) = self.brokers
        topic_of = {
            body: publication.topic
            for publication in self.published
            for body in publication.bodies
            if publication.order_key is None
        }
        for topic in ("a", "b"):
            numbers = [
                int(each) for each in dict.fromkeys(broker.stored) if topic_of.get(each) == topic
            ]
            assert numbers == sorted(numbers)


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestOneLane = OneLaneMachine.TestCase
TestOneLane.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_a_key_is_at_home_at_one_broker_and_moves_only_when_that_goes() -> None:
    outbox = Accumulator(Limits())
    lanes = [outbox.add_lane(f"127.0.0.{number}:4150") for number in range(1, 6)]
    keys: list[OrderKey] = [("t", f"key {number}") for number in range(500)]
    assert home(lanes, keys[0]) is None
    for lane in lanes:
        outbox.raise_lane(lane)
    homes = {key: home(lanes, key) for key in keys}
    assert {key: home(lanes[::-1], key) for key in keys} == homes
    counts = [list(homes.values()).count(lane) for lane in lanes]
    assert min(counts) > 60, "they are spread"
    outbox.put_back(lanes[2], "gone")
    for key, before in homes.items():
        moved = home(lanes, key)
        assert moved is not lanes[2]
        assert before is lanes[2] or moved is before


def test_a_suspect_goes_alone_though_others_of_its_topic_were_put_back_before_it() -> None:
    loop = asyncio.new_event_loop()
    outbox = Accumulator(Limits())
    lanes = [outbox.add_lane(f"127.0.0.{number}:4150") for number in (1, 2)]

    def publish(body: bytes) -> PendingPublish:
        publication = PendingPublish("t", [body], len(body) + 4, loop.create_future(), deadline_s=9)
        outbox.add(publication)
        return publication

    for lane in lanes:
        outbox.raise_lane(lane)
    publish(b"first")
    assert [shipment.lane for shipment in outbox.pack([lanes[0]])] == [lanes[0]]
    publish(b"second")
    publish(b"third")
    assert [shipment.lane for shipment in outbox.pack([lanes[1]])] == [lanes[1]]
    for lane in lanes:  # what is lost last is put back before the rest
        for shipment in lane.in_flight:
            shipment.lost(ConnectionLost("gone"))
        outbox.put_back(lane, "gone")
        outbox.raise_lane(lane)
    packed = outbox.pack(list(lanes))
    assert [[p.bodies for p in shipment.publications] for shipment in packed] == [
        [[b"second"]],  # a suspect too, after which nothing goes that way
        [[b"third"]],
        [[b"first"]],
    ]
    loop.close()
