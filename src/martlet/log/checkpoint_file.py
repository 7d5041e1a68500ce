"""The checkpoint file: the state of the broker as of a position of the log.

The file is a sequence of records (`martlet.log.record`), each with its byte offset in the file as
its position, so that a checkpoint is verified as the log is::

    | TOPOLOGY: a snapshot, with the position | CURSOR | ... | TRANSACTION |

    record = header 80 (position = offset in the file, topic or 0) | entry | padding to 8

The records behind the first are the journal in its shortest form
(`martlet.broker.journal.entries`). A checkpoint that is missing or does not verify costs time and
nothing else: each segment begins with the same entries, and recovery then starts at the oldest
segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from martlet.log.record import BadRecord, RecordKind, journal_record, payload, read_record

NAME = "checkpoint"

JournalEntry = tuple[RecordKind, int, bytes]
"""A journal entry: its kind, the topic's id or 0, and the payload."""


class SmallFiles(Protocol):
    """The source of a checkpoint: a storage, or a folder opened read-only."""

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    entries: list[JournalEntry]
    """The journal in its shortest form."""
    stored_at_ns: int = 0


class Needed(NamedTuple):
    """The messages of a topic that its channels need: all from offset `floor` on except `voids`,
    given as (first, end), and those at the offsets `below`. Both rise.
    """

    floor: int
    below: Sequence[int]
    voids: Sequence[tuple[int, int]] = ()


def pack(entries: list[JournalEntry], *, epoch: int, stored_at_ns: int) -> bytes:
    """Lay out a checkpoint file."""
    records = bytearray()
    for kind, topic, entry in entries:
        records += journal_record(
            kind, entry, position=len(records), epoch=epoch, topic=topic, stored_at_ns=stored_at_ns
        )
    return bytes(records)


def load(storage: SmallFiles) -> Checkpoint | str:
    """Read and verify the checkpoint. Returns a text with the reason where it cannot be used."""
    data = storage.read(NAME)
    if data is None:
        return "there is no checkpoint"
    entries: list[JournalEntry] = []
    at = stored_at_ns = 0
    try:
        while at < len(data):
            header, record = read_record(data, at, at)
            entries.append((RecordKind(header.kind), header.topic, bytes(payload(header, record))))
            at += header.length
            stored_at_ns = max(stored_at_ns, header.stored_at_ns)
    except (BadRecord, ValueError) as error:
        return f"the checkpoint is damaged: {error}"
    if not entries:
        return "the checkpoint is empty"
    return Checkpoint(entries, stored_at_ns)
