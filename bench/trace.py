"""How long a message is looked for: by its id and by a key, among so many in a log.

    python bench/trace.py [--messages 1000000] [--batch 200] [--folder DIR]

Writes messages of 200 bytes with a key each into a log, all of which a consumer finishes, and then
looks for some of them as `martlet trace` does. The processor's time is shown beside the time that
it took: what was just written is in memory, so both say little of a disk.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from martlet.broker.recovery.restore import restore
from martlet.broker.recovery.trace_search import Search
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.retry import MILLISECOND_NS
from martlet.broker.topic.topic import Topic
from martlet.broker.tracing.model import TraceResult
from martlet.log.folder import Folder
from martlet.log.storage import DiskStorage
from martlet.properties.model import Properties
from martlet.testing import SimulatedClock

BODY = b"x" * 200


class Sink:
    """A client that looks at nothing."""

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        """Messages come."""

    def channel_closed(self) -> None:
        """Never."""

    def channel_grown(self, channel: object, consumer: object) -> None:
        """Never."""


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


def measure(what: str, search: Callable[[], TraceResult]) -> None:
    """Look once, and say how long it took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    found = search()
    took, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    (trace,) = found.traces
    print(f"{what:36} {took:8.3f} s {cpu:8.3f} s of the processor, {len(trace.events)} events")


def main() -> int:
    """Write, and look."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--folder", default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="martlet-trace-", dir=given.folder) as folder:
        path = Path(folder)
        topic = write(path, given.messages, given.batch)
        ids = [topic.queue.message_id(n).decode() for n in (0, given.messages - 1)]
        last = given.messages - 1
        measure("the journal and the first, by id", lambda: Search(Folder(path)).by_id(ids[0]))
        measure("the last, by id", lambda: Search(Folder(path)).by_id(ids[1]))
        measure("the first, by key", lambda: Search(Folder(path)).by_key("order-0"))
        measure("the last, by key", lambda: Search(Folder(path)).by_key(f"order-{last}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
