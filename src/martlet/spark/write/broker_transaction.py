"""What a task, or the driver, does at the broker: stages rows, commits them, or gives them up.

::

    task    rows -> blocks -> SEND into the transaction     branch, count --+
    task    rows -> blocks -> SEND into the transaction     branch, count --+--> driver: commit
                                                                            |
    task    that died or was tried again                    (not named) ----x

While a block is on its way the next one is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from martlet.client import ClientError, Producer, TransactionError, TransactionUnclear
from martlet.client.errors import ConnectFailed, TransactionRefused
from martlet.client.sync.loop_thread import loop_thread
from martlet.client.transactions.bulk import MessageBlock
from martlet.client.transport.identity import Features
from martlet.client.transport.tls import Tls
from martlet.spark.write.commit_message import BatchId, CommitMessage, WriteFailed
from martlet.spark.write.encode import Encoder
from martlet.spark.write.options import WriteOptions
from martlet.spark.write.placement import home_of, tcp_address

_DEFAULT_MESSAGE_BYTES = 1 << 20
_DEFAULT_BODY_BYTES = 5 << 20
_COMMITTED = "committed"


class BrokerTransaction:
    """A transaction at its home, for as long as a ``with`` block.

    Args:
        options: the query's.
        transaction: its id.
        place: None for a write that nobody repeats.
        address: another broker than its home.
    """

    def __init__(
        self, options: WriteOptions, transaction: str, place: BatchId | None, address: str = ""
    ) -> None:
        self._options = options
        self._transaction = transaction
        self._place = place
        name = transaction if place is None else place.name
        self.address = address or home_of(name, options.addresses)
        self._thread = loop_thread()

    def __enter__(self) -> Self:
        """Connect. Raises NoDoor and WriteFailed."""
        options = self._options
        self._producer = Producer(
            tcp_address(self.address, options.tls, options.timeout_ms),
            timeout_s=options.timeout_ms / 1000,
            tls=None if options.tls is None else Tls(context=options.tls.context),
            auth_secret=options.auth_secret,
        )
        try:
            self._thread.call(self._producer.__aenter__())
        except ConnectFailed as error:
            raise WriteFailed(f"{self.address}: {error}") from error
        self._staging = self._producer.staging(self._transaction, self._begin())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self._producer.__aexit__(None, None, None))

    def _begin(self) -> dict[str, Any]:
        begin: dict[str, Any] = {
            "disposable": True,
            "check_after_ms": self._options.abandon_after_ms,
        }
        return begin | _to_json(self._place)

    # a task's

    def stage(self, batches: Iterable[pa.RecordBatch]) -> CommitMessage:
        """Add rows to the transaction.

        Raises:
            ValueError: a row cannot be a message.
            WriteFailed: the broker does not take them, or did not answer.
        """
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
        return CommitMessage(self._transaction, self._place, branch, count, is_repeated)

    def _blocks(self, batches: Iterable[pa.RecordBatch]) -> Iterable[MessageBlock]:
        features = self._thread.call(self._staging.features())
        encoder = Encoder(
            self._options.topic,
            self._queue_count,
            block_bytes=_block_bytes(self._options, features),
            max_message_bytes=features.max_message_bytes or _DEFAULT_MESSAGE_BYTES,
            delay_step_ms=self._options.delay_step_ms,
        )
        for batch in batches:
            yield from encoder.add(batch)
        yield from encoder.rest()

    def _queue_count(self, topic: str) -> int:
        try:
            told = self._thread.call(self._staging.call("topic.describe", topic=topic))
        except TransactionRefused as error:
            if error.code != "NOT_FOUND":
                raise
            return 1  # It is made by what is staged for it, with one queue.
        return len(told["queues"])

    # the driver's

    def commit(self, branches: Mapping[str, int]) -> bool:
        """Publish what tasks have staged. Returns whether it was published before.

        Raises WriteFailed.
        """
        fields: dict[str, Any] = {"id": self._transaction, "branches": dict(branches)}
        try:
            told = self._call("transaction.commit", **fields, **_to_json(self._place))
        except ClientError as error:
            raise _explained(error) from error
        return bool(told.get("repeated", False))

    def last_number(self) -> int | None:
        """The last batch of this name that the broker has published; None for none.

        Raises WriteFailed.
        """
        assert self._place is not None
        try:
            told = self._call("transaction.series", series=self._place.name)
        except ClientError as error:
            raise _explained(error) from error
        number: int | None = told["series_number"]
        return number

    def roll_back(self) -> None:
        """Give up what was staged; what was published stays.

        Raises WriteFailed.
        """
        try:
            self._call("transaction.rollback", id=self._transaction)
        except TransactionRefused as error:
            # It was published, or nothing came to the broker, or it was given up before.
            if error.code not in ("CONFLICT", "NOT_FOUND"):
                raise _explained(error) from error
        except ClientError as error:
            raise _explained(error) from error

    def _call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        return self._thread.call(self._staging.call(method, **fields))


def _to_json(place: BatchId | None) -> dict[str, Any]:
    return {} if place is None else {"series": place.name, "series_number": place.number}


def _block_bytes(options: WriteOptions, features: Features) -> int:
    """How large a block is to be: what is told beside the messages has to go with it."""
    max_count = features.max_body_bytes or _DEFAULT_BODY_BYTES
    return max(1, min(options.block_bytes, max_count * 3 // 4))


def _explained(error: ClientError) -> WriteFailed:
    """An error with the way out that this sink has."""
    text = str(error)
    if isinstance(error, TransactionUnclear):
        text += "; see option timeoutMs"
    elif "--max-transaction-bytes" in text:
        text += (
            ". A batch is published whole or not at all: let one have fewer rows"
            " (maxOffsetsPerTrigger of a stream, or several writes with their own batchId), or"
            " start the broker with more"
        )
    elif "--max-transaction-sends" in text:
        text += ". Fewer topics or queues in one batch, or a larger option delayStepMs, will do too"
    elif isinstance(error, TransactionRefused) and error.code in ("CONFLICT", "NOT_FOUND"):
        text += (
            ". What was staged was given up, as it was not heard of for long (option"
            " abandonAfterMs), or by a person: start the query again"
        )
    elif isinstance(error, TransactionRefused) and error.code == "INCOMPLETE":
        text += ". The broker has lost what was staged (a power cut does): start the query again"
    if isinstance(error, TransactionError):
        return WriteFailed(f"the broker refuses the rows: {text}")
    return WriteFailed(text)
