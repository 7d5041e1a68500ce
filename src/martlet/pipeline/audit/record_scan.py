"""Find and verify all records of a segment, with little work for each record.

::

    | head | batch | batch | cursor |xxxxxxxxx| batch | end |        unwritten        |
     ^      ^       ^       ^        damage    ^       ^
     words that are the magic, with their own position two words later

If each candidate begins where the one before it ends, the candidates are the records.  If not,
because of damage, a bundle, or a body that looks like a record, the candidates are checked one by
one, by the rules of `martlet.log.recovery`: records after damage count too.  Every checksum is
verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from martlet.log.record import (
    HEADER_BYTES,
    MAGIC,
    VERSION,
    BadRecord,
    Header,
    RecordFlag,
    RecordKind,
    batches_of,
    read_header,
)
from martlet.reader.decode import Int64s, headers_at

Headers = npt.NDArray[Any]

_PIECE_WORDS = 1 << 16
_POSITION_WORD = 2
_HEADER_WORDS = HEADER_BYTES // 8
_CRC_AT = 8


@dataclass(frozen=True)
class ScanDamage:
    """A range of positions without a valid record, though one should be there."""

    start: int
    end: int
    reason: str
    header: Header | None = None
    """The header of the damaged record, if it can be read."""


@dataclass
class Walked:
    """The records of a segment."""

    data: memoryview
    base: int
    headers: Headers
    """The headers of all valid records in order, without batches in bundles."""
    bundled: Headers
    end: int
    closed: bool
    """Whether no record can follow in this segment."""
    damage: list[ScanDamage] = field(default_factory=list)
    """The damaged ranges, except a possible torn tail."""
    torn: ScanDamage | None = None
    """Damage at the end, which may be the log's torn tail."""

    @property
    def was_ended(self) -> bool:
        """Whether the last record is the end mark, written before the next segment starts."""
        return bool(len(self.headers)) and int(self.headers["kind"][-1]) == RecordKind.SEGMENT_END

    def record(self, position: int, length: int) -> memoryview:
        """Return the bytes of a record."""
        at = position - self.base
        return self.data[at : at + length]


def walk(data: memoryview, base: int) -> Walked:
    """Find the records of a segment that begins at a position of the log."""
    size = len(data)
    starts = _likely(data, base)
    headers = headers_at(data, starts)
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
    """Return the candidates: byte offsets in the segment where a record may begin."""
    count = len(data) // 8
    words = np.frombuffer(data, "<u8", count)
    halves = np.frombuffer(data, "<u4", 2 * count)[::2]
    last = count - _HEADER_WORDS + 1
    candidates = []
    for start in range(0, max(last, 0), _PIECE_WORDS):
        words_at = np.flatnonzero(halves[start : min(start + _PIECE_WORDS, last)] == MAGIC) + start
        positions = words[words_at + _POSITION_WORD].astype(np.int64)
        candidates.append(words_at[positions == 8 * words_at + base])
    return 8 * np.concatenate(candidates) if candidates else np.empty(0, np.int64)


def _good(data: memoryview, starts: Int64s, headers: Headers) -> npt.NDArray[np.bool_]:
    """Return which candidates are valid records; batches inside of a bundle are not."""
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
    verified = [crc32c(data[s + _CRC_AT : end]) == crc for s, end, crc in compress(sums, good)]
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
    """Return which candidates are records, and the damage between them."""
    chosen: list[int] = []
    damage: list[ScanDamage] = []
    at = 0
    closed = False
    candidates = zip(starts.tolist(), ends.tolist(), headers["kind"].tolist(), good, strict=True)
    for number, (start, end, kind, is_good) in enumerate(candidates):
        if start < at or not is_good:
            continue
        if closed:
            # A record after an end of segment: the end was left by an earlier use of the file.
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
    """Return the incomplete record behind the last valid one; None if there is none."""
    left = data[end:]
    first_words = np.frombuffer(left[: len(left) // 8 * 8], "<u8")[:_HEADER_WORDS]
    if len(first_words) > _POSITION_WORD and (
        int(first_words[0]) & 0xFFFF_FFFF == MAGIC
        and int(first_words[_POSITION_WORD]) == base + end
    ):
        return _damage(data, base, end, len(data))
    return None


def _bundled(data: memoryview, base: int, starts: Int64s) -> Headers:
    batch_starts = [np.empty(0, np.int64)]
    for start in starts.tolist():
        header = read_header(data, start, base + start)
        record = data[start : start + header.length]
        inner = [batch.position - base for batch, _ in batches_of(header, record)]
        batch_starts.append(np.array(inner, np.int64))
    return headers_at(data, np.concatenate(batch_starts))
