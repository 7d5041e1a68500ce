"""What a task has staged, as it tells the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class WriteFailed(Exception):
    """Rows could not be staged or published; the text says why, and the way out."""


class BatchId(NamedTuple):
    """Which batch this is, of whose.

    Attributes:
        name: the application's, or the query's id.
        number: of the batch.
    """

    name: str
    number: int


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """What a task has staged, told to the driver.

    Attributes:
        transaction: in which.
        place: None for a write that nobody repeats.
        branch: by which it is known in the transaction.
        message_count: how many rows.
        is_repeated: whether the broker said that the batch was published before.
    """

    transaction: str
    place: BatchId | None
    branch: str
    message_count: int
    is_repeated: bool = False


def branches_of(staged: Sequence[CommitMessage]) -> dict[str, int]:
    """What belongs to the transaction."""
    return {each.branch: each.message_count for each in staged if each.message_count}
