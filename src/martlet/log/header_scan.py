"""The header scan: iterate over a log by record headers alone, to find a few records among many.

A header has the length of its record, so the bytes between headers are neither read from the disk
nor verified.  The caller must verify the records that it uses by `martlet.log.record.read_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from martlet.log.record import (
    HEADER_BYTES,
    HEADER_STRUCT,
    MAGIC,
    BadRecord,
    Header,
    RecordKind,
    batches_of,
)
from martlet.log.recovery import next_good
from martlet.log.storage import Segment, forget_pages

_LENGTH, _KIND, _POSITION = 2, 4, 6
"""The offsets of those fields in a header."""
_BATCH, _END, _BUNDLE = int(RecordKind.BATCH), int(RecordKind.SEGMENT_END), int(RecordKind.BUNDLE)
_CLOCK_EVERY_RECORDS = 256
"""`is_over` is called once for this many records."""
_UNKNOWN_NS = 1 << 62
"""For a segment that does not say when it began."""


def heads(
    segments: list[Segment],
    start: int,
    kinds: Collection[RecordKind],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Header, Segment]]:
    """Yield the header and the segment of each record of some kinds from position `start` on.

    Batches inside bundles are included. Damage is skipped. Ends early when `is_over` returns True.
    """
    unpack = HEADER_STRUCT.unpack_from
    kind_numbers = frozenset(map(int, kinds))
    count = 0
    for segment in segments:
        base, view, capacity = segment.base, segment.view, segment.capacity
        if base + capacity <= start:
            continue
        at = max(0, start - base)
        while at + HEADER_BYTES <= capacity:
            fields = unpack(view, at)
            length, kind = fields[_LENGTH], fields[_KIND]
            if fields[0] != MAGIC or fields[_POSITION] != base + at or length < HEADER_BYTES:
                behind = None if segment is segments[-1] else next_good(segment, at + 8)
                if behind is None:
                    break
                at = behind
                continue
            if kind in kind_numbers:
                yield Header._make(fields), segment
            if kind == _END:
                break
            if kind == _BUNDLE and _BATCH in kind_numbers:
                yield from ((header, segment) for header in _bundled(fields, view, at))
            at += length
            count += 1
            if not count % _CLOCK_EVERY_RECORDS and is_over():
                return
        forget_pages(view)


def content_end(segment: Segment, start: int, damaged: Iterable[tuple[int, int]] = ()) -> int:
    """Return the position behind the last record of a segment, a SEGMENT_END included, from the
    record at `start` on.

    Args:
        segment: the segment.
        start: where a record begins.
        damaged: ranges that are known to hold no good records; they count, too.
    """
    unpack = HEADER_STRUCT.unpack_from
    base, view, capacity = segment.base, segment.view, segment.capacity
    within = [(first, stop) for first, stop in damaged if first < base + capacity and base < stop]
    at = start - base
    while at + HEADER_BYTES <= capacity:
        behind = [stop for first, stop in within if first <= base + at < stop]
        if behind:
            at = behind[0] - base
            continue
        fields = unpack(view, at)
        length = fields[_LENGTH]
        if fields[0] != MAGIC or fields[_POSITION] != base + at or length < HEADER_BYTES:
            break
        at += length
        if fields[_KIND] == _END:
            break
    return base + min(at, capacity)


def _bundled(fields: tuple[Any, ...], view: memoryview, at: int) -> Iterator[Header]:
    header = Header._make(fields)
    with suppress(BadRecord):
        for inner, _ in batches_of(header, view[at : at + header.length]):
            yield inner


def segments_since(segments: list[Segment], time_ns: int) -> list[Segment]:
    """Return the segments that may hold records written at a time or later.

    One that began before an earlier one says nothing: earlier versions went by a clock that was set
    back.
    """
    since = newest_ns = 0
    for number, segment in enumerate(segments):
        begun_ns = _begun_at_ns(segment)
        if newest_ns <= begun_ns <= time_ns:
            since = number
        if begun_ns != _UNKNOWN_NS:
            newest_ns = max(newest_ns, begun_ns)
    return segments[since:]


def begun_at_ns(segments: list[Segment]) -> int:
    """Return when the first of some segments began; 0 for an empty list."""
    return _begun_at_ns(segments[0]) if segments else 0


def _begun_at_ns(segment: Segment) -> int:
    fields = Header._make(HEADER_STRUCT.unpack_from(segment.view))
    is_one = fields.magic == MAGIC and fields.position == segment.base
    return fields.stored_at_ns if is_one else _UNKNOWN_NS
