"""A transaction of one write at its broker: stage rows, commit them, or roll them back.

::

    task    rows -> blocks -> SEND into the transaction     branch, count --+
    task    rows -> blocks -> SEND into the transaction     branch, count --+--> driver: commit
                                                                            |
    task    that died or was retried                        (not named) ----x

A task encodes its next block while the previous one is sent.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Self

import pyarrow as pa

from martlet.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectRefused,
    TransactionError,
    TransactionRefused,
    TransactionUnclear,
)
from martlet.client.producer.producer import Producer
from martlet.client.sync.loop_thread import loop_thread
from martlet.client.transactions.bulk import MessageBlock
from martlet.client.transport.tls import Tls
from martlet.properties.model import NORMAL_PRIORITY, KeyHash
from martlet.spark.write.encode import Encoder, KeyQueues
from martlet.spark.write.options import BatchId, CommitMessage, WriteFailed, WriteOptions
from martlet.spark.write.placement import FoundBroker, broker_for, find_broker, refuse_copies

_DEFAULT_MESSAGE_BYTES = 1 << 20
_DEFAULT_BODY_BYTES = 5 << 20
_COMMITTED = "committed"
_FIND_AGAIN_S = 5.0
"""How long to connect before the addresses of the broker's replicas are asked for again."""


class BrokerTransaction:
    """A connection for one transaction, open within a ``with`` block.

    Args:
        batch_id: the batch that it publishes; None for a write that is never repeated.
        address: a broker other than the one that `broker_for` chooses.
    """

    broker_id: str
    """The id that the broker's replicas share; empty for a broker without replicas."""

    def __init__(
        self, options: WriteOptions, transaction: str, batch_id: BatchId | None, address: str = ""
    ) -> None:
        self._options = options
        self._transaction = transaction
        self._batch_id = batch_id
        name = transaction if batch_id is None else batch_id.name
        self.address = address or options.broker or broker_for(name, options.addresses)
        """The HTTP address that stands for the broker, or its id if lookup daemons find it."""
        self._thread = loop_thread()

    def __enter__(self) -> Self:
        """Connect. Raises BrokerUnavailable and WriteFailed."""
        deadline_s = time.monotonic() + self._options.timeout_ms / 1000
        while True:
            broker = self._find()
            left_s = max(0.0, deadline_s - time.monotonic())
            self._producer = self._make_producer(broker)
            try:
                self._thread.call(_connect(self._producer, min(left_s, _FIND_AGAIN_S)))
                break
            except ConnectRefused as error:
                raise WriteFailed(f"{self.address}: {error}") from error
            except (ConnectFailed, TimeoutError) as error:
                # A replica that has just started may know one other, which is the one that died.
                if left_s <= _FIND_AGAIN_S:
                    text = str(error) or f"no broker at {', '.join(broker.tcp_addresses)}"
                    raise WriteFailed(f"{self.address}: {text}") from error
        self.broker_id = broker.broker_id
        begin = {"disposable": True, "check_after_ms": self._options.abandon_after_ms}
        self._staging = self._producer.staging(
            self._transaction, begin | _to_json(self._batch_id), broker=broker.broker_id
        )
        return self

    def __exit__(self, *_error: object) -> None:
        self._thread.call(self._producer.__aexit__(None, None, None))

    def _make_producer(self, broker: FoundBroker) -> Producer:
        options = self._options
        return Producer(
            broker.tcp_addresses or None,
            lookup=options.lookup_addresses or None,
            timeout_s=options.timeout_ms / 1000,
            tls=None if options.tls is None else Tls(context=options.tls.context),
            auth_secret=options.auth_secret,
        )

    def _find(self) -> FoundBroker:
        options = self._options
        if options.broker:
            refuse_copies(options.broker, options.lookup_addresses, options.tls)
            return FoundBroker((), options.broker)
        return find_broker(self.address, options.addresses, options.tls, options.timeout_ms)

    def stage(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Add rows to the transaction. Raises ValueError for a bad row, WriteFailed."""
        on_the_way: Future[None] | None = None
        is_repeated = False
        try:
            for block in self._blocks(batches):
                if on_the_way is not None:
                    self._thread.result(on_the_way)
                on_the_way = self._thread.start(self._staging.add(block))
            if on_the_way is not None:
                self._thread.result(on_the_way)
        except TransactionRefused as error:
            if error.state != _COMMITTED:
                raise _explained(error) from error
            is_repeated = True
        except ClientError as error:
            raise _explained(error) from error
        finally:
            if on_the_way is not None and not on_the_way.done():
                on_the_way.cancel()
        branch, count = self._staging.contribution
        return CommitMessage(self._transaction, self._batch_id, branch, count, is_repeated)

    def _blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterable[MessageBlock]:
        features = self._thread.call(self._staging.features())
        # A block leaves room for the fields that go with it in a command's body.
        max_body_bytes = features.max_body_bytes or _DEFAULT_BODY_BYTES
        encoder = Encoder(
            self._options.topic,
            self._key_queues,
            block_bytes=max(1, min(self._options.block_bytes, max_body_bytes * 3 // 4)),
            max_message_bytes=features.max_message_bytes or _DEFAULT_MESSAGE_BYTES,
            delay_step_ms=self._options.delay_step_ms,
            null_values=self._options.null_values,
            uses_partition=self._options.uses_partition,
        )
        for batch in batches:
            yield from encoder.add(batch)
        yield from encoder.rest()

    def _key_queues(self, topic: str) -> KeyQueues:
        try:
            described = self._thread.call(self._staging.call("topic.describe", topic=topic))
        except TransactionRefused as error:
            if error.code == "FORBIDDEN":
                raise WriteFailed(
                    f"{self.address}: column 'key' needs the number of queues of topic {topic!r}:"
                    f" let the auth server allow authSecret to subscribe to some channel of it,"
                    f" beside publishing, or leave the column out: {error}"
                ) from error
            if error.code != "NOT_FOUND":
                raise
            return KeyQueues(1, KeyHash.CRC32C)  # Staging will create it with 1 queue.
        queues = described["queues"]
        # Keys choose among the queues of normal priority.
        count = sum(queue.get("priority", NORMAL_PRIORITY) == NORMAL_PRIORITY for queue in queues)
        name = described.get("key_hash", KeyHash.CRC32C)  # Brokers before 0.2 have that alone.
        if name not in set(KeyHash):
            raise WriteFailed(
                f"{self.address}: column 'key' needs the key hash of topic {topic!r}, {name!r},"
                " which this version does not know: upgrade it, or name a queue by column"
                " 'partition'"
            )
        return KeyQueues(count, KeyHash(name))

    def commit(self, branches: Mapping[str, int]) -> bool:
        """Publish the rows that the tasks have staged, by their branches and their numbers of rows;
        return whether the batch was published before. Raises WriteFailed.
        """
        fields: dict[str, Any] = {"id": self._transaction, "branches": dict(branches)}
        answer = self._call("transaction.commit", fields | _to_json(self._batch_id))
        return answer is not None and bool(answer.get("repeated", False))

    def has_published(self, number: int) -> bool:
        """Whether the broker published that batch, or a later one. Raises WriteFailed."""
        assert self._batch_id is not None
        # To commit a transaction that was never begun changes nothing, and says whether its number
        # was committed before. `transaction.series` is for operators.
        unknown = f"{self._transaction[:200]}?{uuid.uuid4().hex}"
        fields = _to_json(self._batch_id._replace(number=number)) | {"id": unknown}
        return self._call("transaction.commit", fields, "NOT_FOUND") is not None

    def roll_back(self) -> None:
        """Discard the staged rows; a batch that was published stays. Raises WriteFailed."""
        # Refused if it was committed or rolled back before, or no row came to the broker.
        self._call("transaction.rollback", {"id": self._transaction}, "CONFLICT", "NOT_FOUND")

    def _call(
        self, method: str, fields: Mapping[str, Any], *expected: str
    ) -> Mapping[str, Any] | None:
        """Call the broker; None if it refuses with an expected code. Raises WriteFailed."""
        try:
            return self._thread.call(self._staging.call(method, **fields))
        except ClientError as error:
            if isinstance(error, TransactionRefused) and error.code in expected:
                return None
            raise _explained(error) from error


def _to_json(batch_id: BatchId | None) -> dict[str, Any]:
    return {} if batch_id is None else {"series": batch_id.name, "series_number": batch_id.number}


def _explained(error: ClientError) -> WriteFailed:
    """The error with the way out that the sink has for it."""
    text = str(error)
    if isinstance(error, TransactionUnclear):
        text += "; see option timeoutMs"
    elif "--max-transaction-bytes" in text:
        text += (
            ". A batch is published entirely or not at all, and a stream repeats a planned batch"
            " as it was: start the broker without that limit, and the query again"
        )
    elif "--max-transaction-sends" in text:
        text += ". Fewer topics or queues in one batch, or a larger option delayStepMs, will do too"
    elif isinstance(error, TransactionRefused) and error.code in ("CONFLICT", "NOT_FOUND"):
        text += (
            ". The staged rows were rolled back, after abandonAfterMs without a commit or by an"
            " operator: start the query again"
        )
    elif isinstance(error, TransactionRefused) and error.code == "NO_QUEUE":
        text += ", or let the broker choose queues by option usePartition=false"
    elif isinstance(error, TransactionRefused) and error.code == "INCOMPLETE":
        text += ". The broker has lost staged rows, as in a power cut: start the query again"
    if isinstance(error, TransactionError):
        return WriteFailed(f"the broker refuses the rows: {text}")
    return WriteFailed(text)


async def _connect(producer: Producer, limit_s: float) -> None:
    """Connect. Raises ConnectFailed and TimeoutError."""
    async with asyncio.timeout(limit_s):
        await producer.__aenter__()
