"""The disk's thread and the event loop, where one could overtake the other."""

import asyncio
import itertools
import logging
import threading
from pathlib import Path
from random import Random

from martlet.broker.recovery.restore import restore
from martlet.log.storage import DiskStorage
from martlet.server.flusher import Flusher
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


async def test_a_flush_begun_while_a_checkpoint_is_saved_has_no_segment_that_it_lets_go(
    tmp_path: Path,
) -> None:
    storage = SlowToSave(tmp_path)
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=SEGMENT_BYTES)
    disk = Flusher(broker, logging.getLogger("martlet"), lambda: None)
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


async def test_the_loop_goes_on_while_a_checkpoint_writes_many_indexes(tmp_path: Path) -> None:
    storage = DiskStorage(tmp_path)
    broker, _ = restore(storage, SimulatedClock(), Random(1), segment_bytes=1 << 20)
    disk = Flusher(broker, logging.getLogger("martlet"), lambda: None)
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
