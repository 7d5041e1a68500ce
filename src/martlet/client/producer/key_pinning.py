"""Order over several brokers: each key is pinned to one lane while anything of it is unanswered.

So the messages of a key are in flight at one broker only, where they stay in order; and when its
connection is lost all of them, sent or not, move together.  A key of which nothing is unanswered is
forgotten, and is at home again where its hash says (see `martlet.client.producer.routing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.publication import OrderKey, PendingPublish
from martlet.client.producer.routing import home


class _Pin:
    """The lane to which a key is pinned, and how many of its publications are unanswered."""

    __slots__ = ("count", "lane")

    def __init__(self, lane: InFlightQueue | None) -> None:
        self.lane = lane
        self.count = 0


class KeyPinning:
    """The keys of what is unanswered.

    Attributes:
        pins: where each key is pinned.
        homeless: what waits while no broker is connected.
    """

    def __init__(self, lanes: Sequence[InFlightQueue]) -> None:
        self.homeless: deque[PendingPublish] = deque()
        self._lanes = lanes
        self.pins: dict[OrderKey, _Pin] = {}

    def add(self, publication: PendingPublish, key: OrderKey) -> None:
        """Have this wait behind what there is of its key."""
        pin = self.pins.get(key)
        if pin is None:
            pin = self.pins[key] = _Pin(home(self._lanes, key))
        pin.count += 1
        self._queue(pin.lane).append(publication)

    def settle(self, publication: PendingPublish) -> None:
        """This has its answer."""
        key = publication.order_key
        if key is None:
            return
        pin = self.pins[key]
        pin.count -= 1
        if not pin.count:
            del self.pins[key]

    def move(self, publications: Iterable[PendingPublish]) -> None:
        """Give these, which are all there is of their keys, other lanes, in this order."""
        homes: dict[OrderKey, InFlightQueue | None] = {}
        for publication in publications:
            key = publication.order_key
            assert key is not None
            if key not in homes:
                homes[key] = self.pins[key].lane = home(self._lanes, key)
            self._queue(homes[key]).append(publication)

    def house(self) -> None:
        """A broker is connected: what had no lane gets one."""
        homeless = list(self.homeless)
        self.homeless.clear()
        self.move(homeless)

    def _queue(self, lane: InFlightQueue | None) -> deque[PendingPublish]:
        return self.homeless if lane is None else lane.pinned
