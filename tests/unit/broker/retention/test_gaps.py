"""Holes: what was let go of is none, whatever the index knows of it."""

from __future__ import annotations

from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.retention.gaps import holes
from martlet.log import checkpoint_file


def start_and_gaps(core: Core) -> tuple[int, list[tuple[int, int]]]:
    return holes(core.broker.log, core.topic().queue)


def let_go(core: Core, segments: int, kept: int) -> int:
    """Finish some segments full of messages but one, which waits. Returns how many there were."""
    client = core.client("t").ready(1 << 20)
    count = len(core.fill("t", segments))
    client.requeue(kept, 3600 * SECOND_NS)
    client.finish(*[number for number in range(count) if number != kept])
    client.leave()
    core.broker.write_journal()
    core.checkpoint(3)
    return count


def test_nothing_is_missing(core: Core) -> None:
    core.publish("t", b"1")
    assert start_and_gaps(core) == (0, [])


def test_messages_dropped_with_their_segment_are_no_gap(core: Core) -> None:
    let_go(core, 2, kept=2)
    # Of so few segments none is cleaned: the first one stays for what waits in it.
    start = core.topic().queue.start_offset
    assert start > 2
    assert start_and_gaps(core) == (start, [])
    assert core.broker.log.segments[0].base == 0
    # An index that is made from the log knows nothing of what has gone.
    core.storage.remove(checkpoint_file.NAME)
    core.kill()
    rows = core.topic().queue.index
    assert rows.row(rows.first_row).first_offset == 0
    assert start_and_gaps(core)[1] == []
    assert start_and_gaps(core)[0] == core.topic().queue.start_offset > 2


def test_relocated_messages_have_no_gap_behind_them(core: Core) -> None:
    let_go(core, 8, kept=2)
    assert core.broker.log.segments[0].base > 0
    core.storage.remove(checkpoint_file.NAME)
    core.kill()
    rows = core.topic().queue.index
    assert rows.row(rows.first_row).first_offset == 2
    assert start_and_gaps(core) == (core.topic().queue.start_offset, [])
