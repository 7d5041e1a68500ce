"""Cut the end of a log off, durably: it was written by a primary that was replaced, and never
confirmed.

Records behind the cut are good records at their own positions, so a later start would find them
again, unless no power cut can bring them back::

    1  | good | good | cut off | ... | cut/<epoch>-<position>.log   what goes is kept beside the log
    2  | good | good | cut off | ... | cutting = position           a start goes on from here
    3  | good | good | 0 0 0 0 |                                    zeros, flushed; later segments
    4  | good | good |           ^ position          cutting = ""   are unlinked and never reused

What is kept is at most `MAX_KEPT_FILES` files, the newest, and of one cut at most `MAX_KEPT_BYTES`.
A file is the bytes of one segment from the position in its name on.
"""

from __future__ import annotations

from dataclasses import dataclass

from martlet.log.storage import Segment, Storage

NAME = "cutting"
"""The note with the position from which on the log is being cut, in decimal digits; or blank."""
FOLDER = "cut"
MAX_KEPT_FILES = 64
"""Files kept of all cuts; the oldest go first."""
MAX_KEPT_BYTES = 1 << 30
"""Bytes kept of one cut: replicas differ by what was under way, which is far less."""
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)


@dataclass(frozen=True)
class CutTail:
    """What a cut took off: its place, and the files that keep it."""

    start: int
    end: int
    kept: list[str]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is kept."""
        return self.end - self.start <= MAX_KEPT_BYTES


def cut_off(storage: Storage, segments: list[Segment], start: int, end: int, epoch: int) -> CutTail:
    """Cut the log off at a position and return what went.

    Args:
        storage: holds the log.
        segments: those of the log; the ones behind the cut are removed from the list.
        start: where to cut, behind a record.
        end: behind the last record.
        epoch: of the primary whose log counts; it names the kept files.

    Raises OSError where the tail cannot be kept or the cut not be made durable: then it is not cut,
    or `finish_cut` cuts it at the next start.
    """
    assert start <= end
    kept = _keep(storage, segments, start, min(end, start + MAX_KEPT_BYTES), epoch)
    storage.replace(NAME, b"%d" % start)
    finish_cut(storage, segments)
    return CutTail(start, end, kept)


def finish_cut(storage: Storage, segments: list[Segment]) -> int | None:
    """Make a cut that was begun whole. Returns its position; None where none was begun.

    Each start calls this before it reads the log. Raises OSError.
    """
    note = storage.read(NAME)
    if not note:
        return None
    start = int(note)
    while segments and segments[-1].base >= start:
        storage.discard(segments.pop())
    if segments:
        _clear(segments[-1], start - segments[-1].base)
        segments[-1].flush()
    # Replaced and not removed: only so is it durable that nothing is left to cut, and a later start
    # does not cut what was written since.
    storage.replace(NAME, b"")
    return start


def _keep(storage: Storage, segments: list[Segment], start: int, end: int, epoch: int) -> list[str]:
    kept = []
    for segment in segments:
        begin, stop = max(start, segment.base), min(end, segment.base + segment.capacity)
        if begin < stop:
            name = f"{FOLDER}/{epoch:010d}-{begin:020d}.log"
            storage.replace(name, bytes(segment.view[begin - segment.base : stop - segment.base]))
            kept.append(name)
    for name in storage.names(FOLDER)[:-MAX_KEPT_FILES]:
        storage.remove(f"{FOLDER}/{name}")
    return kept


def _clear(segment: Segment, start: int) -> None:
    """Zero a segment from byte `start` on; of one never written the rest is zero already."""
    for at in range(start, segment.capacity, _PIECE_BYTES):
        length = min(_PIECE_BYTES, segment.capacity - at)
        if bytes(segment.view[at : at + length]) != _ZEROS[:length]:
            segment.write(_ZEROS[:length], at)
