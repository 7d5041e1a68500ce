"""Whatever the connection does, what is published is stored, in order, and answered once."""

import asyncio
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from martlet.client.errors import ConnectionLost, PublishRefused, Refused
from martlet.client.outbox import Limits, Outbox, Publication, Shipment

TOPICS = st.sampled_from(["a", "b"])


class OutboxMachine(RuleBasedStateMachine):
    """An outbox, a connection that may go at any time, and a broker that may have read some."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.published: list[Publication] = []
        self.cancelled: set[bytes] = set()
        self.sent: deque[Shipment] = deque()
        self.read = 0
        self.stored: dict[str, list[bytes]] = {"a": [], "b": []}
        self.number = 0
        self.lost_once = False

    @initialize(messages=st.integers(1, 12), size=st.integers(20, 90))
    def begin(self, messages: int, size: int) -> None:
        self.limits = Limits(
            max_in_flight_messages=messages, max_in_flight_bytes=10 * size, max_body_bytes=size
        )
        self.outbox = Outbox(self.limits)

    def teardown(self) -> None:
        self.deliver_all()
        self.loop.close()

    @rule(topic=TOPICS, count=st.integers(1, 3), bad=st.sampled_from([b"", b"", b"", b"!"]))
    def publish(self, topic: str, count: int, bad: bytes) -> None:
        bodies = []
        for _ in range(count):
            bodies.append(b"%d" % self.number + bad)
            self.number += 1
        publication = Publication(
            topic,
            bodies,
            sum(len(body) + 4 for body in bodies),
            self.loop.create_future(),
            deadline_s=0,
        )
        self.published.append(publication)
        self.outbox.add(publication)

    @rule()
    def send(self) -> None:
        packed = self.outbox.pack()
        if self.lost_once and packed:
            assert len(packed) == 1, "the first after a loss goes by itself"
            assert not self.sent
            self.lost_once = False
        for shipment in packed:
            assert len({each.topic for each in shipment.publications}) == 1
            if len(shipment.publications) > 1:
                assert shipment.size_bytes + 4 <= self.limits.max_body_bytes
        self.sent.extend(packed)

    @precondition(lambda self: self.read < len(self.sent))
    @rule()
    def broker_reads(self) -> None:
        shipment = self.sent[self.read]
        bodies = [body for each in shipment.publications for body in each.bodies]
        if any(body.endswith(b"!") for body in bodies):
            self.deliver_answers()
            self.sent.popleft().refused(Refused("E_BAD_MESSAGE", "bad"))
            self.lose()
            return
        self.stored[shipment.publications[0].topic] += bodies
        self.read += 1

    @rule()
    def deliver_answers(self) -> None:
        while self.read:
            self.read -= 1
            self.sent.popleft().answered(b"OK")

    @rule()
    def lose(self) -> None:
        for shipment in self.sent:
            shipment.lost(ConnectionLost("gone"))
        self.sent.clear()
        self.read = 0
        self.lost_once = self.outbox.put_back() > 0

    @precondition(lambda self: self.published)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        publication = data.draw(st.sampled_from(self.published))
        if publication.future.cancel():
            self.cancelled.update(publication.bodies)
            self.outbox.forget_settled()

    @invariant()
    def what_is_answered_is_stored(self) -> None:
        for publication in self.published:
            if publication.future.done() and not publication.future.cancelled():
                bad = any(body.endswith(b"!") for body in publication.bodies)
                assert isinstance(publication.future.exception(), PublishRefused) == bad
                stored = set(self.stored[publication.topic])
                assert bad or stored.issuperset(publication.bodies)

    @invariant()
    def no_more_is_in_flight_than_allowed(self) -> None:
        messages = sum(shipment.message_count for shipment in self.sent)
        assert messages <= self.limits.max_in_flight_messages or len(self.sent) == 1

    def deliver_all(self) -> None:
        """With a connection that stays and a broker that reads, everything is answered."""
        if not hasattr(self, "outbox"):
            return
        for _ in range(10 * len(self.published) + 10):
            self.send()
            if self.read < len(self.sent):
                self.broker_reads()
            self.deliver_answers()
        assert all(publication.future.done() for publication in self.published)
        for topic, stored in self.stored.items():
            kept = [
                body
                for publication in self.published
                if publication.topic == topic
                for body in publication.bodies
                if not body.endswith(b"!") and body not in self.cancelled
            ]
            groups = {
                body
                for each in self.published
                for body in each.bodies
                if any(other.endswith(b"!") for other in each.bodies)
            }
            first_seen = [body for body in dict.fromkeys(stored) if body not in self.cancelled]
            assert first_seen == [body for body in kept if body not in groups]


TestOutbox = OutboxMachine.TestCase
TestOutbox.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
