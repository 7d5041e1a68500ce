"""Importing: nsqd's topics, channels and messages, into a broker's log.

Topic by topic: the messages of its channels in the order of the `martlet.migration.layout`, then
the channels with their cursors, then, behind them, the topic's own backlog.  A paused
topic is paused before its backlog is imported.  While a topic has no channel, the broker keeps all
it stores.

The work may be killed at any moment and begun again: what a topic's queue already holds is passed
over.  If a power cut has taken a part of the log, the topic is begun anew.  No broker starts on the
folder meanwhile (`martlet.server.data_folder`).
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import restore
from martlet.broker.retention.checkpoint import begin_checkpoint, end_checkpoint
from martlet.broker.topic.topic import Topic
from martlet.log.storage import DiskStorage, Storage
from martlet.migration.diskqueue import DiskQueueChunk, Findings, Offsets, QueueFile
from martlet.migration.layout import MAX_COPIES, MAX_TRIED, Group, Layout
from martlet.migration.nsqd_folder import NsqdFolder, NsqdTopic
from martlet.server.clock import Clock
from martlet.server.data_folder import broker_identity, mark_unfinished

MAX_BATCH_BYTES = 1 << 19
_CHECKPOINT_SEGMENTS = 10
_INDEX_ROWS = 1 << 16
_PROGRESS = "import-nsqd.json"
_VERSION = 1


class ImportRefused(Exception):
    """Nothing is imported; the text says why, and the way out."""


@dataclass
class ImportEntry:
    """An import."""

    source: str
    fingerprint: str
    done: str | None = None
    report: list[str] = field(default_factory=list)
    complete: bool = True
    """Whether everything could be read."""


class ImportProgress:
    """The imports of a storage, as a small file beside the log has them. Raises ImportRefused.

    The file only identifies the folder: what a topic's log holds of the layout was done.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.entries: list[ImportEntry] = []
        data = storage.read(_PROGRESS)
        if data is None:
            return
        try:
            content = json.loads(data)
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']}, this Martlet reads {_VERSION}")
            self.entries = [ImportEntry(**entry) for entry in content["imports"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ImportRefused(
                f"{_PROGRESS} in the broker's data folder cannot be understood: {error}"
            ) from error

    def find(self, fingerprint: str) -> ImportEntry | None:
        """The import of a folder with these files."""
        return next((e for e in self.entries if e.fingerprint == fingerprint), None)

    @property
    def unfinished(self) -> ImportEntry | None:
        """The import that was begun and is not done."""
        return next((entry for entry in self.entries if entry.done is None), None)

    def write(self) -> None:
        """Make it durable. Raises OSError."""
        content = {"version": _VERSION, "imports": [asdict(entry) for entry in self.entries]}
        self._storage.replace(_PROGRESS, json.dumps(content, indent=1).encode())


@dataclass
class TopicResult:
    """The result for a topic."""

    name: str
    channels: int
    messages: int = 0
    """Stored in the log."""
    copies: int = 0
    """Read from nsqd's files."""


@dataclass
class ImportResult:
    """The result of an import."""

    entry: ImportEntry
    is_new: bool
    """Whether it was done now, and not before."""
    topics: list[TopicResult] = field(default_factory=list)
    """The result for each topic; empty where it was done before."""


@contextmanager
def opened(
    data_path: Path, segment_bytes: int, keep_free_bytes: int, findings: Findings
) -> Iterator[tuple[BrokerCore, DiskStorage]]:
    """A broker's core on its data folder, which no other holds meanwhile. Raises OSError."""
    storage = DiskStorage(data_path, keep_free_bytes=keep_free_bytes)
    try:
        broker_identity(storage, uuid.uuid4().hex, to_finish=True)
        broker, restored = restore(
            storage,
            Clock(),
            random.SystemRandom(),
            segment_bytes=segment_bytes,
            on_lost=lambda topic, channel, first, end, why: findings.unreadable(
                f"in Martlet's own log: offsets {first} to {end - 1} of topic {topic!r}: {why}"
            ),
        )
        for damage in restored.report.damaged:
            findings.doubt(f"in Martlet's own log: {damage}")
        yield broker, storage
    finally:
        storage.close()


class Importing:
    """One import."""

    def __init__(
        self,
        broker: BrokerCore,
        storage: Storage,
        folder: NsqdFolder,
        progress: Callable[[int], None] = lambda count: None,
        *,
        max_copies: int = MAX_COPIES,
        batch_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._broker = broker
        self._storage = storage
        self._folder = folder
        self._findings = folder.findings
        self._progress = progress
        self._max_copies = max_copies
        self._batch_bytes = batch_bytes
        self._checkpointed = broker.log.position

    def run(self) -> ImportResult:
        """Import everything that is not yet there.

        Raises:
            ImportRefused: topics are there already, or another import is not done.
            WritesRefused: the disk is full or fails; what was done stays, and counts.
            OSError: a file could not be read or written.
        """
        progress = ImportProgress(self._storage)
        entry = progress.find(self._folder.fingerprint)
        if entry is not None and entry.done is not None:
            mark_unfinished(self._storage, None)
            return ImportResult(entry, is_new=False)
        if entry is None:
            self._check(progress)
            entry = ImportEntry(str(self._folder.path.absolute()), self._folder.fingerprint)
            progress.entries.append(entry)
            progress.write()
        command = f"martlet import-nsqd {self._folder.path.absolute()} --data-path=..."
        mark_unfinished(self._storage, f"an import from nsqd is not done; run {command} again")
        topics = [self._topic(topic) for topic in self._folder.topics.values()]
        self._checkpoint()
        entry.done = datetime.now(UTC).isoformat(timespec="seconds")
        entry.report = list(self._findings.lines())
        entry.complete = not self._findings.lost
        progress.write()
        mark_unfinished(self._storage, None)
        return ImportResult(entry, True, topics)

    def _check(self, progress: ImportProgress) -> None:
        other = progress.unfinished
        if other is not None:
            raise ImportRefused(
                f"the import of {other.source} is not done, and {self._folder.path} does not hold"
                " the same files: go on with that one as it was, or remove the broker's data"
                " folder and begin anew"
            )
        existing = sorted(self._folder.topics.keys() & self._broker.topics.keys())
        if existing:
            raise ImportRefused(
                f"the broker has {_some(existing)} already; an import makes topics anew: delete"
                " them there, or give another --data-path"
            )

    # a topic

    def _topic(self, source: NsqdTopic) -> TopicResult:
        names = sorted(source.channels)
        queues = {name: q for name in names if (q := source.channels[name].queue) is not None}
        layout = Layout(
            list(queues.values()), source.queue, self._findings, max_copies=self._max_copies
        )
        self._progress(sum(queue.unread_bytes for queue in source.queues()))
        self._compare_counts(source, layout)
        writer = _Writer(self._broker, self._begun(source), self._batch_bytes, self._written)
        writer.write(tried.chunk for tried in layout.tried)
        stretches: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        holders = list(queues)
        for group in layout.groups():
            first = writer.offset
            self._write(writer, group)
            for number in group.channels:
                stretches[holders[number]].append((first, writer.offset))
        if writer.topic.queue.end_offset == writer.offset:
            for name in names:
                start, voids = _start_and_voids(stretches[name], writer.offset)
                attempts = _attempts(layout, holders.index(name) if name in queues else None)
                self._channel(writer.topic, name, start, voids, attempts)
                writer.topic.pause_channel(name, source.channels[name].paused)
            writer.topic.set_paused(source.paused)
            # What is stored behind that says, to a later run, that the channels are as they should
            # be; a power cut could take them and leave it.
            self._checkpoint()
        for group in layout.backlog():
            self._write(writer, group)
        return TopicResult(source.name, len(names), writer.offset, sum(layout.counts))

    def _compare_counts(self, source: NsqdTopic, layout: Layout) -> None:
        for queue, count in zip(source.queues(), layout.counts, strict=True):
            if queue.depth is not None and queue.depth != count:
                self._findings.doubt(
                    f"{queue.name}: its meta file says {queue.depth} messages, {count} were found"
                    " and taken"
                )
        if layout.untold_attempts:
            self._findings.doubt(
                f"topic {source.name}: {layout.untold_attempts} messages begin at attempt 1 again:"
                f" attempts are kept of {MAX_TRIED} messages"
            )

    def _begun(self, source: NsqdTopic) -> Topic:
        """The topic with what an earlier run has stored, if all of that is there."""
        topic = self._broker.topics.get(source.name)
        if topic is not None and not _is_whole(topic):
            self._broker.delete_topic(source.name)
            topic = None
        return topic or self._broker.topic(source.name)

    def _write(self, writer: _Writer, group: Group) -> None:
        writer.write(group.chunks())
        self._progress(int(group.copies["size"].sum() + 4 * len(group.copies)))

    def _channel(
        self,
        topic: Topic,
        name: str,
        start: int,
        voids: list[tuple[int, int]],
        attempts: dict[int, int],
    ) -> None:
        existing = topic.channels.get(name)
        if existing is not None and existing.cursor.next != start:
            # A power cut took where it stood, and it would get what was never its own.
            topic.delete_channel(name)
        channel = topic.channel(name, start, voids)
        missing = attempts.keys() - channel.cursor.pending.by_offset.keys()
        if missing:
            channel.deliver_again({offset: attempts[offset] for offset in sorted(missing)})
            self._broker.write_journal()

    def _written(self) -> None:
        log = self._broker.log
        if log.position - self._checkpointed > _CHECKPOINT_SEGMENTS * log.segments[-1].capacity:
            self._checkpoint()

    def _checkpoint(self) -> None:
        broker = self._broker
        broker.write_journal()
        self._checkpointed = broker.log.position
        job = begin_checkpoint(broker)
        job.flush.run()
        broker.log.flushed(job.flush)
        job.save()
        end_checkpoint(broker, job)


class _Writer:
    """Appends messages to a topic, but for those that are there already."""

    def __init__(
        self, broker: BrokerCore, topic: Topic, batch_bytes: int, written: Callable[[], None]
    ) -> None:
        self.topic = topic
        self.offset = 0
        """Of the next message."""
        self._batch_bytes = batch_bytes
        self._there = topic.queue.end_offset
        self._broker = broker
        self._written = written
        self._last_file: QueueFile | None = None

    def write(self, chunks: Iterable[DiskQueueChunk]) -> None:
        """Append messages, in batches of their own. Raises WritesRefused."""
        bodies: list[bytes] = []
        times: list[Offsets] = []
        batch_bytes = 0
        for chunk in chunks:
            there = max(0, min(self._there - self.offset, len(chunk)))
            self.offset += len(chunk)
            for piece in _pieces(chunk.some(slice(there, None)), self._batch_bytes):
                piece_bytes = int(piece.sizes.sum())
                if bodies and batch_bytes + piece_bytes > self._batch_bytes:
                    self._append(bodies, times)
                    bodies, times, batch_bytes = [], [], 0
                bodies += piece.bodies()
                times.append(piece.times())
                batch_bytes += piece_bytes
            if self._last_file is not chunk.file:
                if self._last_file is not None:
                    self._last_file.close()
                self._last_file = chunk.file
        if bodies:
            self._append(bodies, times)

    def _append(self, bodies: list[bytes], times: list[Offsets]) -> None:
        receipt = self.topic.stage(bodies)
        batch = self.topic.queue.batch
        assert batch is not None
        batch.stamp(np.concatenate(times))
        self._broker.commit()
        if receipt.error is not None:
            raise receipt.error
        self._written()


def _pieces(chunk: DiskQueueChunk, max_bytes: int) -> Iterator[DiskQueueChunk]:
    if not len(chunk):
        return
    numbers = (np.cumsum(chunk.sizes) - 1) // max_bytes
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(chunk)]
    for first, end in pairwise(edges):
        yield chunk.some(slice(first, end))


def _attempts(layout: Layout, number: int | None) -> dict[int, int]:
    """Return the attempts of the tried messages that a channel has, by offset; `number` is that of
    its queue, None where it has none.
    """
    return {
        offset: tried.attempts.get(number, 0) if number is not None else 0
        for offset, tried in enumerate(layout.tried)
        if tried.in_backlog or number in tried.attempts
    }


def _start_and_voids(
    stretches: list[tuple[int, int]], end: int
) -> tuple[int, list[tuple[int, int]]]:
    """Where a channel begins that has these stretches of the offsets below `end`, and what it
    passes over behind that.
    """
    if not stretches:
        return end, []
    edges = [edge for stretch in stretches for edge in stretch]
    gaps = zip(edges[1::2], [*edges[2::2], end], strict=True)
    return edges[0], [(first, stop) for first, stop in gaps if first < stop]


def _is_whole(topic: Topic) -> bool:
    """Whether a topic's index has all its offsets from 0 on."""
    index = topic.queue.index
    end = 0
    for number in range(index.first_row, index.end_row, _INDEX_ROWS):
        rows = index.array(number, number + _INDEX_ROWS)
        firsts, counts = rows["first_offset"].astype(np.int64), rows["count"].astype(np.int64)
        expected = end + np.concatenate(([0], np.cumsum(counts)))
        if not np.array_equal(firsts, expected[:-1]):
            return False
        end = int(expected[-1])
    return end == topic.queue.end_offset


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"the topic{'s' if len(names) > 1 else ''} {shown}{more}"
