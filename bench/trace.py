"""How long a search for a message takes: by its id and by a key, in a log.

    ./run bench trace [--messages 1000000] [--batch 200] [--folder DIR]

Writes messages of 200 bytes with a key each into a log, all of which a consumer finishes, and then
searches for some of them as `martlet trace` does. The processor's time is shown beside the time it
took: the log is still in memory, so both say little of a disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from bench.flags import parse
from martlet.broker.recovery.restore import restore
from martlet.broker.recovery.trace_search import Search, TraceResult
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.retry import MILLISECOND_NS
from martlet.broker.topic.topic import Topic
from martlet.log.folder import Folder
from martlet.log.storage import DiskStorage
from martlet.properties.model import Properties
from martlet.testing import SimulatedClock

BODY = b"x" * 200


class Sink:
    """A client that reads nothing."""

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Drop them."""

    def channel_closed(self) -> None:
        """Do nothing."""

    def channel_grown(self, channel: object, consumer: object) -> None:
        """Do nothing."""

    def failures_counted(self, *_arguments: object) -> None:
        """Do nothing."""

    def recalled(self, queue: int) -> None:
        """Do nothing."""


def write(folder: Path, messages: int, batch: int) -> Topic:
    """Fill a log."""
    storage, clock = DiskStorage(folder), SimulatedClock()
    broker, _ = restore(storage, clock, Random(1), segment_bytes=100 << 20, traces=True)
    topic = broker.topic("t")
    channel = topic.channel("c")
    consumer = channel.add_consumer(Sink(), 10**12)
    channel.set_ready(consumer, 1 << 30)
    for first in range(0, messages, batch):
        clock.advance(MILLISECOND_NS)
        entries = [
            (number, Properties(keys=(f"order-{first + number}",)).pack())
            for number in range(batch)
        ]
        topic.stage([BODY] * batch, 0, entries)
        broker.commit()
        channel.finish_run(consumer, np.arange(first, first + batch))
        if first % (1000 * batch) == 0:
            broker.write_journal()
    broker.write_journal()
    # Kept as history would be: nothing is let go.
    job = begin_checkpoint(broker)
    job.free.clear()
    job.flush.run()
    job.save()
    end_checkpoint(broker, job)
    storage.close()
    return topic


def measure(what: str, search: Callable[[str], TraceResult], wanted: str) -> None:
    """Search once, and print how long it took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    found = search(wanted)
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    (trace,) = found.traces
    print(f"{what:36} {took:8.3f} s {cpu:8.3f} s of the processor, {len(trace.events)} events")


def main(arguments: Sequence[str]) -> None:
    """Write, and search."""
    given = parse(__doc__, arguments, messages=1_000_000, batch=200, folder=None)
    with tempfile.TemporaryDirectory(prefix="martlet-trace-", dir=given.folder) as folder:
        path = Path(folder)
        topic = write(path, given.messages, given.batch)
        last = given.messages - 1
        for name, number in (("the journal and the first", 0), ("the last", last)):
            message_id = topic.queue.message_id(number).decode()
            measure(f"{name}, by id", Search(Folder(path)).by_id, message_id)
        for name, number in (("the first", 0), ("the last", last)):
            measure(f"{name}, by key", Search(Folder(path)).by_key, f"order-{number}")
