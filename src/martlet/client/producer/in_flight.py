"""The way to one broker: what is in flight on it, and what may go nowhere else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from martlet.client.producer.limits import Limits
from martlet.client.producer.publication import PendingPublish, PublishBatch


class InFlightQueue:
    """What is sent to one broker and not answered, in order, and what waits for this broker.

    Attributes:
        name: the broker's address; it decides which keys are at home here.
        in_flight: the shipments, the oldest first; they are answered in this order.
        message_count: the messages in flight.
        size_bytes: their bytes.
        pinned: publications with an order key that wait to be sent here and nowhere else.
        is_up: whether the broker is connected.
        is_held: whether nothing may be sent until what is in flight is answered.
        is_on_trial: whether the next shipment is to go alone, as the broker refused the last.
        is_slow: whether others are to be preferred, as this one has not answered for long.
        turn: when it was chosen last, in choices.
        stored_count: messages that the broker has stored.
        refused_count: messages that it has refused.
        lost_count: messages that were in flight when the connection was lost.
        refusals: shipments that it has refused since it last stored one.
        on_answer: called when the broker has answered.
    """

    __slots__ = (
        "_limits",
        "in_flight",
        "is_held",
        "is_on_trial",
        "is_slow",
        "is_up",
        "lost_count",
        "message_count",
        "name",
        "on_answer",
        "pinned",
        "refusals",
        "refused_count",
        "size_bytes",
        "stored_count",
        "turn",
    )

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self._limits = limits
        self.in_flight: deque[PublishBatch] = deque()
        self.message_count = 0
        self.size_bytes = 0
        self.pinned: deque[PendingPublish] = deque()
        self.is_up = False
        self.is_held = False
        self.is_on_trial = False
        self.is_slow = False
        self.turn = 0
        self.stored_count = 0
        self.refused_count = 0
        self.lost_count = 0
        self.refusals = 0
        self.on_answer: Callable[[], None] = lambda: None

    def has_room(self, publication: PendingPublish) -> bool:
        """Whether this may be sent now; with nothing in flight, everything may."""
        size_bytes = self.size_bytes
        limits = self._limits
        return not size_bytes or (
            size_bytes + publication.size_bytes <= limits.max_in_flight_bytes
            and self.message_count + len(publication.bodies) <= limits.max_in_flight_messages
        )

    def clear(self) -> None:
        """Nothing is in flight any more, and nothing waits for this broker."""
        self.in_flight.clear()
        self.pinned.clear()
        self.message_count = 0
        self.size_bytes = 0
        self.is_held = False
