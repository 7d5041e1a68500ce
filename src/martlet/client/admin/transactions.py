"""Transactions that have not ended: list, show, commit and roll them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from martlet.client.admin.answers import Answers
from martlet.client.admin.channels import ShownBody
from martlet.client.admin.decode import Described, named
from martlet.client.admin.noun import Noun, given


@dataclass(frozen=True, kw_only=True)
class TransactionSummary(Described):
    """A transaction of one broker.

    Attributes:
        id: its id.
        group: the producers that the broker asks about it; empty for none.
        state: ``open``, ``silent``, ``prepared``, ``in-doubt``, or ``set-aside`` for an operator.
        begun_at_ms: when it was begun, in milliseconds since 1970.
        message_count: its messages.
        size_bytes: their size.
        topics: the number of messages by topic.
        check_count: how often producers were asked.
    """

    id: str
    group: str = ""
    state: str
    begun_at_ms: int
    message_count: int = named("messages")
    size_bytes: int = named("bytes", default=0)
    topics: Mapping[str, int]
    check_count: int = named("checks", default=0)


@dataclass(frozen=True, kw_only=True)
class TransactionMessage(ShownBody):
    """A message of a transaction, which no consumer sees yet.

    Attributes:
        topic: where it becomes visible.
        lost: why it cannot be read; empty if it can.
        tag, keys, order_key, headers: its properties.
    """

    topic: str
    lost: str = ""
    tag: str = ""
    keys: tuple[str, ...] = ()
    order_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TransactionDescription(Described):
    """A transaction with its messages, or how it has ended.

    Attributes:
        id: its id.
        state: as of a `TransactionSummary`, or ``committed`` or ``rolled-back``.
        ended_at_ms: when it has ended, in milliseconds since 1970; None if it has not.
        group, begun_at_ms, check_count: as of a `TransactionSummary`, unless it has ended.
        messages: its messages, unless it has ended.
    """

    id: str
    state: str
    ended_at_ms: int | None = None
    group: str = ""
    begun_at_ms: int | None = None
    check_count: int = named("checks", default=0)
    messages: tuple[TransactionMessage, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TransactionOutcome(Described):
    """The end of a transaction.

    Attributes:
        state: ``committed`` or ``rolled-back``.
        is_repeated: whether its number of a commit sequence was committed before.
    """

    state: str
    is_repeated: bool = named("repeated", default=False)


@dataclass(frozen=True, kw_only=True)
class _Transactions(Described):
    transactions: tuple[TransactionSummary, ...]


class TransactionAdmin(Noun):
    """The transactions of brokers: `Admin.transactions`.

    A transaction is at one broker, and the others have an `AdminNotFound` for it. AdminError is
    raised only if no broker answered.
    """

    async def list(
        self, *, state: str = "", group: str = "", limit: int = 100
    ) -> Answers[tuple[TransactionSummary, ...]]:
        """List the transactions that have not ended, the oldest first.

        Args:
            state: only those in this state.
            group: only those of this group.
            limit: maximum transactions of each broker, up to 1,000.
        """
        return await self._http.call_each(
            "transaction.list",
            given(state=state, group=group, limit=limit),
            lambda answer: _Transactions.read(answer).transactions,
        )

    async def show(
        self, id: str, *, limit: int = 100, max_body_bytes: int = 1024
    ) -> Answers[TransactionDescription]:
        """Show a transaction with its messages.

        Args:
            id: of the transaction.
            limit: maximum messages, up to 1,000.
            max_body_bytes: maximum bytes of a body.
        """
        fields = {"id": id, "limit": limit, "max_body_bytes": max_body_bytes}
        return await self._http.call_each("transaction.show", fields, TransactionDescription.read)

    async def commit(self, id: str) -> Answers[TransactionOutcome]:
        """Make the messages of a transaction visible."""
        return await self._end("commit", id)

    async def rollback(self, id: str) -> Answers[TransactionOutcome]:
        """Drop the messages of a transaction."""
        return await self._end("rollback", id)

    async def _end(self, how: str, id: str) -> Answers[TransactionOutcome]:
        return await self._http.call_each(f"transaction.{how}", {"id": id}, TransactionOutcome.read)
