"""The marker of a failed flush, for the next start of the broker.

The kernel may drop pages that it could not write, or keep them in memory and mark them as written;
the next flush succeeds without having written them (https://lwn.net/Articles/752063/)::

    on the disk   | durable |
    in memory     | durable | in doubt                  | written after a start |
                            ^ durable position          ^ a flush succeeds here, and makes durable
                                                          what is behind it alone

The broker then refuses all writes until it is restarted. The next run reads the pages in memory,
and would copy batches out of older segments, or retire those, because of records that no flush
makes durable any more.  So the broker writes a marker with the position from which on the log is in
doubt, and a start writes all records behind it again: then the pages are dirty again, and the next
flush keeps them or fails.

After a power cut none of those pages is in memory, so the marker need not be durable. If it
survives all the same, the records are rewritten without need.

The file ``doubt`` has 20 bytes: the position in decimal digits, or spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from martlet.log.storage import Segment, Storage

NAME = "doubt"
_PIECE_BYTES = 1 << 20
"""The number of bytes rewritten by one call."""
_NONE = b" " * 20
"""The blank marker, written in advance so that the marker can be written on a full disk."""


def prepare(storage: Storage) -> None:
    """Allocate the marker's file, so that it can be written later to a full disk."""
    # Where the disk is full now, `leave` raises the error.
    with suppress(OSError):
        storage.write_at(NAME, _NONE, 0)


def leave(storage: Storage, durable_position: int) -> None:
    """Mark that records behind a position may be in memory only. Raises OSError."""
    storage.write_at(NAME, b"%020d" % durable_position, 0)


def doubtful_from(storage: Storage) -> int | None:
    """Return the position from which on the log is in doubt; None where it is not."""
    note = (storage.read(NAME) or b"").strip()
    return int(note) if note.isdigit() else None


def settle_doubtful(storage: Storage, segments: list[Segment], end: int) -> list[str]:
    """Rewrite what is in doubt of a log that ends at a position, and allocate the marker's file
    anew. Returns a note if something was. Raises OSError.
    """
    doubtful = doubtful_from(storage)
    if doubtful is not None:
        settle(segments, doubtful, end)
    prepare(storage)
    if doubtful is None:
        return []
    return [f"a flush had failed: what is behind position {doubtful} was written to the disk again"]


def settle(segments: Iterable[Segment], start: int, end: int) -> None:
    """Rewrite the log unchanged from one position up to another. Raises OSError."""
    for segment in segments:
        at = max(0, start - segment.base)
        stop = min(segment.capacity, end - segment.base)
        for begin in range(at, stop, _PIECE_BYTES):
            # A copy, since the view shows the very pages that the write changes.
            segment.write(bytes(segment.view[begin : min(begin + _PIECE_BYTES, stop)]), begin)
