"""A log on a disk whose messages have keys, and what a search in it is to find."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from martlet.log.batch import LogBatch
from martlet.log.commit_log import CommitLog
from martlet.log.keys.index_file import build_index
from martlet.log.keys.search import END_OF_LOG, KeyQuery, KeySearch, LogPosition
from martlet.log.record import FRAME_HEADER_BYTES, BatchSlot, Contents
from martlet.log.storage import DiskStorage
from martlet.properties.model import Properties

SEGMENT_BYTES = 1 << 13


class Stored(NamedTuple):
    """A message."""

    at: LogPosition
    topic: int
    stored_at_ns: int
    body: bytes
    properties: Properties


class KeyedLog:
    """A log in a folder.

    Attributes:
        stored: its messages, in order.
    """

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.storage = DiskStorage(folder)
        self.log = CommitLog(self.storage, self.storage.segments(), 0, 1, segment_bytes)
        self.stored: list[Stored] = []
        self.now_ns = 1000
        self._is_closed = False

    def publish(self, topic: int, messages: Sequence[Properties]) -> int:
        """Append a batch. Returns its position."""
        laid_out = self._laid_out(topic, messages)
        position = self.log.append_batch(*laid_out[0])
        self._store(position, laid_out)
        return position

    def bundle(self, batches: Sequence[tuple[int, Sequence[Properties]]]) -> None:
        """Append batches, all or none."""
        laid_out = [self._laid_out(*batch) for batch in batches]
        slots = [slot for slot, _ in laid_out]
        lengths = [len(slot.record) for slot in slots]
        positions = self.log.append_bundle(b"e", lengths, slots, self.now_ns)
        for position, batch in zip(positions, laid_out, strict=True):
            self._store(position, batch)

    def _laid_out(
        self, topic: int, messages: Sequence[Properties]
    ) -> tuple[BatchSlot, Sequence[tuple[bytes, Properties]]]:
        self.now_ns += 1
        batch, first = LogBatch(), self.now_ns
        batch.begin(first, self.now_ns)
        bodies = [b"%d-%d" % (first, number) for number in range(len(messages))]
        batch.add_many(bodies)
        packed = [(number, message.pack()) for number, message in enumerate(messages) if message]
        if packed:
            batch.set_properties(0, packed)
        record, flags = batch.finish()
        lengths = batch.payload_length, batch.properties_length
        contents = Contents(topic, 0, len(messages), first, self.now_ns, 0, *lengths)
        return BatchSlot(record, flags, contents), list(zip(bodies, messages, strict=True))

    def _store(
        self, position: int, laid_out: tuple[BatchSlot, Sequence[tuple[bytes, Properties]]]
    ) -> None:
        slot, messages = laid_out
        for number, (body, properties) in enumerate(messages):
            at, contents = LogPosition(position, number), slot.contents
            self.stored.append(Stored(at, contents.topic, contents.stored_at_ns, body, properties))

    def fill(self, key: str = "k", segments: int = 3) -> None:
        """Publish messages with a key each, `key`-0 and on, until there are so many segments."""
        while len(self.log.segments) < segments:
            first = len(self.stored)
            self.publish(1, [Properties(keys=(f"{key}-{first + n}",)) for n in range(5)])

    def close(self) -> None:
        """Release the folder, unless that was done."""
        if not self._is_closed:
            self._is_closed = True
            self.storage.close()

    @property
    def full(self) -> list[Path]:
        """The paths of the full segments."""
        return sorted((self.folder / "log").glob("*.log"))[:-1]

    def build(self, bits: int = 32) -> None:
        """Build all indexes."""
        for path in self.full:
            build_index(path, bits=bits)

    def search(self, key: str) -> tuple[list[bytes], list[Path]]:
        """The bodies of the messages with a key, newest first, and the segments that were read."""
        search = KeySearch(self.folder, KeyQuery(key), self.log.position)
        return bodies_of(search), search.not_indexed

    def scanned(self, query: KeyQuery, before: LogPosition = END_OF_LOG) -> list[bytes]:
        """What a search is to find."""
        return [
            message.body
            for message in reversed(self.stored)
            if message.at < before
            and query.fits(message.properties)
            and (query.topics is None or message.topic in query.topics)
            and query.since_ns <= message.stored_at_ns < query.until_ns
        ]


def bodies_of(search: KeySearch, before: LogPosition = END_OF_LOG) -> list[bytes]:
    return [match.frame[FRAME_HEADER_BYTES:] for match in search.find(before)]
