"""A producer's desk at one Martlet broker: the numbers of its sends, and what is on its way there.

The broker knows the last 64 sends of a producer.  So no send is given a number while one that is 64
or more behind it has no answer: whatever is tried again is recognised.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from martlet.properties.model import PRODUCER_BYTES

if TYPE_CHECKING:
    from martlet.client.producer.broker_link import BrokerLink
    from martlet.client.producer.in_flight import InFlightQueue
    from martlet.client.producer.send_batch import SendBatch

MAX_UNANSWERED = 64


class ProducerSession:
    """What a producer sends to one broker.

    Attributes:
        link: the way there.
        producer: the producer's id at this broker.  Each desk has its own, as two addresses may
            lead to one broker.
        unanswered: the parcels that have a number and no answer, sent or to be sent again, by
            that number.
        again: those of them that are to be sent again, the oldest first.
        size_bytes: of all of them.
        turn: when it was chosen last, in choices.
    """

    def __init__(self, link: BrokerLink) -> None:
        self.link = link
        self.producer = os.urandom(PRODUCER_BYTES)
        self.unanswered: dict[int, SendBatch] = {}
        self.again: deque[SendBatch] = deque()
        self.size_bytes = 0
        self.turn = 0
        self._sequence = 0

    @property
    def name(self) -> str:
        """The broker's address."""
        return self.link.lane.name

    @property
    def lane(self) -> InFlightQueue:
        """Where NSQ's commands to the same broker are."""
        return self.link.lane

    @property
    def can_send(self) -> bool:
        """Whether the broker is connected and reads."""
        connection = self.link.connection
        if connection is None or not connection.features.extensions:
            return False
        return connection.is_alive and connection.can_write

    @property
    def has_room(self) -> bool:
        """Whether one more may be given a number."""
        oldest = next(iter(self.unanswered), self._sequence + 1)
        return not self.again and self._sequence + 1 - oldest < MAX_UNANSWERED

    def take(self, parcel: SendBatch) -> int:
        """Give a parcel the next number."""
        self._sequence += 1
        self.unanswered[self._sequence] = parcel
        self.size_bytes += parcel.size_bytes
        return self._sequence

    def keep(self, parcel: SendBatch) -> None:
        """Send a parcel again, in its place among the others."""
        place = next(
            (at for at, each in enumerate(self.again) if each.number > parcel.number),
            len(self.again),
        )
        self.again.insert(place, parcel)

    def drop(self, parcel: SendBatch) -> None:
        """A parcel has its answer, or is given up here."""
        if self.unanswered.pop(parcel.number, None) is not None:
            self.size_bytes -= parcel.size_bytes
