"""The walk: all records of a segment, found and verified with as little work a record as can be.

::

    | head | batch | batch | cursor |xxxxxxxxx| batch | end |        unwritten        |
     ^      ^       ^       ^        damage    ^       ^
     words that are the magic, with their own position two words later

Where every such place begins where the one before it ends, those are the records.  Where they do
not, because something is damaged, or stands in a bundle or looks like a record inside a body, they
are gone through one by one, by the rules of `martlet.log.recovery`: what is behind a damaged place
counts too.  Every record's checksum is verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from martlet.log.atomic_batches import batches_of
from martlet.log.record import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    BadRecord,
    Header,
    RecordFlag,
    RecordKind,
    read_header,
)

Int64s = npt.NDArray[np.int64]
Headers = npt.NDArray[Any]

_PIECE_WORDS = 1 << 16
_POSITION_WORD = 2
_HEADER_WORDS = HEADER_BYTES // 8
_CRC_AT = 8


@dataclass(frozen=True)
class ScanDamage:
    """Positions from `start` up to `end` hold no good record, though they should.

    Attributes:
        header: of what began there, where that can still be read.
    """

    start: int
    end: int
    reason: str
    header: Header | None = None


@dataclass
class Walked:
    """What was found in a segment.

    Attributes:
        data: its bytes.
        base: its first position.
        headers: of all good records in order, without those of batches in bundles.
        bundled: those.
        end: behind the last good record.
        closed: whether nothing can follow there in this segment.
        damage: what is damaged, but for what may be the log's torn tail.
        torn: that.
    """

    data: memoryview
    base: int
    headers: Headers
    bundled: Headers
    end: int
    closed: bool
    damage: list[ScanDamage] = field(default_factory=list)
    torn: ScanDamage | None = None

    @property
    def was_ended(self) -> bool:
        """Whether the broker has said that it ends here, which it does as it begins the next."""
        return bool(len(self.headers)) and int(self.headers["kind"][-1]) == RecordKind.SEGMENT_END

    def record(self, position: int, length: int) -> memoryview:
        """The bytes of a record."""
        at = position - self.base
        return self.data[at : at + length]


def walk(data: memoryview, base: int) -> Walked:
    """Find the records of a segment that begins at a position of the log."""
    size = len(data)
    starts = _likely(data, base)
    headers = _headers(data, starts)
    good = _good(data, starts, headers)
    lengths = headers["length"].astype(np.int64)
    ends = starts + lengths
    damage: list[ScanDamage] = []
    in_order = bool(good.all()) and bool((starts[1:] == ends[:-1]).all())
    if not (len(starts) and starts[0] == 0 and in_order):
        chosen, damage = _chosen(data, base, starts, ends, headers, good)
        starts, ends, headers = starts[chosen], ends[chosen], headers[chosen]
    end = int(ends[-1]) if len(ends) else 0
    bundled = _bundled(data, base, starts[headers["kind"] == RecordKind.BUNDLE])
    walked = Walked(data, base, headers, bundled, base + end, False, damage)
    walked.closed = walked.was_ended or end + HEADER_BYTES > size
    if not walked.closed:
        walked.torn = _tail(data, base, end)
    return walked


def _likely(data: memoryview, base: int) -> Int64s:
    """Where a record may begin, in bytes from the segment's start."""
    count = len(data) // 8
    words = np.frombuffer(data, "<u8", count)
    halves = np.frombuffer(data, "<u4", 2 * count)[::2]
    last = count - _HEADER_WORDS + 1
    found = []
    for start in range(0, max(last, 0), _PIECE_WORDS):
        places = np.flatnonzero(halves[start : min(start + _PIECE_WORDS, last)] == MAGIC) + start
        positions = words[places + _POSITION_WORD].astype(np.int64)
        found.append(places[positions == 8 * places + base])
    return 8 * np.concatenate(found) if found else np.empty(0, np.int64)


def _headers(data: memoryview, starts: Int64s) -> Headers:
    words = np.frombuffer(data, "<u8", len(data) // 8)
    rows = words[(starts // 8)[:, None] + np.arange(_HEADER_WORDS)]
    headers: Headers = rows.view(HEADER).reshape(-1)
    return headers


def _good(data: memoryview, starts: Int64s, headers: Headers) -> npt.NDArray[np.bool_]:
    """Which of them are whole records; batches that stand in a bundle are none by themselves."""
    lengths = headers["length"].astype(np.int64)
    ends_at = (HEADER_BYTES + headers["payload_length"].astype(np.int64) + 7) & ~7
    properties_at = (ends_at + 4 * headers["count"].astype(np.int64) + 7) & ~7
    needed = (properties_at + headers["properties_length"].astype(np.int64) + 7) & ~7
    good: npt.NDArray[np.bool_] = (
        (headers["version"] == VERSION)
        & (lengths == needed)
        & (starts + lengths <= len(data))
        & (headers["flags"] & RecordFlag.BUNDLED == 0)
    )
    sums = zip(
        starts.tolist(), (starts + lengths).tolist(), headers["crc32c"].tolist(), strict=True
    )
    verified = [crc32c(data[s + _CRC_AT : end]) == told for s, end, told in compress(sums, good)]
    good[good] = verified
    return good


def _chosen(
    data: memoryview,
    base: int,
    starts: Int64s,
    ends: Int64s,
    headers: Headers,
    good: npt.NDArray[np.bool_],
) -> tuple[list[int], list[ScanDamage]]:
    """Which of the likely places are records, and what is damaged between them."""
    chosen: list[int] = []
    damage: list[ScanDamage] = []
    at = 0
    closed = False
    places = zip(starts.tolist(), ends.tolist(), headers["kind"].tolist(), good, strict=True)
    for number, (start, end, kind, is_good) in enumerate(places):
        if start < at or not is_good:
            continue
        if closed:
            # Found again by a start, if it stood there: the end before it is none.
            damage.append(ScanDamage(base + at, base + start, "a stale end of segment"))
            chosen.pop()
        elif start > at:
            damage.append(_damage(data, base, at, start))
        chosen.append(number)
        at, closed = end, kind == RecordKind.SEGMENT_END
    return chosen, damage


def _damage(data: memoryview, base: int, at: int, end: int) -> ScanDamage:
    header = None
    try:
        header = read_header(data, at, base + at)
        if header.flags & RecordFlag.BUNDLED:
            reason = "a batch without the bundle that it belongs to"
        else:
            reason = "the checksum does not fit"
    except BadRecord as error:
        reason = str(error).partition(": ")[2] or str(error)
    return ScanDamage(base + at, base + end, reason, header)


def _tail(data: memoryview, base: int, end: int) -> ScanDamage | None:
    """What was begun behind the last good record; None where nothing was."""
    left = data[end:]
    first_words = np.frombuffer(left[: len(left) // 8 * 8], "<u8")[:_HEADER_WORDS]
    if len(first_words) > _POSITION_WORD and (
        int(first_words[0]) & 0xFFFF_FFFF == MAGIC
        and int(first_words[_POSITION_WORD]) == base + end
    ):
        return _damage(data, base, end, len(data))
    return None


def _bundled(data: memoryview, base: int, starts: Int64s) -> Headers:
    """The headers of all batches in some bundles."""
    found = [np.empty(0, np.int64)]
    for start in starts.tolist():
        header = read_header(data, start, base + start)
        record = data[start : start + header.length]
        inner = [each.position - base for each, _ in batches_of(header, record)]
        found.append(np.array(inner, np.int64))
    return _headers(data, np.concatenate(found))
