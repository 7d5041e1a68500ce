"""Folders that were damaged while no broker ran on them, and what a start makes of them.

What is delivered, and what the log lines say, is the promise: no more is lost than what was
damaged, nothing finished comes back, and all damage is reported.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.written_folder import (
    BATCH_COUNT,
    BATCHES,
    FINISHED,
    SEGMENT_BYTES,
    WrittenFolder,
    bodies_of,
)

from martlet.cli.main import main
from martlet.log.record import HEADER_BYTES, BadRecord, read_record

pytestmark = pytest.mark.crash

ALL = [body for batch in range(BATCHES + 1) for body in bodies_of(batch)]
NEW = BATCHES + 1
"""The batch that is published after the damage."""
MORE = 120
"""Batches that fill more segments than are kept as spares."""


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WrittenFolder]:
    """Folders of brokers that were stopped, killed, and killed before any checkpoint."""
    made = {}
    for name, clean, flags in (
        ("stopped", True, ()),
        ("killed", False, ("--checkpoint-interval=20ms",)),
        ("unsaved", False, ("--checkpoint-interval=1h",)),
    ):
        path = tmp_path_factory.mktemp(name) / "data"
        folder = WrittenFolder(path, *flags, process=True)
        try:
            asyncio.run(folder.write(clean=clean, checkpointed=name == "killed"))
        finally:
            folder.broker.close()
        made[name] = folder
    return made


Folders = dict[str, WrittenFolder]


def copied(
    name: str, *, process: bool = False
) -> Callable[[Folders, Path], Iterator[WrittenFolder]]:
    def copy(originals: Folders, tmp_path: Path) -> Iterator[WrittenFolder]:
        folder = originals[name].copy(tmp_path / "data", process=process)
        yield folder
        folder.broker.close()

    return copy


stopped = pytest.fixture(copied("stopped"), name="stopped")
unsaved = pytest.fixture(copied("unsaved"), name="unsaved")
to_kill = pytest.fixture(copied("unsaved", process=True), name="to_kill")


@pytest.fixture(params=["stopped", "killed"])
def either(
    request: pytest.FixtureRequest, originals: Folders, tmp_path: Path
) -> Iterator[WrittenFolder]:
    yield from copied(request.param)(originals, tmp_path)


async def finds(folder: WrittenFolder, expected: list[bytes]) -> None:
    """Check that the channel has just these left, and that new messages come behind them."""
    await folder.publish(range(NEW, NEW + 1))
    left = await folder.left()
    assert sorted(left) == sorted(expected + bodies_of(NEW))
    assert left[-BATCH_COUNT:] == bodies_of(NEW)


def without(*batches: int) -> list[bytes]:
    """Return the messages left for the channel when these batches are lost."""
    lost = {body for batch in batches for body in bodies_of(batch)}
    return [body for body in ALL[FINISHED:] if body not in lost]


def lost_lines(folder: WrittenFolder) -> list[str]:
    return re.findall(r"topic t, channel c: messages (\d+ to \d+) are lost", folder.broker.log())


def lost_count(folder: WrittenFolder) -> int:
    """Return the number of messages in those lines."""
    ends = (map(int, line.split(" to ")) for line in lost_lines(folder))
    return sum(last - first + 1 for first, last in ends)


@pytest.mark.parametrize("kept_bytes", [HEADER_BYTES, HEADER_BYTES + 1000])
async def test_a_torn_tail_is_cut(unsaved: WrittenFolder, kept_bytes: int) -> None:
    last = unsaved.batches()[-1]
    unsaved.overwrite(last.position + kept_bytes, bytes(SEGMENT_BYTES)[: last.length - kept_bytes])
    for at in range(last.next_position, last.next_position + 4000, 8):  # the journal behind it
        unsaved.overwrite(at, bytes(8))
    assert main(["log", "verify", str(unsaved.path)]) == 0
    said = await unsaved.start()
    assert f"cut a torn tail at position {last.position}: " in said
    assert "the checksum does not fit" in said
    await finds(unsaved, without(BATCHES))
    assert unsaved.broker.stop() == 0
    assert main(["log", "verify", str(unsaved.path)]) == 0


async def test_a_tail_of_which_the_header_is_torn_is_the_end(unsaved: WrittenFolder) -> None:
    last = unsaved.batches()[-1]
    unsaved.overwrite(last.position + 40, bytes(last.length - 40 + 4000))
    said = await unsaved.start()
    assert f"going on at position {last.position}" in said
    await finds(unsaved, without(BATCHES))


async def test_a_flipped_bit_behind_the_checkpoint_costs_its_batch(unsaved: WrittenFolder) -> None:
    hit = unsaved.batches()[30]
    unsaved.flip(hit.position + HEADER_BYTES + 500)
    assert main(["log", "verify", str(unsaved.path)]) == 1
    said = await unsaved.start()
    assert f"{hit.length} bytes from position {hit.position} are lost" in said
    assert "the checksum does not fit" in said
    await finds(unsaved, without(30))


HALF = FINISHED // BATCH_COUNT
"""The batch that is half finished: the rest of it was in flight, and is read one by one."""


@pytest.mark.parametrize(
    ("batch", "byte"),
    [(30, 12), (30, 20), (30, 40), (30, HEADER_BYTES + 500), (HALF, HEADER_BYTES + 500)],
)
async def test_a_flipped_bit_before_the_checkpoint_is_found_on_delivery(
    stopped: WrittenFolder, batch: int, byte: int
) -> None:
    stopped.flip(stopped.batches()[batch].position + byte)
    said = await stopped.start()
    assert "lost" not in said
    await finds(stopped, without(batch))
    first, end = max(batch * BATCH_COUNT, FINISHED), (batch + 1) * BATCH_COUNT
    assert lost_lines(stopped)[0].startswith(f"{first} to ")
    assert lost_count(stopped) == end - first


async def test_stale_bytes_of_a_recycled_segment_are_not_read(to_kill: WrittenFolder) -> None:
    """Records that were good in an earlier life of the file, right behind the log's end."""
    await to_kill.start()
    assert sorted(await to_kill.left()) == sorted(ALL[FINISHED:])
    assert to_kill.broker.stop() == 0  # a checkpoint: the segments before it are let go
    to_kill.broker.start()
    for batch in range(NEW, NEW + MORE):
        await to_kill.publish(range(batch, batch + 1))
        if stale_records(to_kill.segments()[-1]):
            break
    else:
        raise AssertionError("no segment was used again")
    to_kill.kill()
    assert main(["log", "verify", str(to_kill.path)]) == 0
    said = await to_kill.start()
    assert "lost" not in said
    assert "cut" not in said
    new = [body for number in range(NEW, batch + 1) for body in bodies_of(number)]
    assert sorted(await to_kill.left()) == sorted(new)


def stale_records(path: Path) -> list[int]:
    """Where the last segment holds whole records of other positions."""
    data = path.read_bytes()
    positions = []
    for match in re.finditer(b"MTLG", data):
        position = int.from_bytes(data[match.start() + 16 : match.start() + 24], "little")
        if position == int(path.stem) + match.start():
            continue
        try:
            read_record(data, match.start(), position)
        except BadRecord:
            continue
        positions.append(match.start())
    return positions


def cut(folder: WrittenFolder, segment: Path, left_bytes: int = 0) -> list[int]:
    """Cut a segment short. Returns the batches that it had behind that."""
    inside = [
        header.first_offset // BATCH_COUNT
        for header in folder.batches()
        if folder.file_of(header.position)[0] == segment
        and header.next_position - int(segment.stem) > left_bytes
    ]
    os.truncate(segment, left_bytes)
    return inside


async def test_a_missing_segment_costs_its_messages(
    either: WrittenFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = either.segments()[1]
    inside = cut(either, segment)
    segment.unlink()
    assert len(inside) > 10
    assert main(["log", "verify", str(either.path)]) == 1
    assert "that channels need" in capsys.readouterr().out
    await either.start()
    await finds(either, without(*inside))
    lost = lost_lines(either)
    assert lost[0].split(" to ")[0] == str(inside[0] * BATCH_COUNT)
    assert lost[-1].split(" to ")[1] == str((inside[-1] + 1) * BATCH_COUNT - 1)


@pytest.mark.parametrize(
    ("number", "left_bytes"), [(1, 50), (1, SEGMENT_BYTES // 2 + 3), (-1, 0), (-1, 4001)]
)
async def test_a_segment_cut_short_loses_only_the_cut_messages(
    stopped: WrittenFolder, number: int, left_bytes: int
) -> None:
    """As a copy that broke off leaves it, at any length."""
    inside = cut(stopped, stopped.segments()[number], left_bytes)
    said = await stopped.start()
    assert ("the log ends before the checkpoint's position" in said) is (number == -1)
    await finds(stopped, without(*inside))
    assert lost_count(stopped) == len(inside) * BATCH_COUNT


async def test_all_segments_missing(stopped: WrittenFolder) -> None:
    for segment in stopped.segments():
        segment.unlink()
    await stopped.start()
    await finds(stopped, [])
    assert lost_lines(stopped)
    assert stopped.broker.stop() == 0
