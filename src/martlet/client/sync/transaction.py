"""Transactions without ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Unpack

from martlet.client.producer.message import Sendable
from martlet.client.producer.options import MessageKeywords
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.transactions import transaction as asynchronous
from martlet.client.transactions.transaction import Contribution


class Transaction:
    """A transaction of `martlet.client.sync.Producer`.

    ::

        with producer.transaction() as transaction:
            transaction.publish("orders", b"one")
            transaction.publish("mails", b"two")

    It has the guarantees, arguments and errors of `martlet.client.Transaction`. Several threads may
    add to it.
    """

    def __init__(self, thread: LoopThread, transaction: asynchronous.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def id(self) -> str:
        """The transaction's id."""
        return self._transaction.id

    @property
    def contribution(self) -> Contribution:
        """The contribution of this process, an argument of `commit` in the committing process."""
        return self._transaction.contribution

    def publish(self, topic: str, message: Sendable, **options: Unpack[MessageKeywords]) -> None:
        """Add a message, and return once the broker has stored it; no consumer sees it yet."""
        self._thread.call(self._transaction.publish(topic, message, **options))

    def publish_many(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> int:
        """Add messages in order, and return how many once the broker has stored all of them.

        An iterable other than a list or tuple is read in the caller's thread.
        """
        if not isinstance(messages, (list, tuple)):
            messages = list(messages)
        return self._thread.call(self._transaction.publish_many(topic, messages, **options))

    def add(
        self, topic: str, messages: Iterable[Sendable], **options: Unpack[MessageKeywords]
    ) -> None:
        """Add messages without waiting: they are sent with the next step, which raises their
        errors.
        """
        if not isinstance(messages, (list, tuple)):
            messages = list(messages)
        self._thread.call(self._add(topic, messages, options))

    async def _add(
        self, topic: str, messages: Iterable[Sendable], options: MessageKeywords
    ) -> None:
        self._transaction.add(topic, messages, **options)

    def begin(self) -> str:
        """Begin it, as the block does, and return its state."""
        return self._thread.call(self._transaction.begin())

    def prepare(self, *others: Contribution) -> None:
        """Complete the transaction, and flush it to the broker's disk."""
        self._thread.call(self._transaction.prepare(*others))

    def commit(self, *others: Contribution) -> None:
        """Make the messages visible."""
        self._thread.call(self._transaction.commit(*others))

    def rollback(self) -> None:
        """Discard the messages: no consumer ever sees them."""
        self._thread.call(self._transaction.rollback())

    def __enter__(self) -> Transaction:
        """Begin. Raises as `martlet.client.Transaction` does."""
        self._thread.call(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.call(self._transaction.__aexit__(kind, error, trace))
