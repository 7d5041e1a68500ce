"""Order over several brokers: each key is pinned to one broker while anything of it is unanswered.

So the messages of a key are in flight at one broker only, where they stay in order; and when its
connection is lost all of them, sent or not, move together.  A key of which nothing is unanswered is
forgotten, and belongs to the broker of its hash again (see `martlet.client.producer.routing`).

Of a key with a SEND in flight, nothing else is: a SEND that a broker declines is repeated, and
those behind it would have overtaken it.  A SEND whose key is pinned to an nsqd waits likewise; then
the key is pinned to a Martlet broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from martlet.client.producer.in_flight import InFlightQueue, ProducerBatch
from martlet.client.producer.pending import OrderKey, PendingPublish
from martlet.client.producer.routing import broker_of_key


@dataclass(eq=False, slots=True)
class _Pin:
    """The messages of a key that are not answered, and the broker to which it is pinned."""

    broker: InFlightQueue | None = None
    """None while none is connected."""
    needs_sends: bool = False
    """Whether it has to be a Martlet broker."""
    count: int = 0
    """Unanswered messages of the key."""
    in_flight: int = 0
    """How many of these are sent."""
    send: ProducerBatch | None = None
    """The SEND in flight."""
    held: deque[PendingPublish] = field(default_factory=deque)
    """Messages that wait until nothing of the key is in flight."""


class KeyPinning:
    """The order keys of unanswered messages, each pinned to a broker.

    Args:
        on_moved: called when messages have moved to another broker's queue.

    Attributes:
        unassigned: messages that wait while no broker is connected.
    """

    def __init__(self, brokers: Sequence[InFlightQueue], on_moved: Callable[[], None]) -> None:
        self._on_moved = on_moved
        self.unassigned: deque[PendingPublish] = deque()
        self._brokers = brokers
        self.pins: dict[OrderKey, _Pin] = {}

    def queues(self) -> Iterator[deque[PendingPublish]]:
        """Yield the queues of messages that wait without a broker, or for others of their key."""
        yield self.unassigned
        for pin in self.pins.values():
            if pin.held:
                yield pin.held

    def add(self, pending: PendingPublish, key: OrderKey) -> None:
        """Queue a message behind those of its key."""
        pin = self.pins.get(key)
        if pin is None:
            pin = self.pins[key] = _Pin()
        if pending.extras is not None and pending.extras.fields is not None:
            pin.needs_sends = True
        pin.count += 1
        waiting = self._queue(key, pin) if pin.broker is None else pin.broker.pinned
        waiting.append(pending)

    def holds(
        self, waiting: deque[PendingPublish], key: OrderKey, batch: ProducerBatch | None
    ) -> bool:
        """Return whether the first waiting message must wait for others of its key, or for another
        broker. If so, it moves from the queue to the pin of its key.

        Args:
            batch: the batch that it may join, if any.
        """
        pin = self.pins[key]
        if not pin.needs_sends:
            assert not pin.held
            return False
        pending = waiting[0]
        if not pin.held:
            if not pin.in_flight:
                if not self._needs_another(pin, pending):
                    return False
            elif pending.fields is None:
                if pin.send is None:
                    return False
            elif batch is not None and pin.send is batch:
                return False
        pin.held.append(waiting.popleft())
        if not pin.in_flight:
            self._release(key, pin)
            self._on_moved()
        return True

    def sent(self, key: OrderKey, batch: ProducerBatch) -> None:
        """Count a message of the key as in flight."""
        pin = self.pins[key]
        pin.in_flight += 1
        if batch.number:
            pin.send = batch

    def settle(self, pending: PendingPublish, *, was_sent: bool) -> None:
        """Forget a message that is answered, or has failed."""
        key = pending.order_key
        if key is None:
            return
        pin = self.pins[key]
        pin.count -= 1
        pin.in_flight -= was_sent
        if not pin.count:
            del self.pins[key]
        elif not pin.in_flight:
            pin.send = None
            if pin.held:
                self._release(key, pin)

    def leave(self, broker: InFlightQueue, unsent: Iterable[PendingPublish]) -> None:
        """Pin the keys of a broker elsewhere, as its connection is gone.

        Args:
            broker: where they were pinned.
            unsent: messages that were in flight there and are sent again, in order.
        """
        waiting = list(unsent)
        held: list[PendingPublish] = []
        for pending in waiting:
            assert pending.order_key is not None
            pin = self.pins[pending.order_key]
            pin.in_flight -= 1
            if not pin.in_flight:
                pin.send = None
                held += pin.held
                pin.held.clear()
        waiting += held
        waiting += broker.pinned
        broker.pinned.clear()
        for pin in self.pins.values():
            if pin.broker is broker:
                pin.broker = None
        self._queue_all(waiting)

    def assign(self) -> None:
        """Pin the keys of messages that had no broker, now that one is connected."""
        waiting = list(self.unassigned)
        self.unassigned.clear()
        self._queue_all(waiting)

    def _queue_all(self, waiting: Iterable[PendingPublish]) -> None:
        for pending in waiting:
            key = pending.order_key
            assert key is not None
            self._queue(key, self.pins[key]).append(pending)

    def _needs_another(self, pin: _Pin, pending: PendingPublish) -> bool:
        """Whether this is a SEND at a broker that takes none, while there is one that does."""
        return (
            pending.fields is not None
            and pin.broker is not None
            and not pin.broker.takes_sends
            and any(broker.takes_sends for broker in self._brokers)
        )

    def _release(self, key: OrderKey, pin: _Pin) -> None:
        """Queue the held messages of a key, none of which is in flight."""
        broker = pin.broker
        if broker is not None and self._needs_another(pin, pin.held[0]):
            others: list[PendingPublish] = []
            for pending in broker.pinned:
                (pin.held if pending.order_key == key else others).append(pending)
            broker.pinned.clear()
            broker.pinned.extend(others)
            pin.broker = None
        self._queue(key, pin).extendleft(reversed(pin.held))
        pin.held.clear()

    def _queue(self, key: OrderKey, pin: _Pin) -> deque[PendingPublish]:
        if pin.broker is None:
            brokers = self._brokers
            if pin.needs_sends:
                brokers = [broker for broker in brokers if broker.takes_sends] or brokers
            pin.broker = broker_of_key(brokers, key)
        return self.unassigned if pin.broker is None else pin.broker.pinned
