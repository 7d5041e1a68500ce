"""Messages that wait in the buffer, and the cost of counting them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.unit.client.scripted_broker import ScriptedBroker, message_frame

from martlet.addresses import Address
from martlet.broker.queue.consumer import notes_of
from martlet.client import Batch, Identity, Message
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.buffer import BufferedRun, ReceiveBuffer
from martlet.client.errors import CallRefused
from martlet.client.transport.connection import Connection, OnDone
from martlet.protocol.nsq.message_run import MessageRun


class Walked(deque[BufferedRun]):
    """Counts how many runs are read one after the other."""

    steps = 0

    def __iter__(self) -> Iterator[BufferedRun]:
        for run in super().__iter__():
            self.steps += 1
            yield run


def run_of(count: int) -> MessageRun:
    frame = message_frame(b"body")
    return MessageRun.uniform(frame * count, len(frame))


async def test_filling_a_batch_does_not_count_all_that_waits_at_each_arrival() -> None:
    inbox = ReceiveBuffer()
    walked = inbox._runs = Walked()
    async with ScriptedBroker() as broker:
        connection = await Connection.open(Address.parse(broker.address), Identity())
        answers = AckBatcher(connection)
        filling = asyncio.create_task(inbox.fill(1000, 10))
        for _ in range(500):
            assert not filling.done()
            inbox.put(BufferedRun(answers, run_of(2), time.monotonic() + 60))
            await asyncio.sleep(0)
        await asyncio.wait_for(filling, 50)
        connection.abort()
    assert walked.steps < 1000


class RecordingBatcher(AckBatcher):
    """Answers of a channel that counts failures; records the messages reported as started."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.started_numbers: list[int] = []
        self.announcements: list[OnDone] = []
        """Called when the broker has answered."""
        self.is_prompt = True
        """Whether the broker answers at once."""

    @property
    def max_attempts(self) -> int:
        return 3

    def started(self, message_id: bytes) -> None:
        self.started_numbers.append(int(message_id, 16))

    def announce(self, message_id: bytes, on_known: OnDone) -> None:
        self.started(message_id)
        self.announcements.append(on_known)
        if self.is_prompt:
            asyncio.get_running_loop().call_soon(on_known, None)


@asynccontextmanager
async def recording_inbox() -> AsyncIterator[tuple[ReceiveBuffer, RecordingBatcher]]:
    async with ScriptedBroker() as broker:
        connection = await Connection.open(Address.parse(broker.address), Identity())
        yield ReceiveBuffer(), RecordingBatcher(connection)
        connection.abort()


def put(
    inbox: ReceiveBuffer, answers: AckBatcher, *notes: str, first: int = 0, seconds: float = 60
) -> None:
    """Deliver messages that are new (""), have failed before ("failed") or are suspects."""
    frames = [
        message_frame(b"b", number=first + n, attempts=2 if note else 1)
        for n, note in enumerate(notes)
    ]
    run = MessageRun.joined([MessageRun.uniform(frame, len(frame)) for frame in frames])
    run.properties = {
        index: notes_of(1, is_suspect=note == "suspect") for index, note in enumerate(notes) if note
    }
    inbox.put(BufferedRun(answers, run, time.monotonic() + seconds))


def number_of(message: Message) -> int:
    return int(message.id, 16)


async def take(inbox: ReceiveBuffer) -> list[Message]:
    """All that becomes ready next."""
    while not inbox.refill():
        await inbox.arrival()
    ready = list(inbox.ready)
    inbox.ready.clear()
    return ready


async def turns() -> None:
    """Let all happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_starts_are_reported_a_turn_before_messages_are_ready() -> None:
    async with recording_inbox() as (inbox, answers):
        put(inbox, answers, *[""] * 50)
        assert not inbox.refill()
        assert answers.started_numbers
        assert not inbox.ready
        assert not inbox.refill(), "and no more while that is on its way"
        await asyncio.sleep(0)
        assert [number_of(message) for message in inbox.ready][-1] == answers.started_numbers[0]


async def test_runs_grow_while_handlers_are_quick_and_shrink_when_one_is_slow() -> None:
    async with recording_inbox() as (inbox, answers):
        put(inbox, answers, *[""] * 500)
        inbox._run_size = 32
        inbox._run_began_s = time.monotonic() + 1
        assert len(await take(inbox)) == 64
        inbox._run_began_s = time.monotonic() - 1
        assert len(await take(inbox)) == 1
        assert answers.started_numbers == [63, 64]


async def test_a_lost_connection_ends_the_wait_for_its_answer() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.is_prompt = False
        put(inbox, answers, "suspect", "")
        taken = asyncio.create_task(take(inbox))
        await turns()
        other = RecordingBatcher(answers._connection)
        put(inbox, other, "", first=10)
        await turns()
        assert not taken.done()
        inbox.forget(answers)
        assert [number_of(message) for message in await taken] == [10]
        put(inbox, other, "", first=11)
        answers.announcements[0](None)
        assert [number_of(message) for message in await take(inbox)] == [11]


async def test_a_suspect_that_is_a_batch_begins_after_the_answer_too() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.is_prompt = False
        put(inbox, answers, "suspect", "")
        batch = inbox.next_batch(10)
        assert batch is not None
        assert len(batch) == 1
        begun = asyncio.create_task(inbox.begin(batch))
        await turns()
        assert answers.started_numbers == [0]
        assert not begun.done()
        answers.announcements[0](None)
        assert await begun
        begun = asyncio.create_task(inbox.begin(batch))
        await turns()
        inbox.close()
        assert not await begun


async def test_a_suspect_that_the_broker_has_taken_back_is_dropped() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.is_prompt = False
        inbox.worker_count = 1
        put(inbox, answers, "suspect", "")
        taken = asyncio.create_task(take(inbox))
        await turns()
        answers.announcements[0](CallRefused("NOT_IN_FLIGHT", "it timed out", {}))
        assert [number_of(message) for message in await taken] == [1]
        assert answers.dropped == 1


async def test_a_broker_that_does_not_answer_gets_its_messages_back() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.is_prompt = False
        answers.message_timeout_s = 0.08
        other = RecordingBatcher(answers._connection)
        put(inbox, answers, "suspect", "")
        put(inbox, answers, "suspect", first=5)
        put(inbox, other, "", first=10)
        assert [number_of(message) for message in await take(inbox)] == [10]
        assert answers.requeued == 3
        assert inbox.count() == 0


async def test_a_lost_suspect_does_not_hold_up_other_workers() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.is_prompt = False
        inbox.worker_count = 2
        takers = [asyncio.create_task(take(inbox)) for _ in range(2)]
        await turns()
        put(inbox, answers, "suspect")
        await turns()
        assert answers.started_numbers == [0]
        inbox.forget(answers)
        put(inbox, answers, "", first=1)
        async with asyncio.timeout(50):
            done, rest = await asyncio.wait(takers, return_when=asyncio.FIRST_COMPLETED)
        assert [number_of(message) for message in await done.pop()] == [1]
        rest.pop().cancel()


async def test_batches_after_messages_go_on_with_a_suspect_that_was_not_taken() -> None:
    async with recording_inbox() as (inbox, answers):
        put(inbox, answers, "suspect", "")
        while not inbox.refill():
            await inbox.arrival()
        batch = inbox.next_batch(10)
        assert batch is not None
        assert len(batch) == 1


async def test_a_suspect_waits_until_all_workers_are_idle_and_others_wait_for_it() -> None:
    async with recording_inbox() as (inbox, answers):
        inbox.worker_count = 2
        put(inbox, answers, "", "suspect", "")
        inbox._run_size = 1
        inbox._run_began_s = 0
        (first,) = await take(inbox)
        other = asyncio.create_task(take(inbox))  # the second worker; the first one is at work
        await turns()
        assert not other.done()
        assert answers.started_numbers == [0]
        first.finish()
        mine = asyncio.create_task(take(inbox))
        await asyncio.wait([other, mine], return_when=asyncio.FIRST_COMPLETED)
        done, waiting = (other, mine) if other.done() else (mine, other)
        (suspect,) = done.result()
        assert number_of(suspect) == 1
        await turns()
        assert not waiting.done()
        suspect.finish()
        inbox._wake(1)  # as the worker does that has handled it, and asks for the next
        assert [number_of(message) for message in await waiting] == [2]


async def test_a_handler_that_hangs_holds_up_no_suspect_for_ever() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.message_timeout_s = 0.4
        inbox.worker_count = 2
        put(inbox, answers, "", "suspect", "suspect", "")
        inbox._run_size = 1
        (_hangs,) = await take(inbox)
        async with asyncio.timeout(50):
            (suspect,) = await take(inbox)
            assert number_of(suspect) == 1
            suspect.finish()
            assert [number_of(message) for message in await take(inbox)] == [2], "at once now"


async def test_a_suspect_waits_for_messages_that_the_application_has() -> None:
    async with recording_inbox() as (inbox, answers):
        out: list[Message] = []
        inbox.is_out = lambda: any(not message.is_answered for message in out)
        put(inbox, answers, "", "suspect", "")
        inbox._run_size = 1
        out += await take(inbox)
        second = asyncio.create_task(take(inbox))
        await turns()
        assert not second.done()
        out[0].finish()
        out += await second
        assert number_of(out[1]) == 1
        third = asyncio.create_task(take(inbox))
        await turns()
        assert not third.done()
        out[1].finish()
        assert [number_of(message) for message in await third] == [2]


async def test_an_application_that_gathers_messages_gets_suspects_too() -> None:
    async with recording_inbox() as (inbox, answers):
        answers.message_timeout_s = 0.8
        out: list[Message] = []
        inbox.is_out = lambda: any(not message.is_answered for message in out)
        put(inbox, answers, *["suspect"] * 100)
        began_s = time.monotonic()
        while len(out) < 100:
            out += await take(inbox)
        assert [number_of(message) for message in out] == list(range(100))
        assert time.monotonic() - began_s < 60, "patience ends once, and not for each"


async def test_a_suspect_is_a_batch_of_its_own_beside_no_other() -> None:
    async with recording_inbox() as (inbox, answers):
        out: list[Batch] = []
        inbox.is_out = lambda: any(batch.is_open for batch in out)

        def next_size() -> int:
            batch = inbox.next_batch(100)
            out.extend([batch] if batch is not None else [])
            return len(batch or ())

        put(inbox, answers, "", "", "suspect", "", "")
        assert next_size() == 2
        assert next_size() == 0
        out[0].give_back()
        assert next_size() == 1
        assert next_size() == 0
        out[1].give_back()
        assert next_size() == 2


async def test_the_rest_of_a_run_behind_a_batch_times_out_when_that_run_does() -> None:
    async with recording_inbox() as (inbox, answers):
        now_s = time.monotonic()
        answers._connection.features = replace(answers._connection.features, extensions=1)
        put(inbox, answers, "", seconds=60)
        put(inbox, answers, "", "", first=1, seconds=120)
        assert len(inbox.next_batch(2) or ()) == 2
        assert not inbox.take_late(now_s + 90)
        assert len(inbox.take_late(now_s + 130)) == 1
