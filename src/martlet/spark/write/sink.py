"""The sink: ``df.writeStream.format("martlet")`` and ``df.write.format("martlet")``, exactly once.

Tasks stage their rows in a transaction of the broker, where nobody sees them.  When all are done,
the driver commits: one record of the broker's log publishes the rows of all tasks, together with
the number of the batch in the series of the query.  So whatever is killed, and when:

- before the commit, nothing of the batch is seen.  It is done again under another transaction, and
  what was staged goes by the next commit, or by its age;
- after the commit and before Spark's own, the batch is done again too, and the broker, which knows
  its number, publishes nothing: the same offsets come in other pieces, so only the number tells.

The series is named by option ``applicationId``, or by the query's id, which the checkpoint keeps.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from martlet.plural import counted
from martlet.spark.write.commit_message import BatchId, CommitMessage, WriteFailed, branches_of
from martlet.spark.write.options import WriteOptions
from martlet.spark.write.placement import NoDoor, home_of
from martlet.spark.write.schema import check_columns

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
    """Writes the micro-batches of a stream.

    Args:
        options: the query's.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """In a task: stage its rows."""
        context = TaskContext.get()
        if context is None:
            raise WriteFailed("no task of Spark's runs here")
        query, batch, run = map(context.getLocalProperty, (_QUERY_ID, _BATCH_ID, _RUN_ID))
        if not query or batch is None:
            raise WriteFailed(f"Spark does not tell {_QUERY_ID} and {_BATCH_ID} of this task")
        place = BatchId(self._options.application_id or query, int(batch))
        # What a run that was killed has staged is not in the way of the next.
        told = "\0".join((place.name, query, run or ""))
        digest = blake2b(told.encode(), digest_size=8).hexdigest()
        return _staged(self._options, f"spark-{digest}-{place.number}", place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: publish what tasks have staged."""
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: give it up."""
        _abort(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query, all or none.

    Args:
        options: the query's.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._transaction = f"spark-{secrets.token_hex(16)}"
        self._place: BatchId | None = None
        if options.application_id is not None and options.batch_id is not None:
            self._place = BatchId(options.application_id, options.batch_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """In a task: stage its rows."""
        return _staged(self._options, self._transaction, self._place, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: publish what tasks have staged."""
        _commit(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver: give it up, whatever tasks that failed have left unsaid."""
        _roll_back(self._options, self._transaction, self._place)


def stream_writer(given: Mapping[str, str], schema: StructType) -> StreamWriter:
    """A writer for a stream's rows. Raises ValueError."""
    options = WriteOptions.parse(given, "stream")
    check_columns(schema, options.topic)
    return StreamWriter(options)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """A writer for a batch query's rows. Raises ValueError."""
    if overwrite:
        raise ValueError(
            "mode('overwrite'): messages are appended to a topic, never put in place of others;"
            " write with mode('append')"
        )
    options = WriteOptions.parse(given, "batch")
    check_columns(schema, options.topic)
    return BatchWriter(options)


def _stage(
    options: WriteOptions, transaction: str, place: BatchId | None, address: str = ""
) -> BrokerTransaction:
    """Imported here: Spark plans each batch in a process of its own, which has no need of it."""
    from martlet.spark.write.broker_transaction import BrokerTransaction

    return BrokerTransaction(options, transaction, place, address)


def _staged(
    options: WriteOptions, transaction: str, place: BatchId | None, rows: Iterator[pa.RecordBatch]
) -> CommitMessage:
    first = next((batch for batch in rows if len(batch)), None)
    if first is None:
        return CommitMessage(transaction, place, "", 0)
    with _stage(options, transaction, place) as stage:
        staged = stage.stage(_chain(first, rows))
    for _ in rows:
        pass  # Of a batch that was published before: Spark wants its rows to be read.
    return staged


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _commit(options: WriteOptions, messages: Messages) -> None:
    staged = [each for each in messages if isinstance(each, CommitMessage)]
    if len(staged) < len(messages):
        raise WriteFailed(
            f"no news from {counted(len(messages) - len(staged), 'task')} of the rows written"
        )
    filled = [each for each in staged if each.message_count or each.is_repeated]
    if not filled:
        return
    if len({(each.transaction, each.place) for each in filled}) > 1:
        raise WriteFailed("tasks have staged in several transactions: start the query again")
    transaction, place = filled[0].transaction, filled[0].place
    branches = branches_of(filled)
    with _stage(options, transaction, place) as stage:
        elsewhere = _published_elsewhere(options, stage, transaction, place)
        if elsewhere:
            stage.roll_back()
        if elsewhere or stage.commit(branches):
            assert place is not None
            _LOG.warning(
                "batch %d of %s was published before, at %s, and its %d rows are not again; were"
                " they to be others, as of a query with a new checkpoint, give them another"
                " applicationId",
                place.number,
                place.name,
                elsewhere or stage.address,
                sum(branches.values()),
            )


def _published_elsewhere(
    options: WriteOptions, stage: BrokerTransaction, transaction: str, place: BatchId | None
) -> str:
    """The address of another broker that has published the batch; empty where none has."""
    if place is None or len(options.addresses) == 1:
        return ""
    last = stage.last_number()
    if last is not None and last >= place.number - 1:
        return ""
    for address in options.addresses:
        if address != stage.address:
            with _stage(options, transaction, place, address) as other:
                last = other.last_number()
            if last is not None and last >= place.number:
                return address
    return ""


def _abort(options: WriteOptions, messages: Messages) -> None:
    known = {
        (each.transaction, each.place)
        for each in messages
        if isinstance(each, CommitMessage) and each.message_count
    }
    for transaction, place in known:
        _roll_back(options, transaction, place)


def _roll_back(options: WriteOptions, transaction: str, place: BatchId | None) -> None:
    try:
        with _stage(options, transaction, place) as stage:
            stage.roll_back()
    except (WriteFailed, NoDoor) as error:
        name = home_of(transaction if place is None else place.name, options.addresses)
        _LOG.warning("what was staged at %s stays there for now: %s", name, error)
