"""The table that an archive is: what a run asks of it, whatever its format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from martlet.pipeline.archive.manifest import Manifest
from martlet.pipeline.archive.position import Position
from martlet.pipeline.archive.store import Store
from martlet.spark.read.offsets import QueueKey

if TYPE_CHECKING:
    from martlet.pipeline.archive.writing import Writing


class ArchiveTable(Protocol):
    """An archive's table."""

    def begin(self, run: str) -> None:
        """Take the table over: it is this run's from now on, and what others left is removed."""

    def position(self, queues: Iterable[QueueKey]) -> Position | None:
        """How far these queues are archived, and perhaps others.

        Returns:
            Without those that nothing is known of; None while nobody has said where to start.
        """

    def start(self, run: str, start: Position) -> None:
        """Say where to start, with the queues that are not known yet."""

    def stage(self, run: str, batch: str) -> str:
        """The folder, not there yet, for what is written of a batch."""

    def commit(self, run: str, manifests: Sequence[Manifest]) -> int:
        """Let a batch be there, all of it or nothing; how many rows it is.

        Raises:
            TwoWritersError, TakenOverError: the archive is written to by another.
        """


def open_table(writing: Writing) -> ArchiveTable:
    """The table at a location, which may not be there yet."""
    if writing.in_place:
        from martlet.pipeline.archive.delta_table import DeltaTable

        return DeltaTable(writing)
    from martlet.pipeline.archive.parquet_table import ParquetTable

    return ParquetTable(Store.at(writing.location))
