"""The disk's thread and the event loop, where one could overtake the other."""

import asyncio
import errno
import itertools
import logging
import threading
from pathlib import Path
from random import Random

import pytest

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import WritesRefused
from martlet.broker.recovery.restore import restore
from martlet.log.storage import DiskSegment, DiskStorage
from martlet.server.flusher import MAX_QUICK_BYTES, QUICK_S, Flusher
from martlet.testing import SimulatedClock

SEGMENT_BYTES = 1 << 16


class SlowToSave(DiskStorage):
    """A folder whose checkpoints are saved when the test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.saving = threading.Event()
        self.go_on = threading.Event()

    def replace(self, name: str, data: bytes) -> None:
        self.saving.set()
        assert self.go_on.wait(10)
        super().replace(name, data)


def flusher_of(
    storage: DiskStorage, segment_bytes: int = SEGMENT_BYTES
) -> tuple[BrokerCore, Flusher]:
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=segment_bytes)
    return broker, Flusher(broker, logging.getLogger("martlet"), lambda: None)


async def test_a_flush_begun_while_a_checkpoint_is_saved_has_no_segment_that_it_lets_go(
    tmp_path: Path,
) -> None:
    storage = SlowToSave(tmp_path)
    broker, disk = flusher_of(storage)
    topic = broker.topic("t")
    while len(broker.log.segments) < 4:
        topic.stage([bytes(5000)])
        broker.commit()
    topic.empty()
    checkpoint = asyncio.create_task(disk.checkpoint())
    await asyncio.to_thread(storage.saving.wait, 10)
    begun = broker.log.flush_job()
    storage.go_on.set()
    assert await checkpoint
    assert len(broker.log.segments) == 1, "the others were let go"
    begun.run()  # raised OSError for the files that were closed: writes were refused for ever
    disk.close()
    storage.close()


async def test_checkpoints_that_a_full_disk_fails_are_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DiskStorage(tmp_path)
    broker, disk = flusher_of(storage)
    broker.topic("t")

    def refuse(name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "replace", refuse)
        for _ in range(20):
            assert not await disk.checkpoint()
    assert await disk.checkpoint()
    failed, made = [record.message for record in caplog.records]
    assert "no checkpoint can be made, and nothing of the log is removed: [Errno 28]" in failed
    assert "a checkpoint is made after" in made
    assert "20 failed attempts" in made
    disk.close()
    storage.close()


async def test_the_loop_goes_on_while_a_checkpoint_writes_many_indexes(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    broker, disk = flusher_of(storage, 1 << 20)
    for number in range(800):
        broker.topic(f"t{number}").stage([b"x"])
    broker.commit()
    checkpoint = asyncio.create_task(disk.checkpoint())
    written = []
    while not checkpoint.done():
        await asyncio.sleep(0)
        written.append(len(storage.names("index")))
        if written[-1] == 400:
            broker.delete_topic("t799")
    assert await checkpoint
    steps = [after - before for before, after in itertools.pairwise([0, *written])]
    assert max(steps) < 50
    assert written[-1] == 799
    disk.close()
    storage.close()


class MeasuredFlushes(DiskStorage):
    """A folder whose flushes take as long as the test says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.now_s = 100.0
        self.takes_s = QUICK_S / 2
        self.threads: list[int] = []
        self.error: OSError | None = None

    def clock_s(self) -> float:
        return self.now_s

    def _open(self, path: Path, base: int) -> DiskSegment:
        segment = super()._open(path, base)
        segment.flush = self._flush  # type: ignore[method-assign]
        return segment

    def _flush(self) -> None:
        self.threads.append(threading.get_ident())
        self.now_s += self.takes_s
        if self.error is not None:
            raise self.error


class Publisher:
    """Publishes and flushes, as a tick does."""

    def __init__(self, folder: Path) -> None:
        self.storage = MeasuredFlushes(folder)
        self.broker, _ = restore(
            self.storage, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES
        )
        self.durable = asyncio.Event()
        self.flusher = Flusher(
            self.broker,
            logging.getLogger("martlet"),
            self.durable.set,
            clock_s=self.storage.clock_s,
        )
        self.broker.topic("t")

    async def publish(self, takes_s: float) -> bool:
        """Publish a message and wait until it is durable. Returns whether the loop flushed it."""
        self.storage.takes_s = takes_s
        self.durable.clear()
        self.broker.topic("t").stage([b"x"])
        self.broker.commit()
        self.flusher.flush(is_awaited=True)
        await asyncio.wait_for(self.durable.wait(), 50)
        return self.storage.threads[-1] == threading.get_ident()

    def close(self) -> None:
        self.flusher.close()
        self.storage.close()


async def test_quick_flushes_run_in_the_loop_and_slow_ones_in_the_thread(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    assert not await publisher.publish(QUICK_S / 2), "nothing is known of the disk yet"
    assert await publisher.publish(QUICK_S / 2)
    assert publisher.broker.log.durable_position == publisher.broker.log.position
    assert await publisher.publish(QUICK_S * 20), "the loop cannot know"
    back = [await publisher.publish(QUICK_S / 2) for _ in range(60)]
    assert back[:10] == [False] * 10
    assert back[-1], "the slow one fades"
    publisher.flusher.flush()
    publisher.close()


async def test_a_flush_that_follows_one_in_the_thread_is_back_in_the_loop(tmp_path: Path) -> None:
    """With two clients one always waited for the next: all flushes stayed in the thread."""
    publisher = Publisher(tmp_path)
    topic = publisher.broker.topic("t")
    for _ in range(2):
        topic.stage([b"x"])
        publisher.broker.commit()
        publisher.storage.takes_s = QUICK_S / 2
        publisher.flusher.flush(is_awaited=True)
    await publisher.durable.wait()
    assert publisher.broker.log.durable_position == publisher.broker.log.position
    assert publisher.storage.threads[0] != threading.get_ident()
    assert publisher.storage.threads[-1] == threading.get_ident()
    publisher.close()


async def test_large_flushes_and_those_nobody_awaits_run_in_the_thread(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    for _ in range(3):
        await publisher.publish(QUICK_S / 2)
    publisher.broker.topic("t").stage([bytes(MAX_QUICK_BYTES)])
    assert not await publisher.publish(QUICK_S / 2)
    publisher.broker.topic("t").stage([b"x"])
    publisher.broker.commit()
    publisher.flusher.flush()
    assert publisher.flusher.flushing
    publisher.close()


async def test_a_flush_that_fails_in_the_loop_is_final(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    for _ in range(3):
        await publisher.publish(QUICK_S / 2)
    publisher.storage.error = OSError(5, "a broken disk")
    assert await publisher.publish(QUICK_S / 2)
    assert "a broken disk" in str(publisher.broker.log.failed)
    with pytest.raises(WritesRefused, match="a broken disk"):
        publisher.broker.append(publisher.broker.topic("t"), b"x")
    publisher.close()
