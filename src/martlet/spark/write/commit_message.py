"""The message by which a task reports its staged rows to the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class WriteFailed(Exception):
    """Rows could not be staged or published; the text has the cause and the way out."""


class BatchId(NamedTuple):
    """The identity of a batch, by which the broker deduplicates it."""

    name: str
    """The option applicationId, or the query's id."""
    number: int


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The rows that a task has staged."""

    transaction: str
    batch_id: BatchId | None
    """None for a write that is never repeated."""
    branch: str
    """The name of the task's rows within the transaction."""
    message_count: int
    is_repeated: bool = False
    """Whether the broker has published this batch before."""
