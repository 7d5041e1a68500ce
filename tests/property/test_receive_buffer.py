"""The buffer of received messages against the table of its states, event by event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from numpy.typing import NDArray
from tests.unit.client.scripted_broker import message_frame

from martlet.broker.queue.consumer import notes_of
from martlet.client import Message
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.buffer import BufferedRun, ReceiveBuffer
from martlet.client.errors import CallRefused
from martlet.client.transport.connection import OnDone
from martlet.protocol.nsq.message_run import MessageRun

NEW, FAILED, SUSPECT = "", "failed", "suspect"


class Answers:
    """The answers to one broker, as far as the buffer knows them; notes what is started."""

    touch_before_s = 0.0
    message_timeout_s = 1e6  # So patience, an eighth of it, does not end.
    are_extended = True

    def __init__(self, max_attempts: int) -> None:
        self.max_attempts = max_attempts
        self.dropped = 0
        self.begun: set[int] = set()
        """Those delivered up to one that was announced."""
        self.order: list[int] = []
        self.announcements: list[tuple[int, OnDone]] = []

    def started(self, message_id: bytes) -> None:
        number = int(message_id, 16)
        self.begun.update(self.order[: self.order.index(number) + 1])

    def announce(self, message_id: bytes, on_known: OnDone) -> None:
        self.started(message_id)
        self.announcements.append((int(message_id, 16), on_known))

    def finish(self, message_id: bytes) -> None:
        """It is answered."""


class Buffer:
    """A buffer, and where each message is: in it, out, or gone."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.kinds: list[str] = []
        self.owner: list[Answers] = []
        self.inside: set[int] = set()
        self.held: list[Message] = []
        """Those that the application has not answered."""
        self.batches: list[list[int]] = []
        """As well, in batches."""
        self.inbox = ReceiveBuffer()
        self.inbox.is_out = lambda: bool(self.held or self.batches)
        self.inbox.worker_count = random.choice([0, 1])
        self.brokers = [Answers(random.choice([0, 3, -1])) for _ in range(2)]
        self.announced_suspects: set[int] = set()
        """The suspects whose announcement was answered."""
        self.stale: list[int] = []
        """Those that have timed out at the broker, the oldest first."""
        self.inbox.on_expired = self.expire

    def expire(self, count: int) -> None:
        """Some have timed out: they are dropped when they would be next."""
        self.inside -= set(self.stale[:count])
        del self.stale[:count]

    def put(self, seconds: float = 1e5) -> None:
        answers = self.random.choice(self.brokers)
        first = len(self.kinds)
        new = self.random.choices([NEW, FAILED, SUSPECT], [3, 1, 1], k=self.random.randint(1, 5))
        frames = [
            message_frame(b"b", number=first + n, attempts=2 if kind else 1)
            for n, kind in enumerate(new)
        ]
        run = MessageRun.joined([MessageRun.uniform(frame, len(frame)) for frame in frames])
        run.properties = {
            n: notes_of(1, is_suspect=kind == SUSPECT) for n, kind in enumerate(new) if kind
        }
        numbers = range(first, first + len(new))
        self.kinds += new
        self.owner += [answers] * len(new)
        self.inside |= set(numbers)
        answers.order += numbers
        if seconds < 0:
            self.stale += numbers
        self.inbox.put(BufferedRun(cast(AckBatcher, answers), run, time.monotonic() + seconds))

    def refill(self) -> None:
        before = [int(message.id, 16) for message in self.inbox.ready]
        self.inbox._run_size = 8
        is_quick = self.random.random() < 0.5  # else a run is one message
        self.inbox._run_began_s = time.monotonic() + (1 if is_quick else -1e6)
        assert self.inbox.refill() == bool(self.inbox.ready)
        after = [int(message.id, 16) for message in self.inbox.ready]
        assert after[: len(before)] == before
        if not before and after:
            assert self.owner[after[0]].max_attempts == 0, "it was not announced before"

    def take(self) -> None:
        ready = self.inbox.ready
        numbers = [int(message.id, 16) for message in ready]
        if not numbers:
            return
        counted = self.owner[numbers[0]].max_attempts != 0
        if counted:
            assert set(numbers) <= self.owner[numbers[0]].begun, "the broker does not know"
            failed = [number for number in numbers if self.kinds[number]]
            assert not failed or len(numbers) == 1, "it is beside others"
            suspects = [number for number in numbers if self.kinds[number] == SUSPECT]
            assert set(suspects) <= self.announced_suspects, "the broker has not answered"
            if suspects and self.inbox.worker_count == 0:
                assert not self.inbox.is_out(), "others are handled"
        for _ in range(self.random.randint(1, len(ready))):
            message = ready.popleft()
            self.held.append(message)
            self.inside.remove(int(message.id, 16))

    def answer(self) -> None:
        if self.held:
            self.held.pop(self.random.randrange(len(self.held))).finish()
        elif self.batches:
            self.batches.pop()

    def announced(self, error: BaseException | None = None) -> None:
        """A broker answers that a suspect begins, or that it does not have it."""
        for answers in self.brokers:
            while answers.announcements:
                number, on_known = answers.announcements.pop()
                if error is None:
                    self.announced_suspects.add(number)
                count = self.inbox.count()
                on_known(error)
                if self.inbox.count() < count:
                    assert error is not None
                    self.inside.remove(number)

    def batch(self) -> None:
        batch = self.inbox.next_batch(self.random.randint(1, 6))
        if batch is not None:
            numbers = self.left(batch.ids)
            if self.owner[numbers[0]].max_attempts:
                suspects = [number for number in numbers if self.kinds[number] == SUSPECT]
                assert not suspects or (len(numbers) == 1 and not self.inbox.is_out())
            self.batches.append(numbers)

    def late(self) -> None:
        """The consumer takes out what will time out before a worker comes to it."""
        announced = list(self.inbox._reported)
        for _, ids in self.inbox.take_late(time.monotonic() + 1e6):
            self.left(ids)
        assert self.inbox._reported == announced

    def lost(self) -> None:
        """A connection is lost; its messages come again on another."""
        answers = self.random.choice(self.brokers)
        self.inbox.forget(cast(AckBatcher, answers))
        gone = {number for number in self.inside if self.owner[number] is answers}
        self.inside -= gone
        self.stale = [number for number in self.stale if number not in gone]

    def drain(self) -> None:
        """The consumer closes, and gives back what is in the buffer."""
        for _, ids in self.inbox.drain():
            self.left(ids)
        assert not self.inside

    def left(self, ids: NDArray[Any]) -> list[int]:
        """Note that messages have left the buffer, all of which were in it."""
        numbers = [int(bytes(message_id), 16) for message_id in ids.tolist()]
        assert len(set(numbers)) == len(numbers)
        assert self.inside >= set(numbers)
        self.inside -= set(numbers)
        self.stale = [number for number in self.stale if number in self.inside]
        return numbers


@pytest.mark.parametrize("seed", range(60))
async def test_each_message_is_in_the_state_that_the_table_says(seed: int) -> None:
    random = Random(seed)
    buffer = Buffer(random)
    events: dict[str, Callable[[], None]] = {
        "put": buffer.put,
        "put expired": partial(buffer.put, -1),
        "refill": buffer.refill,
        "take": buffer.take,
        "answer": buffer.answer,
        "announced": buffer.announced,
        "not in flight": partial(buffer.announced, CallRefused("NOT_IN_FLIGHT", "", {})),
        "batch": buffer.batch,
        "late": buffer.late,
        "lost": buffer.lost,
        "drain": buffer.drain,
    }
    usual = ["refill", "take", "announced", "answer"]
    for _ in range(300):
        event = random.choice(usual if random.random() < 0.8 else sorted(events))
        events["put" if not buffer.inside else event]()
        assert buffer.inbox.count() == len(buffer.inside)
        if random.random() < 0.5:
            await asyncio.sleep(0)
        assert buffer.inbox.count() == len(buffer.inside)
    buffer.drain()
    buffer.inbox.close()
