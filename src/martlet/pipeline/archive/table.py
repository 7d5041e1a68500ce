"""The protocol of an archive's table, for every format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from martlet.pipeline.archive.position import Manifest, Position
from martlet.pipeline.archive.store import Store
from martlet.reader.offsets import QueueKey

if TYPE_CHECKING:
    from martlet.pipeline.archive.writing import Writing


class ArchiveTable(Protocol):
    """The table of an archive."""

    def begin(self, run: str) -> None:
        """Take the table over for a run, and remove leftovers of earlier runs."""

    def position(self, queues: Iterable[QueueKey]) -> Position | None:
        """Read the first offset of each of these queues that is not archived, and perhaps of
        others; None before the first `start`.
        """

    def start(self, run: str, start: Position) -> None:
        """Record the starting offsets of queues that the table does not know yet."""

    def stage(self, run: str, batch: str) -> str:
        """Return the staged folder of a batch, which need not exist yet."""

    def commit(self, run: str, manifests: Sequence[Manifest]) -> int:
        """Commit the files of a batch atomically; return the number of rows.

        Raises:
            TwoWritersError, TakenOverError: another writer has written to the archive.
        """


def open_table(writing: Writing) -> ArchiveTable:
    """Return the table at a location, which need not exist yet."""
    if writing.in_place:
        from martlet.pipeline.archive.delta_table import DeltaTable

        return DeltaTable(writing)
    from martlet.pipeline.archive.parquet_table import ParquetTable

    return ParquetTable(Store.at(writing.location))
