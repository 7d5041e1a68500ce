"""A disk that is really full: a small file system of its own, filled by messages and by others."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.crash.wire import HttpRefused, Refused, Wire, drain, http, mpub, pub, until

from martlet.cli.main import main
from martlet.testing import BrokerProcess
from martlet.text import readable_size

pytestmark = pytest.mark.crash

MIB = 1 << 20
DISK_BYTES = 40 * MIB
SEGMENT_BYTES = MIB
LARGE_SEGMENT_BYTES = 4 * MIB
KEPT_FREE_BYTES = 8 * MIB
BATCH = 100
BODY_BYTES = 2000


@contextmanager
def mounted_disk(mounted: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a file system of that size; skip the test where that is not allowed."""
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MiB."""
    with mounted_disk(tmp_path / "disk", DISK_BYTES) as mounted:
        yield mounted


@pytest.fixture
def two_segments_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for two segments, and not for a third one."""
    size_bytes = 3 * LARGE_SEGMENT_BYTES + KEPT_FREE_BYTES - 4096
    with mounted_disk(tmp_path / "disk", size_bytes) as mounted:
        yield mounted


@asynccontextmanager
async def running(
    disk: Path, *flags: str, segment_bytes: int = SEGMENT_BYTES
) -> AsyncIterator[BrokerProcess]:
    """Run a broker on a disk, with channel c of topic t."""
    sizes = (f"--max-bytes-per-file={segment_bytes}", f"--min-free-bytes={KEPT_FREE_BYTES}")
    with BrokerProcess(disk / "data", *sizes, *flags) as broker:
        await http(broker.http_address, "/topic/create?topic=t", b"")
        await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
        yield broker


@pytest.fixture(params=["async", "sync"])
async def broker(request: pytest.FixtureRequest, small_disk: Path) -> AsyncIterator[BrokerProcess]:
    intervals = ("--journal-interval=10ms", "--checkpoint-interval=100ms")
    async with running(small_disk, *intervals, f"--flush={request.param}") as process:
        yield process


async def consumed(broker: BrokerProcess) -> list[bytes]:
    """Finish all that the channel has."""
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    return [message.body for message in got]


class Publisher:
    """Publishes batches, and knows what was answered OK."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._numbers = itertools.count()
        self.answered: set[bytes] = set()

    async def publish_until_refused(self) -> str:
        """Returns the error."""
        wire = await Wire.open(self._broker.tcp_address)
        try:
            while True:
                bodies = [b"%010d" % next(self._numbers) * (BODY_BYTES // 10) for _ in range(BATCH)]
                wire.send(mpub("t", bodies))
                await wire.ok()
                self.answered.update(bodies)
        except Refused as refused:
            assert await wire.ended() == b""
            return str(refused)
        finally:
            wire.close()

    async def publish_once(self) -> bool:
        """Whether a message was taken that needs a segment of its own."""
        body = b"%010d" % next(self._numbers) * (SEGMENT_BYTES * 95 // 1000)
        wire = await Wire.open(self._broker.tcp_address)
        wire.send(pub("t", body))
        try:
            await wire.ok()
        except Refused as refused:
            if not str(refused).startswith("E_PUB_FAILED PUB failed the disk is full: "):
                raise
            return False
        finally:
            wire.close()
        self.answered.add(body)
        return True


async def refusal(broker: BrokerProcess, target: str, body: bytes | None = None) -> str:
    with pytest.raises(HttpRefused) as caught:
        await http(broker.http_address, target, body)
    return str(caught.value)


async def is_well(broker: BrokerProcess) -> bool:
    """Return whether the broker says so, before another publish is tried."""
    try:
        return await http(broker.http_address, "/ping") == b"OK"
    except HttpRefused:
        return False


async def test_a_full_disk_refuses_publishers_and_loses_nothing(
    broker: BrokerProcess, small_disk: Path
) -> None:
    publisher = Publisher(broker)
    error = await publisher.publish_until_refused()
    assert error.startswith("E_MPUB_FAILED MPUB failed the disk is full: ")
    assert f"no room for a segment of {readable_size(SEGMENT_BYTES)} in {broker.data_path}" in error
    assert f"{readable_size(KEPT_FREE_BYTES)} must stay free (--min-free-bytes)" in error
    assert "messages are accepted again when consuming what is stored has freed segments" in error
    assert len(publisher.answered) * BODY_BYTES > (DISK_BYTES - KEPT_FREE_BYTES) * 0.8
    disk = os.statvfs(small_disk)
    assert disk.f_bavail * disk.f_frsize >= KEPT_FREE_BYTES - 2 * MIB

    big = b"b" * 900_000  # small ones may still fit into the segment
    assert (await refusal(broker, "/pub?topic=t", big)).startswith("503 PUB_FAILED the disk is")
    assert (await refusal(broker, "/ping")).startswith("500 NOK - the disk is full")
    stats = json.loads(await http(broker.http_address, "/stats?format=json"))
    assert stats["health"].startswith("NOK - the disk is full")

    got = set(await consumed(broker))
    assert got == publisher.answered
    await until(lambda: is_well(broker))
    assert await publisher.publish_once()
    again = await publisher.publish_until_refused()
    assert again.startswith("E_MPUB_FAILED MPUB failed the disk is full: ")
    left = publisher.answered - got
    assert len(left) * BODY_BYTES > 10 * MIB
    assert set(await consumed(broker)) == left


async def test_finishing_frees_space_without_waiting_for_a_checkpoint(small_disk: Path) -> None:
    async with running(small_disk, "--checkpoint-interval=1h") as broker:
        publisher = Publisher(broker)
        await publisher.publish_until_refused()
        assert set(await consumed(broker)) == publisher.answered
        for _ in range(8):  # more than one segment has gone
            await until(publisher.publish_once)


async def test_a_broker_killed_on_a_full_disk_comes_back(broker: BrokerProcess) -> None:
    publisher = Publisher(broker)
    await publisher.publish_until_refused()
    broker.kill()
    assert main(["log", "verify", str(broker.data_path)]) == 0
    broker.start()
    assert set(await consumed(broker)) == publisher.answered
    await until(publisher.publish_once)


async def test_a_disk_filled_by_others_to_the_last_byte(
    broker: BrokerProcess, small_disk: Path
) -> None:
    """Then even a checkpoint finds no space, and consuming must free some all the same."""
    publisher = Publisher(broker)
    await publisher.publish_until_refused()
    with open(small_disk / "other", "wb", buffering=0) as other, suppress(OSError):
        while other.write(bytes(4096)):
            pass
    disk = os.statvfs(small_disk)
    assert disk.f_bavail == 0
    assert set(await consumed(broker)) == publisher.answered
    for _ in range(8):  # more than is kept in reserve
        await until(publisher.publish_once)


@pytest.mark.parametrize("flags", [("--flush=sync",), ("--retention=72h",), ()])
async def test_a_disk_of_two_segments_takes_messages_again_once_all_are_consumed(
    two_segments_disk: Path, flags: tuple[str, ...]
) -> None:
    """Then all of them are in the segment that is being written."""
    flags = ("--checkpoint-interval=1h", *flags)
    async with running(two_segments_disk, *flags, segment_bytes=LARGE_SEGMENT_BYTES) as broker:
        publisher = Publisher(broker)
        got: set[bytes] = set()

        async def has_filled_a_segment() -> bool:
            error = await publisher.publish_until_refused()
            assert "smaller --max-bytes-per-file" in error
            assert "smaller --min-free-bytes" in error
            return len(publisher.answered - got) * BODY_BYTES > LARGE_SEGMENT_BYTES / 2

        for turn in range(4):
            await until(has_filled_a_segment)
            if turn % 2:
                broker.kill()
                broker.start()
            new = set(await consumed(broker))
            assert publisher.answered - got <= new
            got |= new


@pytest.mark.parametrize("flag", ["--max-bytes-per-file=131072", "--min-free-bytes=0"])
async def test_a_refusal_names_settings_that_make_room_at_a_start(
    two_segments_disk: Path, flag: str
) -> None:
    async with running(two_segments_disk, segment_bytes=LARGE_SEGMENT_BYTES) as broker:
        await Publisher(broker).publish_until_refused()
    async with running(two_segments_disk, flag, segment_bytes=LARGE_SEGMENT_BYTES) as broker:
        await http(broker.http_address, "/pub?topic=t", b"x" * 400_000)


async def test_a_disk_of_two_segments_drops_its_oldest_messages(two_segments_disk: Path) -> None:
    flag = "--disk-full-policy=drop-oldest"
    async with running(two_segments_disk, flag, segment_bytes=LARGE_SEGMENT_BYTES) as broker:
        bodies = [b"%010d" % number * (BODY_BYTES // 10) for number in range(BATCH * 80)]
        wire = await Wire.open(broker.tcp_address)
        for at in range(0, len(bodies), BATCH):
            wire.send(mpub("t", bodies[at : at + BATCH]))
            await wire.ok()
        wire.close()
        got = await consumed(broker)
        assert sorted(got) == bodies[-len(got) :]
        assert 0 < len(got) * BODY_BYTES < LARGE_SEGMENT_BYTES
