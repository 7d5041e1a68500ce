"""Sends that are repeated, through kills and power cuts: none stored twice, none wrongly known.

The real log is read: it has to hold each body once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.broker.core import Core

from martlet.broker import idempotence as room
from martlet.broker.idempotence import ProducerSend, TooOld, marked
from martlet.broker.topic.topic import Topic
from martlet.log.record import payload, read_record
from martlet.properties.model import Sent

EACH, PRODUCERS = 4, 3


@pytest.fixture(autouse=True)
def everything_small() -> Iterator[None]:
    with (
        patch.object(room, "MAX_SENDS_EACH", EACH),
        patch.object(room, "MAX_PRODUCERS", PRODUCERS),
        patch.object(room, "_MIN_SENDS", EACH * PRODUCERS),
        patch.object(room, "_ENTRY_BYTES", 200),
    ):
        yield


@dataclass
class KnownSend:
    """A send as its producer knows it."""

    sent: Sent
    bodies: list[bytes]
    first_tried_ns: int
    number: int = 0
    """Its place among all, by when it was stored last: one that a power cut took is stored anew."""


class SendMachine(RuleBasedStateMachine):
    @initialize()
    def open(self) -> None:
        self.core = Core()
        self.core.channel("t", "keeps")
        self.core.checkpoint()
        self.known_sends: list[KnownSend] = []
        self.stored_count = 0
        self.newest = dict.fromkeys(range(5), 0)

    @property
    def topic(self) -> Topic:
        return self.core.broker.topic("t")

    def stored(self) -> dict[int, bytes]:
        """The bodies in the log, by offset."""
        bodies: dict[int, bytes] = {}
        queue = self.topic.queue
        for entry in queue.index.array(queue.index.first_row, queue.index.end_row):
            position, length = int(entry["position"]), int(entry["length"])
            view = self.core.broker.log.view(position, length)
            assert view is not None
            header, record = read_record(view, 0, position)
            frames, at = bytes(payload(header, record)), 0
            for number in range(header.count):
                size = int.from_bytes(frames[at : at + 4], "big")
                bodies[header.first_offset + number] = frames[at + 34 : at + 4 + size]
                at += 4 + size
        return bodies

    def send(self, entry: KnownSend, first: bool) -> ProducerSend:
        core = self.core
        sent = entry.sent
        tried_ns = 0 if first else entry.first_tried_ns
        stored = core.broker.producers.find(sent, self.topic, tried_ns)
        if stored is not None:
            return stored
        offset = self.topic.next_offset
        receipt = self.topic.stage(entry.bodies, 0, marked([], sent))
        send = ProducerSend(receipt, self.topic.id, offset, sent.count)
        core.broker.producers.add(sent, send, core.clock())
        self.stored_count += 1
        entry.number = self.stored_count
        return send

    @rule(
        producer=st.integers(0, 4), skip=st.sampled_from((0, 0, 0, 1, 3)), count=st.integers(1, 3)
    )
    def new(self, producer: int, skip: int, count: int) -> None:
        self.core.clock.advance(1)
        self.newest[producer] += 1 + skip
        sent = Sent(bytes([producer]) * 16, self.newest[producer], count)
        bodies = [b"%d.%d.%d" % (producer, sent.sequence, number) for number in range(count)]
        send = KnownSend(sent, bodies, self.core.clock())
        self.known_sends.append(send)
        self.send(send, first=True)

    @rule(padding=st.integers(0, 600))
    def commit(self, padding: int) -> None:
        if padding:
            self.topic.stage([b"." * padding])
        self.core.broker.commit()

    @precondition(lambda self: self.known_sends)
    @rule(back=st.integers(0, 8))
    def repeat(self, back: int) -> None:
        core = self.core
        core.clock.advance(1)
        core.broker.commit()
        repeated = self.known_sends[max(0, len(self.known_sends) - 1 - back)]
        before = self.stored()
        offsets = [offset for offset, body in before.items() if body == repeated.bodies[0]]
        later = [send for send in self.known_sends if send.number > repeated.number]
        higher = [
            send
            for send in self.known_sends
            if send.sent.producer == repeated.sent.producer
            and send.sent.sequence > repeated.sent.sequence
        ]
        others = {other.sent.producer for other in later} - {repeated.sent.producer}
        is_near = len(higher) < EACH and len(others) < PRODUCERS
        try:
            send = self.send(repeated, first=False)
        except TooOld:
            has_forgotten = core.broker.producers.forgotten_until_ns > 0
            assert not is_near or (has_forgotten and not offsets)
            return
        core.broker.commit()
        assert send.receipt.error is None
        if offsets:
            assert [send.offset] == offsets
            assert self.stored() == before
        else:
            after = self.stored()
            assert [after[send.offset + number] for number in range(send.count)] == repeated.bodies
        assert send.receipt.position

    @rule()
    def flush(self) -> None:
        self.core.flush()

    @rule()
    def checkpoint(self) -> None:
        self.core.broker.commit()
        self.core.checkpoint()

    @rule()
    def let_segments_go(self) -> None:
        """Free segments; needed records are copied."""
        self.core.fill("filling", 2)
        self.core.broker.topics["filling"].empty()
        self.checkpoint()
        self.checkpoint()

    @rule()
    def stop(self) -> None:
        self.core.broker.commit()
        self.core.stop()

    @rule()
    def kill(self) -> None:
        self.core.kill()

    @rule(seed=st.integers(0, 1 << 20), rolls=st.booleans())
    def cut_power(self, seed: int, rolls: bool) -> None:
        if rolls:
            self.core.broker.commit()
            self.core.broker.begin_segment()
        self.core.storage.random.seed(seed)
        self.core.kill(power=True)

    @rule()
    def lose_the_checkpoint(self) -> None:
        """Then only the heads of segments know of segments that have gone."""
        self.core.broker.commit()
        self.core.flush()
        self.core.broker.begin_segment()
        self.core.flush()
        self.core.storage.remove("checkpoint")
        self.core.kill()

    @invariant()
    def no_message_is_there_twice(self) -> None:
        bodies = [body for body in self.stored().values() if b"." in body and body[:1] != b"."]
        assert len(set(bodies)) == len(bodies)


SendMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30)
TestSends = SendMachine.TestCase
