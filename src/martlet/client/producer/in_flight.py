"""Batches in flight to one broker.

::

    pending -> batch, which is sent -> answered: done
                 ^                        |
                 +---- sent again --------+  the connection was lost, or the broker could not store

A batch is one command: a PUB, MPUB or DPUB, which any broker accepts, or a SEND. A SEND has a
sequence number at its broker and is never changed, so that the broker recognises a repeat and
stores it exactly once. The others are unpacked after a failed try, and may be stored twice.

A broker remembers the last 64 numbers of a producer. So no SEND gets a number while one with a
number lower by 64 or more has no answer: the broker could not recognise its repeat.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from martlet.client.errors import ConnectionLost, PublishUnclear, Refused
from martlet.client.producer.limits import Limits
from martlet.client.producer.pending import PendingPublish
from martlet.client.producer.result import SendResult
from martlet.names import PutStatus
from martlet.properties.block import pack_entries
from martlet.protocol.nsq import commands

if TYPE_CHECKING:
    from martlet.client.producer.accumulator import Accumulator

MAX_UNANSWERED = 64
_OK = b"OK"
_STORED = frozenset(PutStatus)


class ProducerBatch:
    """Messages of one topic that go to a broker as one command, and get its one answer.

    Attributes:
        number: the sequence number of a SEND at its broker; 0 for other commands.
        is_refused: whether the broker has answered that it did not store it.
        is_split: whether to retry it as one command for each of its pending messages.
        is_due: whether the delay of a SEND's retry is over.
        stored: the answer of another broker that stored it less safely than wanted.
    """

    __slots__ = (
        "_first_sent_s",
        "_owner",
        "broker",
        "is_due",
        "is_refused",
        "is_split",
        "message_count",
        "number",
        "pendings",
        "size_bytes",
        "stored",
    )

    def __init__(self, owner: Accumulator, broker: InFlightQueue, pending: PendingPublish) -> None:
        self._owner = owner
        self._first_sent_s: float | None = None
        self.broker = broker
        self.pendings = [pending]
        self.message_count = len(pending.bodies)
        self.size_bytes = pending.size_bytes
        self.number = 0
        self.is_refused = False
        self.is_split = False
        self.is_due = True
        self.stored: SendResult | None = None

    @property
    def is_done(self) -> bool:
        """Whether all its messages have their outcome."""
        return all(pending.future.done() for pending in self.pendings)

    def move_to(self, broker: InFlightQueue) -> None:
        """Turn it into a SEND of another broker, with another number."""
        self.broker.drop(self)
        self.broker = broker
        self._first_sent_s = None
        broker.assign_number(self)

    def command(self, now_s: float) -> bytes:
        """Encode the command, to be sent now."""
        pendings = self.pendings
        first = pendings[0]
        if first.extras is not None and (fields := first.extras.fields) is not None:
            return send_command(pendings, fields.to_json() | self._sequence_fields(now_s))
        if len(pendings) == 1:
            if first.extras is not None and first.extras.defer_ms is not None:
                defer_ms = first.extras.defer_ms
                return commands.publish_deferred(first.topic, first.bodies[0], defer_ms)
            if len(first.bodies) == 1:
                return commands.publish(first.topic, first.bodies[0])
            return commands.publish_many(first.topic, first.bodies)
        bodies = list(chain.from_iterable([pending.bodies for pending in pendings]))
        return commands.publish_many(first.topic, bodies)

    def _sequence_fields(self, now_s: float) -> dict[str, Any]:
        """Return the fields by which the broker recognises a repeated SEND."""
        if not self.broker.producer:
            return {}
        fields: dict[str, Any] = {
            "producer": self.broker.producer.hex(),
            "sequence": self.number,
        }
        if self._first_sent_s is None:
            self._first_sent_s = now_s
        else:
            fields["age_ms"] = int((now_s - self._first_sent_s) * 1000) + 1
        return fields

    def succeed(self, first: SendResult | None) -> None:
        """Set the results, given that of the first message."""
        if first is None:
            for pending in self.pendings:
                if not pending.future.done():
                    pending.future.set_result(None)
            return
        starts = accumulate([len(pending.bodies) for pending in self.pendings], initial=0)
        for pending, result in zip(self.pendings, first.all_behind(starts)):  # noqa: B905, one more
            if not pending.future.done():
                pending.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set the error, unless another broker has stored the messages."""
        if self.stored is not None:
            self.succeed(self.stored)
            return
        for pending in self.pendings:
            pending.fail(error)

    # Called by the connection.

    def answered(self, data: bytes) -> None:
        """Handle the broker's answer. Raises PublishUnclear: the answer is unintelligible, and so
        are all after it.
        """
        if data == _OK and not self.number:
            self._owner.stored(self, None)
            return
        try:
            if not self.number:
                raise ValueError("it is not OK")
            fields: dict[str, Any] = json.loads(data)
            status = fields["status"]
            result = _result(fields, self.broker.name) if status in _STORED else None
        except (ValueError, LookupError, TypeError, RecursionError):
            what = "a send with {!r}" if self.number else "a publish with {!r} instead of OK"
            text = f"{self.broker.name} answered {what.format(data[:80])}"
            error = PublishUnclear(text)
            self._owner.lost_track(self, error)
            raise error from None
        if result is not None:
            self._owner.stored(self, result)
        else:
            self._owner.declined(self, Refused(str(status), str(fields.get("text", ""))))

    def refused(self, error: Refused) -> None:
        """Handle that the broker has refused it, and closes the connection."""
        self._owner.refused(self, error)

    def lost(self, error: ConnectionLost) -> None:
        """Do nothing: no answer will come, and `Accumulator.put_back` retries it."""


def send_command(pendings: list[PendingPublish], fields: dict[str, Any]) -> bytes:
    """Encode a SEND of messages with their extras."""
    topic = pendings[0].topic
    if len(pendings) == 1 and (extras := pendings[0].extras) is not None:
        return commands.send(topic, pendings[0].bodies, fields, pack_entries(extras.entries))
    bodies = list(chain.from_iterable([pending.bodies for pending in pendings]))
    entries: list[bytes] = []
    if any(pending.extras is not None and pending.extras.entries for pending in pendings):
        for pending in pendings:
            packed = () if pending.extras is None else pending.extras.entries
            entries += packed or [b""] * len(pending.bodies)
    return commands.send(topic, bodies, fields, pack_entries(entries))


def _result(fields: dict[str, Any], broker: str) -> SendResult:
    """Read the answer to a stored SEND. Raises ValueError, LookupError and TypeError."""
    offset, message_id = fields["offset"], fields["id"]
    return SendResult(
        PutStatus(fields["status"]),
        int(fields["queue"]),
        None if offset is None else int(offset),
        None if message_id is None else str(message_id).encode(),
        broker,
        bool(fields.get("duplicate")),
    )


@dataclass(eq=False, slots=True)
class InFlightQueue:
    """One broker, as the accumulator sees it; it has a producer id of its own."""

    name: str
    """The address at which the broker is, or was last."""
    limits: Limits
    producer: bytes
    """The id of this producer at this broker; empty if SENDs are not idempotent."""
    broker_id: str = ""
    """The broker's id, by which it is recognised at another address; empty until it is known, and
    of brokers that tell none.
    """
    has_replicas: bool = False
    """Whether it goes on at another address when its process ends."""
    batches: deque[ProducerBatch] = field(default_factory=deque)
    """Sent and not answered, the oldest first; the broker answers in this order."""
    message_count: int = 0
    """Messages in flight."""
    size_bytes: int = 0
    """Their bytes."""
    retries: deque[ProducerBatch] = field(default_factory=deque)
    """SENDs with a number that are to be sent again, by number."""
    sequence: int = 0
    """The last number given to a SEND."""
    pinned: deque[PendingPublish] = field(default_factory=deque)
    """Messages whose order key is pinned to this broker, waiting."""
    is_up: bool = False
    """Whether the broker is connected."""
    takes_sends: bool = False
    """Whether it is a Martlet broker, as far as is known."""
    is_held: bool = False
    """Whether nothing may be sent until all batches in flight are answered."""
    is_on_trial: bool = False
    """Whether the next batch must go alone, since the broker refused the last."""
    is_slow: bool = False
    """Whether to prefer others, since this one has not answered for long."""
    turn: int = 0
    """The number of the choice at which it was last chosen."""
    stored_count: int = 0
    refused_count: int = 0
    lost_count: int = 0
    """Messages that were in flight when the connection was lost."""
    refusals: int = 0
    """Batches refused since it last stored one."""
    on_answer: Callable[[], None] = lambda: None
    """Called when the broker has answered."""
    _numbered: dict[int, ProducerBatch] = field(default_factory=dict)
    """The unanswered SENDs, by number."""

    @property
    def home_name(self) -> str:
        """The name by which routing finds the broker of an order key."""
        return self.broker_id or self.name

    @property
    def has_numbered(self) -> bool:
        """Whether any SEND has a number here and no answer."""
        return bool(self._numbered)

    def has_room(self, pending: PendingPublish) -> bool:
        """Return whether this may be sent now; with nothing in flight everything may."""
        size_bytes = self.size_bytes
        limits = self.limits
        return not size_bytes or (
            size_bytes + pending.size_bytes <= limits.max_in_flight_bytes
            and self.message_count + len(pending.bodies) <= limits.max_in_flight_messages
        )

    def may_begin(self, pending: PendingPublish) -> bool:
        """Return whether a batch may begin with this now."""
        return (pending.extras is None or self.has_number_for(pending)) and self.has_room(pending)

    def has_number_for(self, pending: PendingPublish) -> bool:
        """Return whether this needs no number, or may have one now."""
        if pending.fields is None:
            return True
        # Retries have lower numbers: a new number could push theirs out of the broker's memory.
        oldest = next(iter(self._numbered), self.sequence + 1)
        return not self.retries and self.sequence + 1 - oldest < MAX_UNANSWERED

    def assign_number(self, batch: ProducerBatch) -> None:
        """Give a SEND the next number."""
        self.sequence += 1
        batch.number = self.sequence
        self._numbered[self.sequence] = batch

    def retry(self, batch: ProducerBatch) -> None:
        """Queue a SEND for a retry, in order of numbers."""
        index = next(
            (at for at, retried in enumerate(self.retries) if retried.number > batch.number),
            len(self.retries),
        )
        self.retries.insert(index, batch)

    def drop(self, batch: ProducerBatch) -> None:
        """Release the number of a SEND that is answered, or no longer tried here."""
        self._numbered.pop(batch.number, None)

    def take_batches(self) -> list[ProducerBatch]:
        """Remove all batches in flight, since the connection is lost."""
        batches = list(self.batches)
        self.batches.clear()
        self.message_count = 0
        self.size_bytes = 0
        self.is_held = False
        return batches
