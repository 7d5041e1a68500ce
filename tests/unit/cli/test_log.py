"""Verifying and dumping logs that a broker wrote, whole ones and damaged ones."""

import asyncio
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import aiohttp
import pytest
from tests.unit.broker.disk_core import SEGMENT_BYTES, DiskCore

from martlet.broker.broker import BrokerCore as Core
from martlet.broker.recovery.journal_replay import needed_by
from martlet.broker.recovery.restore import restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.cli.log import main
from martlet.log.cut import cut_off
from martlet.log.folder import Folder
from martlet.log.index import ENTRY
from martlet.log.record import Header, RecordKind, seal_again
from martlet.log.recovery import RecoveryReport, scan
from martlet.log.storage import DiskStorage
from martlet.log.verify import Verification, batch_trouble, verify
from martlet.testing import Broker, BrokerProcess, SimulatedClock

EPOCH_NS = 1_700_000_000_000_000_000


class TickingClock(SimulatedClock):
    """A clock that goes on by a millisecond with each look at the date."""

    def wall(self) -> int:
        return self.advance(1_000_000)


class Writer:
    """A broker's core on a real folder, which is left with or without a checkpoint."""

    def __init__(self, path: Path) -> None:
        self.storage = DiskStorage(path)
        self.core: Core
        self.core, _ = restore(
            self.storage, TickingClock(EPOCH_NS), Random(1), segment_bytes=SEGMENT_BYTES
        )

    def publish(self, topic: str, *bodies: bytes) -> None:
        self.core.topic(topic).stage(list(bodies))
        self.core.commit()

    def checkpoint(self) -> None:
        job = begin_checkpoint(self.core)
        job.flush.run()
        job.save()
        end_checkpoint(self.core, job)

    def close(self) -> None:
        self.storage.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two topics over several segments, and a checkpoint with all of it."""
    writer = Writer(tmp_path)
    for number in range(40):
        same = [b"%04d" % one + b"x" * 40 for one in range(50)]
        writer.publish("uniform", *same)
        writer.publish(
            "mixed", *(body[: 1 + (number + length) % 44] for length, body in enumerate(same))
        )
    writer.checkpoint()
    writer.close()
    return tmp_path


def records(path: Path) -> list[tuple[Header, bytes]]:
    return [(h, bytes(r)) for h, r in scan(Folder(path).segments(), 0, RecoveryReport())]


def overwrite(path: Path, position: int, data: bytes) -> None:
    for segment in Folder(path).segments():
        if segment.base <= position < segment.base + segment.capacity:
            with open(path / "log" / f"{segment.base:020d}.log", "r+b") as file:
                os.pwrite(file.fileno(), data, position - segment.base)


def flip(path: Path, position: int) -> None:
    for header, record in records(path):
        if header.position <= position < header.next_position:
            overwrite(path, position, bytes([record[position - header.position] ^ 1]))
            return
    raise AssertionError(f"no record at position {position}")


def look(path: Path) -> Verification:
    return verify(Folder(path))


def test_a_log_that_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = look(folder)
    assert entries.damage == []
    assert entries.notes == []
    assert entries.segments >= 4
    assert entries.index_rows == 80
    assert {queue.end_offset for queue in entries.queues.values()} == {2000}
    assert entries.end_position == records(folder)[-1][0].next_position
    assert main(["verify", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.endswith("OK\n")
    assert "topic uniform queue 0: offsets 0 up to 2000 in 40 batches" in out


def test_progress_is_reported_up_to_the_end(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    verify(Folder(folder), lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] > 0
    assert len(calls) >= 4


@pytest.mark.parametrize("place", ["magic", "header", "frames", "trailer"])
def test_a_flipped_bit_is_found(
    folder: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header, _ = records(folder)[20]
    assert header.kind == RecordKind.BATCH
    at = {"magic": 0, "header": 41, "frames": 200, "trailer": header.ends_at + 5}[place]
    flip(folder, header.position + at)
    entries = look(folder)
    assert any(f"from position {header.position} are lost" in text for text in entries.damage)
    assert any("are missing" in text for text in entries.damage)
    assert main(["verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert f"DAMAGED: {entries.damage_count} errors; one damaged record can cause several" in out
    assert re.search(r"DAMAGE: topic [a-z]+ queue 0: offsets \d+ up to \d+ are missing$", out, re.M)
    assert main(["dump", str(folder)]) == 1
    dumped = capsys.readouterr()
    assert len(dumped.out.splitlines()) == len(records(folder))
    assert f"from position {header.position} are lost" in dumped.err


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.publish("t", b"kept")
    writer.checkpoint()
    end = writer.core.log.position
    writer.publish("t", b"torn" * 1000)
    writer.close()
    last, record = records(tmp_path)[-1]
    assert last.position == end
    overwrite(tmp_path, last.position + 2048, bytes(len(record) - 2048))
    entries = look(tmp_path)
    assert entries.damage == []
    assert entries.notes[0].startswith(f"a torn tail at position {last.position}")
    assert entries.end_position == end


def test_a_tail_that_the_checkpoint_knows_is_damage(folder: Path) -> None:
    last, _ = records(folder)[-1]
    flip(folder, last.position)
    entries = look(folder)
    assert any(f"the log ends at {last.position}" in text for text in entries.damage)
    assert any(f"points to position {last.position}" in text for text in entries.damage)


def test_an_index_that_is_missing_or_cut_is_found(folder: Path) -> None:
    names = sorted(os.listdir(folder / "index"))
    (folder / "index" / names[0]).unlink()
    os.truncate(folder / "index" / names[1], 3 * ENTRY.itemsize + 1)
    missing, cut = look(folder).damage
    assert missing.startswith(f"the index index/{names[0]} is missing; a broker makes it from")
    assert "is cut: 121 bytes hold no 40 rows" in cut


def test_an_index_row_that_points_elsewhere_is_found(folder: Path) -> None:
    name = sorted(os.listdir(folder / "index"))[0]
    with open(folder / "index" / name, "r+b") as file:
        row = 7 * ENTRY.itemsize
        wrong = int.from_bytes(os.pread(file.fileno(), 8, row + 8), "little") + 8
        os.pwrite(file.fileno(), wrong.to_bytes(8, "little"), row + 8)
    (damage,) = look(folder).damage
    assert damage.startswith(
        f"the index index/{name}: row 7 (offset 350) points to position {wrong}"
    )


def test_without_a_checkpoint_the_log_alone_counts(folder: Path) -> None:
    (folder / "checkpoint").unlink()
    entries = look(folder)
    assert entries.damage == []
    assert entries.notes == ["there is no checkpoint; a broker reads the whole log when it starts"]


def test_a_damaged_checkpoint_is_found(folder: Path) -> None:
    data = bytearray((folder / "checkpoint").read_bytes())
    data[100] ^= 1
    (folder / "checkpoint").write_bytes(data)
    (damage,) = look(folder).damage
    assert damage.startswith("the checkpoint is damaged: position 0: the checksum does not fit")


@pytest.mark.parametrize(
    ("change", "trouble"),
    [
        (lambda record, ends: record.__setitem__(slice(98, 114), b"g" * 16), "not hexadecimal"),
        (lambda record, ends: record.__setitem__(113, ord("0") + 9), "do not count up"),
        (lambda record, ends: record.__setitem__(83, record[83] + 1), "another size"),
        (lambda record, ends: record.__setitem__(87, 1), "not of the type of messages"),
        (lambda record, ends: record.__setitem__(ends, record[ends] + 1), "one size"),
        (lambda record, ends: record.__setitem__(ends + 4 * 49, 0), "do not fit"),
    ],
)
def test_a_batch_with_a_good_checksum_may_still_be_wrong(
    folder: Path, change: Callable[[bytearray, int], None], trouble: str
) -> None:
    header, content = next(
        (h, r) for h, r in records(folder) if h.kind == RecordKind.BATCH and h.first_offset == 50
    )
    assert batch_trouble(header, memoryview(content)) is None
    record = bytearray(content)
    change(record, header.ends_at)
    seal_again(record, position=header.position, epoch=header.epoch, flags=header.flags)
    message = batch_trouble(header, memoryview(record))
    assert message is not None
    assert trouble in message
    overwrite(folder, header.position, bytes(record))
    assert any(f"position {header.position}: {message}" in text for text in look(folder).damage)


@pytest.mark.parametrize(
    ("at", "byte", "trouble"),
    [
        (98, ord("g"), "not hexadecimal"),
        (83, 36, "another size"),
        (87, 1, "not of the type of messages"),
        (120, 34, "do not fit"),
    ],
)
def test_a_lone_message_may_be_wrong_too(tmp_path: Path, at: int, byte: int, trouble: str) -> None:
    writer = Writer(tmp_path)
    writer.publish("t", b"alone")
    writer.close()
    header, content = records(tmp_path)[-1]
    assert batch_trouble(header, memoryview(content)) is None
    record = bytearray(content)
    record[at] = byte
    message = batch_trouble(header, memoryview(record))
    assert message is not None
    assert trouble in message


def test_recycled_segments_are_no_damage(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    channel = writer.core.topic("t").channel("c")
    for number in range(200):
        writer.publish("t", b"%d" % number * 1000)
        if number % 20 == 19:
            channel.advance(writer.core.topics["t"].queue.end_offset - 5)
            writer.checkpoint()
    inodes = {path.stat().st_ino for path in (tmp_path / "log").iterdir()}
    assert writer.core.log.position > len(inodes) * SEGMENT_BYTES
    writer.close()
    entries = look(tmp_path)
    assert entries.damage == []
    (queue,) = entries.queues.values()
    assert queue.start_offset > 0
    assert queue.end_offset == 200


def test_moved_batches_are_no_damage(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    forgotten = writer.core.topic("slow").channel("forgotten")
    busy = writer.core.topic("busy").channel("c")
    for number in range(400):
        if number % 100 == 0:
            writer.publish("slow", b"not yet finished %d" % number)
        writer.publish("busy", b"%d" % number * 500)
        if number % 50 == 49:
            busy.advance(writer.core.topics["busy"].queue.end_offset)
            writer.checkpoint()
            forgotten.advance(number // 200)
    writer.checkpoint()
    writer.close()
    entries = look(tmp_path)
    assert entries.damage == []
    slow = entries.queues[writer.core.topics["slow"].id, 0]
    assert slow.moved > 0
    assert slow.end_offset == 4


@pytest.mark.parametrize("missing", [".", "log"])
def test_says_that_there_is_no_log(
    tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nowhere" if missing == "." else tmp_path
    assert main(["verify", str(folder)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"martlet log: {folder} ")


def test_dumps_records_for_people_and_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(folder), "--limit", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "kind=epoch" in lines[0]
    assert 'entry={"op":"topic","topic":{"id":1,"name":"uniform"' in lines[2]
    assert "kind=batch topic=uniform queue=0 first_offset=0 count=50" in lines[3]
    position = records(folder)[10][0].position
    assert main(["dump", str(folder), "--json", f"--from={position}", "--limit=1"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["position"] == position
    assert row["kind"] == "batch"


def test_dumps_the_messages_of_a_topic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(tmp_path)
    writer.publish("t", "one\u00fc".encode(), b"two\n")
    writer.publish("t", b"\xff\xfe", b"x" * 500)
    writer.close()
    assert main(["dump", str(tmp_path), "--topic", "t", "--json", "--from=1"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert rows[0]["body"] == "two\n"
    assert rows[1]["body_base64"] == "//4="
    assert rows[2]["body"] == "x" * 500
    assert int(rows[2]["id"], 16) - int(rows[0]["id"], 16) == 2
    assert main(["dump", str(tmp_path), "--topic=t"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith('body="one\u00fc"')
    assert lines[3].endswith("x...")
    assert main(["dump", str(tmp_path), "--topic=none"]) == 2
    assert "the log knows no topic 'none'" in capsys.readouterr().err


def test_dumps_what_a_failover_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Writer(tmp_path)
    writer.publish("t", b"kept")
    start = records(tmp_path)[-1][0].next_position
    writer.publish("t", b"cut off")
    writer.publish("later", b"cut off, too")
    end = records(tmp_path)[-1][0].next_position
    tail = cut_off(writer.storage, writer.core.log.segments, start, end, epoch=2)
    writer.close()
    [kept] = tail.kept
    assert main(["dump", str(tmp_path), "--topic=t", "--json"]) == 0
    assert [json.loads(x)["body"] for x in capsys.readouterr().out.splitlines()] == ["kept"]
    for topic, body in (("t", "cut off"), ("later", "cut off, too")):
        assert main(["dump", str(tmp_path / kept), f"--topic={topic}", "--json"]) == 0
        assert [json.loads(x)["body"] for x in capsys.readouterr().out.splitlines()] == [body]
    assert main(["dump", str(tmp_path / kept), "--limit=1"]) == 0
    assert f"position={start} " in capsys.readouterr().out


def test_dumps_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint").write_bytes(b"x")
    assert main(["dump", str(tmp_path / "checkpoint")]) == 2
    assert "is no file that a failover cut off: name one of DATA/cut" in capsys.readouterr().err


async def test_a_folder_in_use_is_read_while_it_changes() -> None:
    async with (
        Broker(max_bytes_per_file=SEGMENT_BYTES, checkpoint_interval_ns=20_000_000) as broker,
        aiohttp.ClientSession(f"http://{broker.http_address}") as session,
    ):
        await session.post("/topic/create?topic=t")
        await session.post("/channel/create?topic=t&channel=c")
        done = asyncio.Event()

        async def publish_and_advance() -> None:
            offset = 0
            while not done.is_set():
                for _ in range(5):
                    await session.post("/mpub?topic=t", data=b"\n".join([b"x" * 200] * 40))
                    offset += 40
                await session.post(f"/channel/advance?topic=t&channel=c&offset={offset - 60}")

        task = asyncio.create_task(publish_and_advance())
        log = broker.server.broker.log
        while log.position < 20 * SEGMENT_BYTES:
            entries = await asyncio.to_thread(look, broker.data_path)
            assert entries.damage == []
            assert entries.in_use
        done.set()
        await task


@pytest.mark.crash
def test_a_folder_of_a_killed_broker_verifies(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--checkpoint-interval=50ms") as broker:
        asyncio.run(_publish_until_killed(broker))
        entries = look(tmp_path)
        assert not entries.in_use
        assert entries.damage == []
        (queue,) = entries.queues.values()
        assert queue.end_offset >= 100
        broker.start()


async def _publish_until_killed(broker: BrokerProcess) -> None:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:

        async def publish() -> None:
            while True:
                await session.post("/mpub?topic=t", data=b"\n".join([b"x" * 100] * 100))

        tasks = [asyncio.create_task(publish()) for _ in range(4)]
        while True:
            stats = await (await session.get("/stats?format=json")).json()
            if stats["topics"] and stats["topics"][0]["message_count"] > 5000:
                break
        await asyncio.to_thread(broker.kill)
        assert all(
            isinstance(error, aiohttp.ClientError)
            for error in await asyncio.gather(*tasks, return_exceptions=True)
        )


def test_what_is_done_by_the_checkpoint_is_not_needed_by_a_newer_head(tmp_path: Path) -> None:
    """A segment began while the checkpoint was flushed: its head doubts what was forwarded."""
    core = DiskCore(tmp_path)
    client = core.client("t").ready(1 << 20)
    topic = core.broker.topic("t")
    due_ns = core.clock.now_ns + 10**9
    core.broker.delays.publish(topic, [b"later"] * 20, due_ns)
    core.broker.commit()
    for _ in range(3 * SEGMENT_BYTES // 4000):
        core.publish("t", b"x" * 4000)
    core.wait(2 * 10**9)
    client.finish()
    core.broker.write_journal()
    job = begin_checkpoint(core.broker)
    for _ in range(SEGMENT_BYTES // 4000 + 1):
        core.publish("t", b"x" * 4000)
    job.flush.run()
    core.broker.log.flushed(job.flush)
    job.save()
    end_checkpoint(core.broker, job)
    core.disk.close()
    assert Folder(tmp_path).segments()[0].base > 0
    assert verify(Folder(tmp_path), needed_by=needed_by).damage == []
