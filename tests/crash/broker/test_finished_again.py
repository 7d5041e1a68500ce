"""Finished messages that come again after a kill: only those not yet in the journal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.wire import Wire, drain, http, mpub

from martlet.broker.journal.cursor_entry import CursorState
from martlet.durations import MILLISECOND_NS
from martlet.log.folder import Folder
from martlet.log.record import BadRecord, RecordKind, read_record
from martlet.options import BrokerOptions
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

BATCH = 50
BODY_BYTES = 2000


def cursors(folder: Path) -> list[tuple[int, int]]:
    """Return of each cursor entry of the one channel when it was written, and how many messages
    are finished by then.
    """
    found = []
    state = CursorState(0, 0)
    for segment in Folder(folder).segments():
        at = 0
        while at < segment.capacity:
            try:
                header, record = read_record(segment.view, at, segment.base + at)
            except BadRecord:
                break
            if header.kind == RecordKind.CURSOR:
                assert state.apply(bytes(record[80 : 80 + header.payload_length]))
                unfinished = sum(end - first for first, end in state.ranges)
                found.append((header.stored_at_ns, state.next - unfinished))
            at += header.length
    return found


async def set_up(broker: BrokerProcess) -> Wire:
    await http(broker.http_address, "/topic/create?topic=t", b"")
    await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(b"RDY 2000\n")
    return wire


def batches() -> Iterator[list[bytes]]:
    numbers = itertools.count()
    while True:
        yield [b"%010d" % next(numbers) * (BODY_BYTES // 10) for _ in range(BATCH)]


async def finish(wire: Wire, count: int) -> set[bytes]:
    """Finish the next messages, and return once the broker has heard of it."""
    finished = set()
    for _ in range(count):
        got = await wire.message()
        wire.send(b"FIN %b\n" % got.id)
        finished.add(got.body)
    return finished


async def test_a_kill_brings_back_messages_finished_within_the_interval(tmp_path: Path) -> None:
    """A consumer of a backlog: nothing is published meanwhile that the cursor could go with."""
    interval_ns = BrokerOptions().journal_interval_ns
    assert interval_ns <= 100 * MILLISECOND_NS
    finished: set[bytes] = set()
    with BrokerProcess(tmp_path, "--checkpoint-interval=1h") as broker:
        wire = await set_up(broker)
        wire.send(b"RDY 0\n")
        for bodies in itertools.islice(batches(), 100):
            wire.send(mpub("t", bodies))
            await wire.ok()
        wire.send(b"RDY 500\n")
        while len(cursors(tmp_path)) < 12:
            finished |= await finish(wire, 4)
        broker.kill()
        wire.close()
        written = cursors(tmp_path)
        broker.start()
        again = {got.body for got in await drain(broker.tcp_address, broker.http_address, "t", "c")}
    rests_ns = sorted(later[0] - earlier[0] for earlier, later in itertools.pairwise(written))
    assert rests_ns[len(rests_ns) // 2] < 5 * interval_ns
    assert len(finished & again) == len(finished) - written[-1][1]


async def test_finishes_are_written_along_with_stored_messages(tmp_path: Path) -> None:
    """However rarely the journal's own turn comes."""
    rounds = 60
    finished: set[bytes] = set()
    with BrokerProcess(tmp_path, "--journal-interval=1h", "--checkpoint-interval=1h") as broker:
        wire = await set_up(broker)
        publisher = await Wire.open(broker.tcp_address)
        for bodies in itertools.islice(batches(), rounds):
            publisher.send(mpub("t", bodies))
            await publisher.ok()
            finished |= await finish(wire, BATCH)
        broker.kill()
        wire.close()
        publisher.close()
        written = cursors(tmp_path)
        broker.start()
        again = {got.body for got in await drain(broker.tcp_address, broker.http_address, "t", "c")}
    assert len(written) > rounds // 20
    assert len(finished & again) < len(finished) // 4
