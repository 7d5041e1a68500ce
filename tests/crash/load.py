"""Load with a ledger: what clients were promised by the broker, kept on the clients' side.

A ledger outlives many lives of a broker.  It knows what was answered OK, what was finished and is
surely in the journal, and until when a message may not come; and it complains the moment that one
of these promises is broken.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from tests.crash.wire import ERROR, GONE, MESSAGE, Refused, Wire, dpub, message, mpub, pub

JOURNAL_INTERVAL_S = 0.01
EARLY_NS = 5_000_000
"""Two processes' clocks may differ by this much."""
STEPS = 5
"""A rest behind each of two writes of the round that has begun, the interval, and a rest between
two writes of the next round; and one more."""
STEP_S = 1.5 * JOURNAL_INTERVAL_S
"""No timer of the journal's is longer than the interval."""


@dataclass
class ChannelLedger:
    """The knowledge of a channel's consumers."""

    finished: set[bytes] = field(default_factory=set)
    journaled: set[bytes] = field(default_factory=set)
    """Finished, and surely written down."""
    not_before_ns: dict[bytes, int] = field(default_factory=dict)
    """Requeued with a delay, and surely written down."""
    delivered: set[bytes] = field(default_factory=set)
    life: set[bytes] = field(default_factory=set)
    """Finished in this life of the broker, written down or not."""


class Ledger:
    """The promises of a broker."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.answered: dict[str, set[bytes]] = {}
        """By topic: the bodies that were answered OK."""
        self.due_ns: dict[bytes, int] = {}
        """Published to come at this time, and not before."""
        self.channels: dict[tuple[str, str], ChannelLedger] = {}
        self.complaints: list[str] = []
        self._numbers = count()

    def channel(self, topic: str, channel: str) -> ChannelLedger:
        return self.channels.setdefault((topic, channel), ChannelLedger())

    def body(self) -> bytes:
        """A body that no other message has, of a size that few others have."""
        filling = b"." * self.random.choice((0, 50, 50, 50, 700))
        return b"%08d" % next(self._numbers) + filling

    def answer(self, topic: str, bodies: list[bytes]) -> None:
        self.answered.setdefault(topic, set()).update(bodies)

    def delivered(self, topic: str, channel: str, body: bytes) -> None:
        """A message has come: may it?"""
        now_ns = time.time_ns()
        promises = self.channel(topic, channel)
        promises.delivered.add(body)
        name = f"{topic}:{channel} {body[:8].decode()}"
        if body in promises.journaled:
            self.complaints.append(f"{name} was finished and journaled, and comes again")
        if body in promises.life:
            self.complaints.append(f"{name} was finished in this very life, and comes again")
        for state, due_ns in (
            ("deferred", self.due_ns.get(body, 0)),
            ("requeued", promises.not_before_ns.pop(body, 0)),
        ):
            if now_ns < due_ns - EARLY_NS:
                self.complaints.append(f"{name}, {state}, comes {due_ns - now_ns} ns too early")

    def died(self) -> None:
        """The broker has gone: what it had only in memory it may forget."""
        for promises in self.channels.values():
            promises.life.clear()

    def missing(self, topic: str, channel: str) -> set[bytes]:
        """Return messages answered OK that never came."""
        return self.answered.get(topic, set()) - self.channel(topic, channel).delivered


@dataclass
class JournalSteps:
    """The progress of the journal, counted by answers.

    `STEPS` timers, one set by the other, lie at most between a finish and its entry.  A command
    sent `STEP_S` after an answer is answered when each timer set before that answer has run, even
    if the broker had no processor for long: such answers are counted.
    """

    count: int = 0
    _answered_s: float = 0.0

    def answered(self, sent_s: float) -> None:
        """Count an answer to a command sent at this time."""
        if sent_s >= self._answered_s + STEP_S:
            self.count += 1
            self._answered_s = time.monotonic()

    def written_by(self) -> int:
        """Return the count whose answers are in the journal by now."""
        return self.count - STEPS


async def produce(ledger: Ledger, address: str, topic: str, delays_ms: tuple[int, ...]) -> None:
    """Publish in all ways, several in flight, until the broker goes."""
    wire = await Wire.open(address)
    owed: deque[list[bytes]] = deque()
    slots = asyncio.Semaphore(8)

    async def read() -> None:
        try:
            while True:
                await wire.ok()
                ledger.answer(topic, owed.popleft())
                slots.release()
        finally:
            slots.release()

    reader = asyncio.create_task(read())
    random = ledger.random
    try:
        while True:
            await slots.acquire()
            if reader.done():
                return await reader
            await asyncio.sleep(0)
            if delays_ms and random.random() < 0.3:
                body, delay_ms = ledger.body(), random.choice(delays_ms)
                ledger.due_ns[body] = time.time_ns() + delay_ms * 1_000_000
                bodies = [body]
                wire.send(dpub(topic, delay_ms, body))
            elif random.random() < 0.5:
                bodies = [ledger.body()]
                wire.send(pub(topic, bodies[0]))
            else:
                bodies = [ledger.body() for _ in range(random.randrange(1, 40))]
                wire.send(mpub(topic, bodies))
            owed.append(bodies)
            if random.random() < 0.02:
                await asyncio.sleep(random.random() * 0.02)
    finally:
        reader.cancel()
        wire.close()
        await asyncio.gather(reader, return_exceptions=True)


async def consume(
    ledger: Ledger, address: str, topic: str, channel: str, *, finish: float, requeue: float
) -> None:
    """Finish some, requeue some with a delay, keep the rest in flight, until the broker goes."""
    promises = ledger.channel(topic, channel)
    wire = await Wire.subscribed(address, topic, channel)
    wire.send(b"RDY 300\n")
    # A publish is answered when all that was sent before it has been handled.
    journal = JournalSteps()
    unsure: deque[tuple[int, list[bytes], dict[bytes, int]]] = deque()
    finished: list[bytes] = []
    requeued: dict[bytes, int] = {}
    held: deque[bytes] = deque()
    barrier_s = next_barrier_s = 0.0
    sent = finished, requeued
    try:
        while True:
            now_s = time.monotonic()
            if now_s >= next_barrier_s:
                barrier_s, next_barrier_s = now_s, math.inf
                sent = finished, requeued
                finished, requeued = [], {}
                wire.send(pub("barrier", b"x"))
            frame = await wire.answer()
            if frame.type == ERROR:
                raise Refused(frame.data.decode())
            if frame.type != MESSAGE:
                journal.answered(barrier_s)
                next_barrier_s = time.monotonic() + STEP_S
                unsure.append((journal.count, *sent))
                while unsure[0][0] <= journal.written_by():
                    _, done, again = unsure.popleft()
                    promises.journaled.update(done)
                    promises.not_before_ns.update(
                        {body: due for body, due in again.items() if body not in promises.finished}
                    )
                continue
            got = message(frame)
            ledger.delivered(topic, channel, got.body)
            chance = ledger.random.random()
            if chance < finish:
                wire.send(b"FIN %b\n" % got.id)
                finished.append(got.body)
                promises.finished.add(got.body)
                promises.life.add(got.body)
            elif chance < finish + requeue and got.attempts < 3:
                delay_ms = ledger.random.choice((50, 300, 1500))
                requeued[got.body] = time.time_ns() + delay_ms * 1_000_000
                wire.send(b"REQ %b %d\n" % (got.id, delay_ms))
            else:
                held.append(got.id)
                if len(held) > 150:
                    wire.send(b"REQ %b 0\n" % held.popleft())
    finally:
        wire.close()


async def until_gone(*work: asyncio.Task[None]) -> None:
    """Wait for clients whose broker was killed; whatever else ended them is raised."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, GONE):
            raise outcome
