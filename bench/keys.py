"""How long a search by key takes in a large log, and what the index of keys costs.

    ./run bench keys [--messages 10000000] [--batch 200] [--body 60] [--searches 20] [--folder DIR]

Writes messages with a key each, all different, builds the index of each segment as a broker's
thread does, and searches for some of the keys: with the files out of the page cache, and with them
in it. 100 million messages take 13 GB.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from bench.flags import parse
from martlet.log.batch import LogBatch
from martlet.log.commit_log import CommitLog
from martlet.log.keys.index_file import build_index
from martlet.log.keys.search import KeyQuery, KeySearch
from martlet.log.record import Contents
from martlet.log.storage import DiskStorage
from martlet.properties.block import Block, Packed, pack_block
from martlet.properties.model import Properties

DIGITS = 10
SEGMENT_BYTES = 100 << 20


def write(folder: Path, messages: int, batch: int, body_bytes: int) -> float:
    """Fill a log; returns how long it took, in seconds."""
    storage = DiskStorage(folder)
    log = CommitLog(storage, storage.segments(), 0, 1, SEGMENT_BYTES)
    bodies = np.full((batch, body_bytes), ord("x"), np.uint8)
    entry = Properties(keys=(f"order-{0:0{DIGITS}}",)).pack()
    block = bytearray(pack_block([(number, entry) for number in range(batch)]))
    entries = np.frombuffer(block, np.uint8)[-batch * len(entry) :].reshape(batch, len(entry))
    powers = 10 ** np.arange(DIGITS - 1, -1, -1)
    scratch = LogBatch()
    began = time.perf_counter()
    for first in range(0, messages, batch):
        numbers = np.arange(first, first + batch)
        entries[:, -DIGITS:] = numbers[:, None] // powers % 10 + ord("0")
        scratch.begin(first, first)
        scratch.add_matrix(bodies)
        scratch.set_properties(0, Packed(Block(block)))
        record, flags = scratch.finish()
        lengths = scratch.payload_length, scratch.properties_length
        log.append_batch(record, flags, Contents(1, 0, batch, first, first, 0, *lengths))
        record.release()
    log.flush_job().run()
    took = time.perf_counter() - began
    storage.close()
    return took


def forget(folder: Path) -> None:
    """Drop the files of a log from the page cache."""
    for path in (folder / "log").iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def search(folder: Path, number: int) -> float:
    """Search for a key; returns how long it took, in seconds."""
    began = time.perf_counter()
    found = list(KeySearch(folder, KeyQuery(f"order-{number:0{DIGITS}}", {1})).find())
    took = time.perf_counter() - began
    assert [match.offset for match in found] == [number]
    return took


def show(what: str, seconds: list[float]) -> None:
    """Print the median and the longest of some durations."""
    median, longest = statistics.median(seconds) * 1000, max(seconds) * 1000
    print(f"{what:36} median {median:8.1f} ms, at most {longest:8.1f} ms", flush=True)


def main(arguments: Sequence[str]) -> None:
    """Write, build and search."""
    given = parse(
        __doc__, arguments, messages=10_000_000, batch=200, body=60, searches=20, folder=None
    )
    with tempfile.TemporaryDirectory(prefix="martlet-keys-", dir=given.folder) as name:
        folder = Path(name)
        took = write(folder, given.messages, given.batch, given.body)
        print(f"{given.messages / took:,.0f} messages written a second", flush=True)
        segments = sorted((folder / "log").glob("*.log"))[:-1]
        forget(folder)
        built = []
        for segment in segments:
            began = time.perf_counter()
            build_index(segment)
            built.append(time.perf_counter() - began)
        show(f"an index of {len(segments)}, cold", built)
        began = time.perf_counter()
        count = build_index(segments[0])
        show(f"an index of {count:,} messages", [time.perf_counter() - began])
        indexes = sum(each.stat().st_size for each in (folder / "log").glob("*.keys"))
        print(f"{indexes / count / len(segments):.1f} bytes of index a message", flush=True)
        numbers = [Random(1).randrange(given.messages) for _ in range(given.searches)]
        cold = []
        for number in numbers:
            forget(folder)
            cold.append(search(folder, number))
        show("a search, cold", cold)
        for number in numbers:
            search(folder, number)
        show("a search, warm", [search(folder, number) for number in numbers])
