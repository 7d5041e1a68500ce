"""A disk that fails to keep what it took: fdatasync ends in an error.

The kernel may drop the pages that it could not write, and call the next fdatasync a success; so
the only honest thing to do is to refuse messages, and to report that to each client.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.crash.wire import HttpRefused, Wire, drain, http, mpub, pub
from tests.polling import until

from martlet.log.storage import DiskSegment
from martlet.server import flusher
from martlet.testing import Broker

pytestmark = pytest.mark.crash

REASON = "flushing the log failed: [Errno 5] Input/output error"


class FailingDisk:
    """Flushes that are counted, and fail while they should."""

    def __init__(self) -> None:
        self.failing = False
        self.error = OSError(errno.EIO, "Input/output error")
        self.count = 0
        self.failed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def flush(self) -> None:
        self.count += 1
        if self.failing:
            self._loop.call_soon_threadsafe(self.failed.set)
            raise self.error


@pytest.fixture
async def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    disk = FailingDisk()
    monkeypatch.setattr(DiskSegment, "flush", lambda segment: disk.flush())
    return disk


@pytest.fixture(params=["sync", "async"])
async def broker(
    request: pytest.FixtureRequest, disk: FailingDisk, tmp_path: Path
) -> AsyncIterator[Broker]:
    options = {"flush": request.param, "sync_timeout_ns": 20_000_000}
    async with Broker(tmp_path / "data", checkpoint_interval_ns=10**12, **options) as broker:
        yield broker


async def publish(broker: Broker, bodies: list[bytes]) -> None:
    wire = await Wire.open(broker.tcp_address)
    wire.send(mpub("t", bodies))
    await wire.ok()
    wire.close()


async def error_of(broker: Broker, command: bytes) -> str:
    """Return the broker's answer before it closes the connection."""
    wire = await Wire.open(broker.tcp_address)
    wire.send(command)
    frame = await wire.answer()
    assert await wire.ended() == b""
    wire.close()
    return frame.data.decode()


async def refusal(broker: Broker, target: str, body: bytes | None = None) -> str:
    with pytest.raises(HttpRefused) as caught:
        await http(broker.http_address, target, body)
    return str(caught.value)


async def published_in_doubt(broker: Broker) -> bytes:
    """Publish a message whose flush may fail. Returns the answer."""
    wire = await Wire.open(broker.tcp_address)
    wire.send(pub("t", b"in doubt"))
    frame = await wire.answer()
    wire.close()
    return frame.data


async def fail(broker: Broker, disk: FailingDisk) -> None:
    """Let a flush fail under a publish, and wait until the broker knows."""
    disk.failing = True
    answer = await published_in_doubt(broker)
    refused = answer.startswith(f"E_PUB_FAILED PUB failed {REASON}".encode())
    # Where OK means written, it was, unless a flush had failed before it came.
    assert refused or (broker.options.flush == "async" and answer == b"OK")
    async with asyncio.timeout(50):
        await disk.failed.wait()
    await until(lambda: broker.server.broker.log.failed is not None)


async def test_a_failed_flush_ends_all_writing_and_is_reported_everywhere(
    broker: Broker, disk: FailingDisk
) -> None:
    await publish(broker, [b"one", b"two"])
    await fail(broker, disk)
    disk.failing = False
    flushes = disk.count
    for command, verb in (
        (pub("t", b"x"), "PUB"),
        (mpub("t", [b"x", b"y"]), "MPUB"),
        (b"DPUB t 100\n" + pub("t", b"x").partition(b"\n")[2], "DPUB"),
        (pub("another", b"x"), "PUB"),
    ):
        error = await error_of(broker, command)
        assert error.startswith(f"E_{verb}_FAILED {verb} failed {REASON}")
        assert "check the disk, then start the broker again" in error
    for target in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=new"):
        assert (await refusal(broker, target, b"x")).startswith(f"503 PUB_FAILED {REASON}")
    assert (await refusal(broker, "/topic/create?topic=n", b"")).startswith("503 ")
    assert (await refusal(broker, "/ping")).startswith(f"500 NOK - {REASON}")
    stats = json.loads(await http(broker.http_address, "/stats?format=json"))
    assert stats["health"].startswith(f"NOK - {REASON}")
    assert disk.count == flushes, "a flush was tried again"


async def test_consumers_go_on_without_a_disk(broker: Broker, disk: FailingDisk) -> None:
    await http(broker.http_address, "/topic/create?topic=t", b"")
    await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
    await publish(broker, [b"one", b"two"])
    await fail(broker, disk)
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    assert [message.body for message in got][:2] == [b"one", b"two"]


async def test_messages_answered_ok_survive_a_restart(disk: FailingDisk, tmp_path: Path) -> None:
    for flush in ("sync", "async"):
        folder = tmp_path / flush
        options = {"flush": flush, "sync_timeout_ns": 20_000_000}
        async with Broker(folder, **options) as broker:
            await publish(broker, [b"%d" % n for n in range(100)])
            await fail(broker, disk)
        disk.failing, disk.failed = False, asyncio.Event()
        async with Broker(folder, **options) as broker:
            assert await http(broker.http_address, "/ping") == b"OK"
            await publish(broker, [b"new"])
            got = await drain(broker.tcp_address, broker.http_address, "t", "c")
            bodies = [message.body for message in got]
            assert bodies[:100] == [b"%d" % n for n in range(100)]
            assert bodies[-1] == b"new"


@pytest.mark.parametrize("is_under_way", [False, True])
async def test_a_checkpoint_whose_flush_fails_is_not_made(
    disk: FailingDisk, tmp_path: Path, is_under_way: bool
) -> None:
    """A flush under way has taken over what the checkpoint would have flushed itself."""
    async with Broker(tmp_path, sync_timeout_ns=10**12, checkpoint_interval_ns=10**12) as broker:
        await publish(broker, [b"one"])
        before = (tmp_path / "checkpoint").exists()
        disk.failing = True
        if is_under_way:
            broker.server.flusher.flush()
        assert not await broker.server.flusher.checkpoint()
        assert (tmp_path / "checkpoint").exists() == before
        assert broker.server.broker.health.startswith(f"NOK - {REASON}")
        disk.failing = False
    assert (tmp_path / "checkpoint").exists() == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_messages_are_taken_again_once_a_full_disk_keeps_what_it_took(
    broker: Broker, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)
    log = broker.server.broker.log
    await publish(broker, [b"one", b"two"])
    # Else their own flush may fail first, and the next message is refused before it is written.
    await until(lambda: log.durable_position == log.position)
    disk.failing, disk.error = True, OSError(number, "no space")
    await published_in_doubt(broker)
    await until(lambda: log.failed is not None)
    error = await error_of(broker, pub("t", b"refused"))
    assert error.startswith("E_PUB_FAILED PUB failed flushing the log failed: ")
    assert "make room on the disk; it is tried again every second" in error
    flushes = disk.count
    await until(lambda: disk.count > flushes + 2)
    disk.failing = False
    await until(lambda: log.failed is None)
    assert await http(broker.http_address, "/ping") == b"OK"
    assert log.durable_position == log.position
    await publish(broker, [b"three"])
    got = await drain(broker.tcp_address, broker.http_address, "t", "c")
    assert [message.body for message in got] == [b"one", b"two", b"in doubt", b"three"]


async def test_a_disk_that_breaks_after_it_was_full_is_final(
    broker: Broker, disk: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher, "RETRY_S", 0.01)
    disk.failing, disk.error = True, OSError(errno.ENOSPC, "no space")
    await published_in_doubt(broker)
    log = broker.server.broker.log
    await until(lambda: log.may_recover)
    disk.error = OSError(errno.EIO, "Input/output error")
    await until(lambda: not log.may_recover)
    flushes, disk.failing = disk.count, False
    assert (await error_of(broker, pub("t", b"x"))).startswith(f"E_PUB_FAILED PUB failed {REASON}")
    assert disk.count == flushes
