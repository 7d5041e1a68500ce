"""The message by which a task reports its staged rows to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class WriteFailed(Exception):
    """Rows could not be staged or published; the text has the cause and the way out."""


class BatchId(NamedTuple):
    """The identity of a batch, by which the broker deduplicates it.

    Attributes:
        name: the option applicationId, or the query's id.
        number: the batch's number.
    """

    name: str
    number: int


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The rows that a task has staged.

    Attributes:
        transaction: the transaction's id.
        batch_id: None for a write that is never repeated.
        branch: the name of the task's rows within the transaction.
        message_count: the number of rows.
        is_repeated: whether the broker has published this batch before.
    """

    transaction: str
    batch_id: BatchId | None
    branch: str
    message_count: int
    is_repeated: bool = False


def branches_of(staged: Sequence[CommitMessage]) -> dict[str, int]:
    """The branches to commit, with their row counts."""
    return {each.branch: each.message_count for each in staged if each.message_count}
