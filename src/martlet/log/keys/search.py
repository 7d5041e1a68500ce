"""The search by key: the messages with a key, from the end of the log back to its beginning.

::

    segments   | index | index | none: read | index | written now: read |
                                                     <--- the search

A full segment is searched by its index (`martlet.log.keys.index_file`). One without an index that
fits is read; the search names it, so that its index is built. The segment that is being written has
no index: reading one takes some tenths of a second at most, and costs publishers nothing.

Each message found is verified in the log: its record's checksum and the key itself. The order is
that of the log, newest first. A batch that cleaning has copied counts at its copy; until its first
record is removed, it is found twice.

The search only reads the data folder, with or without a running broker; nothing is locked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from martlet.log.keys.entries import Entries, SegmentFile, SegmentScan, key_hash
from martlet.log.keys.index_file import BadIndex, KeyIndex
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    BadRecord,
    Header,
    RecordKind,
    frame_ends,
    payload,
    properties,
    read_record,
)
from martlet.properties.block import Block
from martlet.properties.model import BadProperties, Properties

NO_END = sys.maxsize
"""Behind all positions and times."""
_WORD_BITS = 3
"""Of the unit of 8 bytes in which an entry counts positions."""


class LogPosition(NamedTuple):
    """Where the log has a message: the position of its batch, and its number in it."""

    position: int
    number: int


END_OF_LOG = LogPosition(NO_END, 0)


class KeyMatch(NamedTuple):
    """A message with a key."""

    header: Header
    """Of its batch."""
    number: int
    """In the batch."""
    frame: bytes
    """As a consumer gets it."""
    entry: bytes
    """Its packed properties."""

    @property
    def at(self) -> LogPosition:
        """Its position."""
        return LogPosition(self.header.position, self.number)

    @property
    def offset(self) -> int:
        """Its offset."""
        return self.header.first_offset + self.number

    @property
    def body_bytes(self) -> int:
        """The size of its body."""
        return len(self.frame) - FRAME_HEADER_BYTES


@dataclass(frozen=True)
class KeyQuery:
    """The messages to search for."""

    key: str
    """One of their keys, or their order key."""
    topics: Collection[int] | None = None
    """The numbers of their topics; None for all."""
    since_ns: int = 0
    """When they were stored, in nanoseconds since 1970."""
    until_ns: int = NO_END
    has_notes: bool = False
    """Whether the key may be a note of the broker, too, such as an id that a message had."""

    def includes(self, header: Header) -> bool:
        """Whether a batch may have such messages."""
        in_time = self.since_ns <= header.stored_at_ns < self.until_ns
        return in_time and (self.topics is None or header.topic in self.topics)

    def fits(self, properties: Properties) -> bool:
        """Whether a message has the key."""
        notes = properties.system.values() if self.has_notes else ()
        return self.key in (*properties.keys, properties.order_key, *notes)


class KeySearch:
    """A search in the log of a data folder.

    Args:
        end: the log is read up to this position.
        is_over: whether to stop; asked between segments, of which at least one is searched, and
            between messages.
        bits: of a hash; fewer than 32 force collisions.
    """

    def __init__(
        self,
        folder: Path,
        query: KeyQuery,
        end: int = NO_END,
        is_over: Callable[[], bool] = lambda: False,
        bits: int = 32,
    ) -> None:
        self._log = folder / "log"
        self._query = query
        self._end = end
        self._is_over = is_over
        self._bits = bits
        self._hash = key_hash(query.key.encode(), bits)
        self._last: tuple[Header, memoryview, Block] | None = None
        self.reached: LogPosition | None = END_OF_LOG
        """Everything from here on was searched; None once all was."""
        self.not_indexed: list[Path] = []
        """The full segments that were read, since they have no index that fits."""

    def find(self, before: LogPosition = END_OF_LOG) -> Generator[KeyMatch]:
        """Yield the messages before a position, newest first, until `is_over`. Raises OSError."""
        self.reached = reached = before
        paths = sorted(path for path in self._log.glob("*.log") if int(path.stem) < self._end)
        newest = paths[-1:]
        searched = False
        while paths and LogPosition(int(paths[-1].stem), 0) >= before:
            paths.pop()
        while paths:
            if searched and self._is_over():
                return
            searched = True
            path = paths.pop()
            try:
                segment = SegmentFile(path)
            except FileNotFoundError:
                continue  # Retired just now.
            with segment:
                for entries in self._entries(segment, path in newest):
                    for _, words, number in entries[::-1].tolist():
                        at = LogPosition(segment.base + (words << _WORD_BITS), number)
                        if at >= reached:
                            continue
                        self.reached = reached = at
                        match = self._verified(segment, at)
                        if match is not None:
                            yield match
                        if self._is_over():
                            return
                self.reached = reached = LogPosition(segment.base, 0)
                begun_ns = self._begun_at_ns(segment)
            if begun_ns <= self._query.since_ns and self._all_begun_by(begun_ns, paths):
                break
        self.reached = None

    def _entries(self, segment: SegmentFile, is_newest: bool) -> Iterator[Entries]:
        """Yield the entries with the hash, the last of the segment first."""
        query = self._query
        if not is_newest:
            try:
                with KeyIndex(segment) as index:
                    yield from index.find(self._hash, query.since_ns, query.until_ns)
                return
            except (FileNotFoundError, BadIndex):
                self.not_indexed.append(segment.path)
        stop = min(self._end, segment.base + segment.capacity)
        scan = SegmentScan(segment, stop, self._bits, query.key.encode())
        pieces = [piece[piece["hash"] == self._hash] for piece in scan.pieces()]
        yield from reversed(pieces)

    def _all_begun_by(self, time_ns: int, paths: Collection[Path]) -> bool:
        """Whether no segment began after a time: once the clock could be set back."""
        for path in paths:
            with suppress(FileNotFoundError), SegmentFile(path) as segment:
                if time_ns < self._begun_at_ns(segment) < NO_END:
                    return False
        return True

    def _begun_at_ns(self, segment: SegmentFile) -> int:
        try:
            return segment.header(segment.base).stored_at_ns
        except BadRecord:
            return NO_END

    def _verified(self, segment: SegmentFile, at: LogPosition) -> KeyMatch | None:
        """Return the message at a position if it is one with the key."""
        try:
            header, record, block = self._batch(segment, at.position)
            if header.next_position > self._end or not self._query.includes(header):
                return None
            entry = block.of(at.number)
            if not self._query.fits(Properties.unpack(entry)) or not segment.is_there:
                return None
        except (BadRecord, BadProperties):
            return None
        ends = frame_ends(header, record)
        start = int(ends[at.number - 1]) if at.number else 0
        frame = bytes(payload(header, record)[start : int(ends[at.number])])
        return KeyMatch(header, at.number, frame, entry)

    def _batch(self, segment: SegmentFile, position: int) -> tuple[Header, memoryview, Block]:
        """Return a verified batch and its properties. Raises BadRecord and BadProperties."""
        if self._last is None or self._last[0].position != position:
            length = segment.header(position).length
            header, record = read_record(segment.read(position, length), 0, position)
            if header.kind != RecordKind.BATCH:
                raise BadRecord(f"position {position}: no batch")
            self._last = header, record, Block(properties(header, record))
        return self._last
