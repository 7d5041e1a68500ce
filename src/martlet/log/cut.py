"""Cut the end of a log off, durably: it was written by a primary that was replaced, and never
confirmed.

Records behind the cut are good records at their own positions, so a later start would find them
again, unless no power cut can bring them back::

    1  | good | good | cut off | ... | cut/<epoch>-<position>.log   what goes is kept beside the log
    2  | good | good | cut off | ... | cutting = from, to           a start goes on from here
    3  | good | good | 0 0 0 0 |                                    zeros, flushed; later segments
    4  | good | good |         ^ to        cutting = ""             are unlinked and never reused
                     ^ from

A start writes the zeros again, whatever it reads there: where a flush has failed, zeros may be in
memory and not on the disk (see `martlet.log.fsync_marker`).

What is kept is at most `MAX_KEPT_BYTES` of one cut, and `MAX_KEPT_FILES` of all, of which the
lowest epochs go first; on a full disk, what fits. A file is the bytes of one segment from the
position in its name on, up to its last record: the empty rest of a segment is nothing to keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from martlet.log.checkpoint_file import SmallFiles
from martlet.log.record import HEADER_BYTES, BadRecord, RecordKind, read_header
from martlet.log.storage import FULL, Segment, Storage

NAME = "cutting"
"""The note with the positions from and up to which the log is being cut, in digits; or blank."""
FOLDER = "cut"
KEPT_FILE = r"\d{10}-\d{20}\.log"
"""The pattern of the names of kept files."""
MAX_KEPT_FILES = 64
"""Files kept of all cuts; the oldest go first."""
MAX_KEPT_BYTES = 1 << 30
"""Bytes kept of one cut: replicas differ by what was under way, which is far less."""
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class CutTail:
    """What a cut took off, from one position up to another."""

    start: int
    end: int
    written_bytes: int
    """Without the empty rests of segments."""
    kept: list[str]
    """The files that keep it, or some of it."""
    kept_bytes: int


def cut_off(storage: Storage, segments: list[Segment], start: int, end: int, epoch: int) -> CutTail:
    """Cut the log off at a position and return what went.

    Args:
        segments: those of the log; the ones behind the cut are removed from the list.
        start: where to cut, behind a record.
        end: behind the last byte that was written.
        epoch: of the primary whose log counts; it names the kept files.

    Raises OSError: it is not cut, or `finish_cut` cuts it at the next start.
    """
    assert start <= end
    written = _written(segments, start, end)
    kept, kept_bytes = _keep(storage, written, epoch)
    storage.replace(NAME, b"%d %d" % (start, end))
    finish_cut(storage, segments)
    written_bytes = sum(stop - begin for _, begin, stop in written)
    return CutTail(start, end, written_bytes, kept, kept_bytes)


def finish_cut(storage: Storage, segments: list[Segment]) -> int | None:
    """Make a cut that was begun whole. Returns its position; None where none was begun.

    Each start calls this before it reads the log. Raises OSError.
    """
    note = _note(storage)
    if note is None:
        return None
    start, end = note
    while segments and segments[-1].base >= start:
        storage.discard(segments.pop())
    if segments and start < segments[-1].base + segments[-1].capacity:
        _clear(segments[-1], start, end)
    # Replaced and not removed: only so is it durable that nothing is left to cut, and a later start
    # does not cut what was written since.
    storage.replace(NAME, b"")
    return start


def cut_position(storage: SmallFiles) -> int | None:
    """Return the position of a cut that was begun and did not end; None where none was begun."""
    note = _note(storage)
    return None if note is None else note[0]


def _note(storage: SmallFiles) -> tuple[int, int] | None:
    note = storage.read(NAME)
    if not note:
        return None
    start, end = map(int, note.split())
    return start, end


_Span = tuple[Segment, int, int]
"""A segment, from a position up to another one."""


def _written(segments: list[Segment], start: int, end: int) -> list[_Span]:
    """Return what was written between two positions of the log."""
    spans = [
        (segment, max(start, segment.base), min(end, segment.base + segment.capacity))
        for segment in segments
    ]
    written = [
        (segment, begin, _written_end(segment, begin, stop)) for segment, begin, stop in spans
    ]
    return [(segment, begin, stop) for segment, begin, stop in written if begin < stop]


def _written_end(segment: Segment, begin: int, stop: int) -> int:
    """Return the position behind the last record between two positions of a segment, or behind the
    last byte that is not zero where there is none. What ends a segment does not count.
    """
    view, base = segment.view, segment.base
    at = begin
    while at + HEADER_BYTES <= stop:
        try:
            header = read_header(view, at - base, at)
        except BadRecord:
            break
        if header.kind == RecordKind.SEGMENT_END:
            return at
        at = min(stop, at + header.length)
    while stop > at:
        piece_at = max(at, stop - _PIECE_BYTES)
        piece = bytes(view[piece_at - base : stop - base]).rstrip(b"\0")
        if piece:
            return piece_at + len(piece)
        stop = piece_at
    return at


def _keep(storage: Storage, written: list[_Span], epoch: int) -> tuple[list[str], int]:
    """Copy spans of the log to files. Returns their names, and how much was kept."""
    kept: list[str] = []
    kept_bytes = 0
    for segment, begin, written_end in written[:MAX_KEPT_FILES]:
        stop = min(written_end, begin + MAX_KEPT_BYTES - kept_bytes)
        if begin >= stop:
            break
        name = f"{FOLDER}/{epoch:010d}-{begin:020d}.log"
        try:
            storage.replace(name, bytes(segment.view[begin - segment.base : stop - segment.base]))
        except OSError as error:
            if error.errno not in FULL:
                raise
            break  # The cut needs no space, and makes some.
        kept.append(name)
        kept_bytes += stop - begin
    old = [name for name in storage.names(FOLDER) if f"{FOLDER}/{name}" not in kept]
    for name in old[: max(0, len(old) + len(kept) - MAX_KEPT_FILES)]:
        storage.remove(f"{FOLDER}/{name}")
    return kept, kept_bytes


def _clear(segment: Segment, start: int, end: int) -> None:
    """Zero a segment from a position on, durably, with a SEGMENT_END behind what was written."""
    stop = min(end + HEADER_BYTES, segment.base + segment.capacity)
    for at in range(start, stop, _PIECE_BYTES):
        segment.write(bytes(min(_PIECE_BYTES, stop - at)), at - segment.base)
    segment.flush()
