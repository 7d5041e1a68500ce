"""The sink: ``df.writeStream.format("martlet")`` and ``df.write.format("martlet")``, exactly once.

Tasks stage their rows in a transaction of the broker, where no consumer sees them.  When all are
done, the driver commits: one record of the broker's log publishes the rows of all tasks, together
with the batch's number in the query's sequence.  A batch that Spark repeats after that commit is
published no more: the broker knows its number.  Only the number identifies the batch, as Spark may
split the same offsets into other tasks.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from martlet.spark.write.options import BatchId, CommitMessage, WriteFailed, WriteOptions
from martlet.spark.write.placement import BrokerUnavailable, broker_for
from martlet.spark.write.schema import check_columns
from martlet.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from martlet.spark.write.broker_transaction import BrokerTransaction

_LOG = logging.getLogger(__name__)
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
"""Local properties of a task of a stream."""

Messages = Sequence[WriterCommitMessage | None]


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """In a task: stage its rows."""
        context = TaskContext.get()
        if context is None:
            raise WriteFailed("this is no task of Spark")
        query, batch, run = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID, _RUN_ID))
        if not query or batch is None:
            raise WriteFailed(f"Spark has not set {_QUERY_ID} and {_BATCH_ID} for this task")
        batch_id = BatchId(self._options.application_id or query, int(batch))
        # By run, so that the rows staged by a killed run are not in the way of the next.
        identity = "\0".join((batch_id.name, query, run or ""))
        digest = blake2b(identity.encode(), digest_size=8).hexdigest()
        return _staged(self._options, f"spark-{digest}-{batch_id.number}", batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: publish the staged rows."""
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: discard the staged rows."""
        _abort(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query, all or none."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._transaction = f"spark-{secrets.token_hex(16)}"
        self._batch_id: BatchId | None = None
        if options.application_id is not None and options.batch_id is not None:
            self._batch_id = BatchId(options.application_id, options.batch_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """In a task: stage its rows."""
        return _staged(self._options, self._transaction, self._batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish the staged rows."""
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: discard the staged rows, also those of failed tasks."""
        _roll_back(self._options, self._transaction, self._batch_id)


def stream_writer(raw: Mapping[str, str], schema: StructType) -> StreamWriter:
    """A writer for a stream's rows. Raises ValueError."""
    options = WriteOptions.parse(raw, "stream")
    check_columns(schema, options.topic)
    return StreamWriter(options)


def batch_writer(raw: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """A writer for a batch query's rows. Raises ValueError."""
    if overwrite:
        raise ValueError(
            "mode('overwrite'): messages are appended to a topic, never put in place of others;"
            " write with mode('append')"
        )
    options = WriteOptions.parse(raw, "batch")
    check_columns(schema, options.topic)
    return BatchWriter(options)


def _stage(
    options: WriteOptions, transaction: str, batch_id: BatchId | None, address: str = ""
) -> BrokerTransaction:
    """Import late: the process in which Spark plans each batch does not need the client."""
    from martlet.spark.write.broker_transaction import BrokerTransaction

    return BrokerTransaction(options, transaction, batch_id, address)


def _staged(
    options: WriteOptions,
    transaction: str,
    batch_id: BatchId | None,
    rows: Iterator[pa.RecordBatch],
) -> CommitMessage:
    first = next((batch for batch in rows if len(batch)), None)
    if first is None:
        return CommitMessage(transaction, batch_id, "", 0)
    with _stage(options, transaction, batch_id) as stage:
        staged = stage.stage(chain([first], rows))
    for _ in rows:
        pass  # Spark wants all rows read, also of a batch that was published before.
    return staged


def _commit(options: WriteOptions, messages: Messages) -> None:
    staged = [message for message in messages if isinstance(message, CommitMessage)]
    if len(staged) < len(messages):
        raise WriteFailed(
            f"{counted(len(messages) - len(staged), 'task')} did not report the rows staged"
        )
    filled = [message for message in staged if message.message_count or message.is_repeated]
    if not filled:
        return
    # One commit must publish all rows: with a second transaction readers could see half a batch.
    if len({(message.transaction, message.batch_id) for message in filled}) > 1:
        raise WriteFailed("tasks have staged in several transactions: start the query again")
    transaction, batch_id = filled[0].transaction, filled[0].batch_id
    branches = {m.branch: m.message_count for m in filled if m.message_count}
    is_repeated = any(message.is_repeated for message in filled)
    with _stage(options, transaction, batch_id) as stage:
        if is_repeated and not _has_published(stage, batch_id):
            # A replica whose log did not count had it. Tasks have not staged all of their rows.
            raise WriteFailed("the broker has lost an earlier commit: start the query again")
        # After a change of the addresses this broker may not know the last batch, and another does.
        elsewhere = _published_elsewhere(options, stage, transaction, batch_id)
        if elsewhere:
            stage.roll_back()
        if elsewhere or stage.commit(branches):
            assert batch_id is not None
            _LOG.warning(
                "batch %d of %s was published before, at %s, so its %d rows are not published"
                " again; if they are new rows, as of a query with a new checkpoint, set another"
                " applicationId",
                batch_id.number,
                batch_id.name,
                elsewhere or stage.address,
                sum(branches.values()),
            )


def _published_elsewhere(
    options: WriteOptions, stage: BrokerTransaction, transaction: str, batch_id: BatchId | None
) -> str:
    """The address of another broker that has published the batch; empty if none has."""
    if batch_id is None or len(options.addresses) <= 1:
        return ""
    if stage.has_published(max(0, batch_id.number - 1)):
        return ""
    for address in options.addresses:
        if address != stage.address:
            with _stage(options, transaction, batch_id, address) as other:
                is_replica = other.broker_id and other.broker_id == stage.broker_id
                if not is_replica and _has_published(other, batch_id):
                    return address
    return ""


def _has_published(stage: BrokerTransaction, batch_id: BatchId | None) -> bool:
    return batch_id is not None and stage.has_published(batch_id.number)


def _abort(options: WriteOptions, messages: Messages) -> None:
    transactions = {
        (message.transaction, message.batch_id)
        for message in messages
        if isinstance(message, CommitMessage) and message.message_count
    }
    for transaction, batch_id in transactions:
        _roll_back(options, transaction, batch_id)


def _roll_back(options: WriteOptions, transaction: str, batch_id: BatchId | None) -> None:
    try:
        with _stage(options, transaction, batch_id) as stage:
            stage.roll_back()
    except (WriteFailed, BrokerUnavailable) as error:
        query = transaction if batch_id is None else batch_id.name
        name = options.broker or broker_for(query, options.addresses)
        _LOG.warning("the rows staged at %s stay there until they expire: %s", name, error)
