"""Doubt: what a flush that failed leaves behind, beyond the end of the broker that made it.

The kernel may drop what it could not write, or keep it in memory and take it for written; a flush
after that succeeds and has written nothing of it (https://lwn.net/Articles/752063/)::

    on the disk   | durable |
    in memory     | durable | in doubt                  | written after a start |
                            ^ durable position          ^ a flush succeeds here, and makes durable
                                                          what is behind it alone

The broker then takes nothing more and is to be started again.  The next one reads what is in
memory, and would copy batches out of older segments, or let those go, on the strength of records
that no flush makes durable any more.  So a note is left of where the doubt begins, and a start
writes what is in doubt once more: by that it is fresh for the kernel, and the next flush keeps it
or fails.

After a power cut nothing of it is in memory, so the note need not be durable.  Where it is there
all the same, what is found is written again for nothing.
"""

from __future__ import annotations

from contextlib import suppress

from martlet.log.storage import Segment, Storage

NAME = "doubt"
_PIECE_BYTES = 1 << 20
_NONE = b" " * 20


def prepare(storage: Storage) -> None:
    """See that the note can be written later, to a disk that may be full by then."""
    # On one that is full now there is nothing to be done; who leaves a note is told of it.
    with suppress(OSError):
        storage.write_at(NAME, _NONE, 0)


def leave(storage: Storage, durable_position: int) -> None:
    """Note that what is behind a position may be only in memory. Raises OSError."""
    storage.write_at(NAME, b"%020d" % durable_position, 0)


def found(storage: Storage) -> int | None:
    """From which position on the log is in doubt; None where it is not."""
    note = (storage.read(NAME) or b"").strip()
    return int(note) if note.isdigit() else None


def settle(segments: list[Segment], start: int, end: int) -> None:
    """Write the log from one position up to another once more, as it is. Raises OSError."""
    for segment in segments:
        at = max(0, start - segment.base)
        stop = min(segment.capacity, end - segment.base)
        for begin in range(at, stop, _PIECE_BYTES):
            # A copy: the view shows the pages that are written to.
            segment.write(bytes(segment.view[begin : min(begin + _PIECE_BYTES, stop)]), begin)
