"""Transactions without ``await``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType

from martlet.client.producer.message import Body
from martlet.client.sync.loop_thread import LoopThread
from martlet.client.transactions import transaction as asynchronous
from martlet.client.transactions.transaction import Contribution


class Transaction:
    """A transaction of `martlet.client.sync.Producer`.

    ::

        with producer.transaction() as transaction:
            transaction.publish("orders", b"one")
            transaction.publish("mails", b"two")

    It is `martlet.client.Transaction` and promises what that promises; arguments and errors are the
    same.  Several threads may add to it.
    """

    def __init__(self, thread: LoopThread, transaction: asynchronous.Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    @property
    def id(self) -> str:
        """By which it is known."""
        return self._transaction.id

    @property
    def contribution(self) -> Contribution:
        """What was added here, as whoever commits the transaction wants to know it."""
        return self._transaction.contribution

    def publish(
        self,
        topic: str,
        body: Body,
        *,
        tag: str = "",
        keys: Iterable[str] | str = (),
        headers: Mapping[str, str] | None = None,
        order_key: str = "",
        queue: int | None = None,
    ) -> None:
        """Add a message, and return once the broker has stored it; nobody sees it yet."""
        self._thread.call(
            self._transaction.publish(
                topic,
                body,
                tag=tag,
                keys=keys,
                headers=headers,
                order_key=order_key,
                queue=queue,
            )
        )

    def publish_many(
        self, topic: str, bodies: Iterable[Body], *, order_key: str = "", queue: int | None = None
    ) -> int:
        """Add messages in order, and return how many once the broker has stored all of them.

        What is no list or tuple is read here, in the caller's thread.
        """
        if not isinstance(bodies, (list, tuple)):
            bodies = list(bodies)
        return self._thread.call(
            self._transaction.publish_many(topic, bodies, order_key=order_key, queue=queue)
        )

    def begin(self) -> str:
        """Begin it, as the block does, and return its state."""
        return self._thread.call(self._transaction.begin())

    def prepare(self, *others: Contribution) -> None:
        """Have it complete, and on the broker's disk."""
        self._thread.call(self._transaction.prepare(*others))

    def commit(self, *others: Contribution) -> None:
        """Have everybody see its messages."""
        self._thread.call(self._transaction.commit(*others))

    def rollback(self) -> None:
        """Have nobody see its messages, ever."""
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
