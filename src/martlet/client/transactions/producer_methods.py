"""The transaction methods of a producer, which need Martlet brokers."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from martlet.client.hooks import Hooks
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.limits import Limits
from martlet.client.transactions.bulk import BulkLoader
from martlet.client.transactions.check_back import Check, CheckBackListener
from martlet.client.transactions.session import PinnedSession, broker_of_transaction
from martlet.client.transactions.transaction import Transaction

_MAX_TRIES = 1000


class ProducerTransactions(ABC):
    """Begin transactions, join those of other processes, and answer check-backs of the group."""

    _pool: BrokerPool
    _limits: Limits
    _timeout_s: float
    _hooks: Hooks | None
    _group: str
    _checking: CheckBackListener | None

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if nothing can be published."""

    def _join_group(self, group: str, check: Check | None) -> None:
        """Answer the check-backs of a group's transactions, if there is a check."""
        self._group = group
        self._checking = None
        if check is not None:
            self._checking = CheckBackListener(group, check)
            self._pool.on_connected.append(self._checking.connected)

    def transaction(
        self, id: str = "", *, check_after_s: float | None = None, broker: str = ""
    ) -> Transaction:
        """Begin a transaction: messages that become visible together at its commit, or never.

        ::

            async with producer.transaction() as transaction:
                await transaction.publish("orders", b"one")

        The block commits it, or rolls it back after an exception. If the producer has a group, and
        dies before either, the broker asks any producer of the group with a ``check``.

        Args:
            id: a name of your own, by which a second process, or a second try, finds it again, so
                that it is committed once. Random if empty.
            check_after_s: the time of silence before the broker checks back; None for the broker's
                6 s.
            broker: one of several, as ``host:port`` or its id; else chosen by the transaction.

        Raises:
            Closed: the producer has been closed.
        """
        self._check_open()
        pinned = PinnedSession(self._pool, self._timeout_s, broker)
        return Transaction(
            pinned,
            id or self._fresh_id(pinned, broker),
            group=self._group,
            check_after_s=check_after_s,
            max_body_bytes=self._limits.max_message_bytes,
            is_named=bool(id),
            hooks=self._hooks,
        )

    def join_transaction(self, id: str, *, broker: str = "") -> Transaction:
        """Add to a transaction that another process has begun and will commit.

        ::

            async with producer.join_transaction(id) as transaction:
                await transaction.publish("orders", b"two")
            ...                         # the committing process needs transaction.contribution

        Raises:
            Closed: the producer has been closed.
        """
        self._check_open()
        return Transaction(
            PinnedSession(self._pool, self._timeout_s, broker),
            id,
            group="",
            check_after_s=None,
            max_body_bytes=self._limits.max_message_bytes,
            is_joined=True,
            hooks=self._hooks,
        )

    def staging(
        self, transaction_id: str, begin: Mapping[str, Any], *, broker: str = ""
    ) -> BulkLoader:
        """Add blocks of encoded messages to a transaction.

        Args:
            transaction_id: of the transaction, which the first block begins if it is not open.
            begin: the fields of ``transaction.begin``.
            broker: one of several, as ``host:port`` or its id; else chosen by the transaction.

        Raises:
            Closed: the producer has been closed.
        """
        self._check_open()
        return BulkLoader(PinnedSession(self._pool, self._timeout_s, broker), transaction_id, begin)

    def _fresh_id(self, pinned: PinnedSession, broker: str) -> str:
        """Choose a random id whose broker is the one with the least in flight."""
        lightest = None if broker else pinned.lightest()
        tried = (secrets.token_hex(16) for _ in range(_MAX_TRIES))
        if lightest is None:
            return next(tried)
        links = self._pool.links
        return next(
            (
                transaction_id
                for transaction_id in tried
                if broker_of_transaction(links, transaction_id) is lightest
            ),
            secrets.token_hex(16),
        )
