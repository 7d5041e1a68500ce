"""Order keys over brokers of which not all take SENDs."""

import asyncio
from collections.abc import Iterator

import pytest

from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.in_flight import InFlightQueue, ProducerBatch
from martlet.client.producer.limits import Limits
from martlet.client.producer.pending import Extras, OrderKey, PendingPublish, SendFields
from martlet.client.producer.routing import broker_of_key

STORED = b'{"status": "OK", "queue": 0, "offset": 0, "id": "0000000000000000"}'


class Mixed:
    """An accumulator with an nsqd and a Martlet broker, and a key that belongs to the nsqd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits) -> None:
        self.loop = loop
        self.flushes = 0
        self.accumulator = Accumulator(limits)
        self.accumulator.on_room = self.on_room
        self.nsqd, self.martlet = map(self.accumulator.add_broker, ("nsqd:4150", "martlet:4150"))
        self.accumulator.connected(self.nsqd, takes_sends=False)
        self.accumulator.connected(self.martlet, takes_sends=True)
        keys: Iterator[OrderKey] = (("t", f"key {number}") for number in range(100))
        brokers = self.accumulator.brokers
        self.key = next(key for key in keys if broker_of_key(brokers, key) is self.nsqd)

    def on_room(self) -> None:
        self.flushes += 1

    def add(self, body: bytes, *, is_send: bool = False) -> PendingPublish:
        fields = SendFields(order_key=self.key[1]) if is_send else None
        pending = PendingPublish(
            "t",
            [body],
            len(body) + 4,
            self.loop.create_future(),
            deadline_s=9,
            order_key=self.key,
            extras=None if fields is None else Extras(1.0, fields=fields),
        )
        self.accumulator.add(pending)
        return pending

    def pack(self) -> list[ProducerBatch]:
        return self.accumulator.pack([self.nsqd, self.martlet])


def sent(batches: list[ProducerBatch]) -> list[tuple[InFlightQueue, list[bytes]]]:
    return [(batch.broker, [b for p in batch.pendings for b in p.bodies]) for batch in batches]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_send_moves_with_those_that_wait_behind_it(loop: asyncio.AbstractEventLoop) -> None:
    mixed = Mixed(loop, Limits(max_in_flight_messages=1))
    publishes = [mixed.add(b"publish %d" % number) for number in range(2)]
    mixed.add(b"send", is_send=True)
    mixed.add(b"behind")
    packed = mixed.pack()
    assert sent(packed) == [(mixed.nsqd, [b"publish 0"])]
    publishes[1].future.cancel()
    packed[0].answered(b"OK")
    mixed.flushes = 0
    assert not mixed.pack()
    assert mixed.flushes == 1, "they wait for another broker now"
    packed = mixed.pack()
    assert sent(packed) == [(mixed.martlet, [b"send"])]
    packed[0].answered(STORED)
    assert sent(mixed.pack()) == [(mixed.martlet, [b"behind"])]
    assert not mixed.nsqd.pinned
