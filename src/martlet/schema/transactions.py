"""Transactions that have not ended: list and show them, commit them or roll them back.

Producers commit and roll back by the same calls, and state then what belongs to the transaction:
its ``branches``, and its number in a series.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta, field

from martlet.schema.access import OPERATORS, TRANSACTIONAL
from martlet.schema.kinds import MAX_NUMBER, Position, Size
from martlet.schema.operation import OperationAnswer, OperationRequest, operation
from martlet.schema.read import Refusal

OpenState = Literal["open", "silent", "prepared", "in-doubt", "set-aside", "committing"]
OPEN_STATES: tuple[OpenState, ...] = get_args(OpenState)
GroupName = Annotated[str, Meta(max_length=1024)]
TransactionId = Annotated[str, Meta(min_length=1, max_length=255)]
SeriesName = Annotated[str, Meta(max_length=255, extra={"flag": ""})]
Branches = Annotated[
    dict[str, Annotated[int, Meta(ge=0, le=MAX_NUMBER)]],
    Meta(max_length=10_000, extra={"flag": ""}),
]
"""The number of messages by the name of the sender that added them."""


class ListTransactions(OperationRequest, kw_only=True):
    """Which transactions to list: all that have not ended, if neither state nor group is named.

    state: list only those in this state
    group: list only those of this group; of none, where it is empty
    limit: maximum transactions to list, or messages to show, of each broker
    """

    section: ClassVar[str] = "which of them"
    state: OpenState | None = None
    group: GroupName | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class EndTransaction(OperationRequest):
    """Which transaction.

    id: the transaction
    """

    section: ClassVar[str] = "what to do"
    id: TransactionId


class ShowTransaction(EndTransaction, kw_only=True):
    """Which transaction to show.

    limit: maximum messages
    max_body_bytes: maximum bytes of a body to show
    """

    section: ClassVar[str] = "output"
    limit: Annotated[int, Meta(ge=0, le=1000)] = 100
    max_body_bytes: Size = 1024


class CommitTransaction(EndTransaction, kw_only=True):
    """Which transaction to commit, and what belongs to it.

    branches: the number of messages of each sender; others are left out (default: those that it
        was prepared with, or else all)
    series: of which it is one, for a transaction that the broker may have forgotten
    series_number: its number there, which is committed once
    """

    branches: Branches | None = None
    series: SeriesName | None = None
    series_number: Position | None = None

    def __post_init__(self) -> None:
        if (self.series is None) != (self.series_number is None):
            raise Refusal("MISSING_ARGUMENT", "{series} and {series_number} go together")


class OfSeries(OperationRequest):
    """Which series.

    series: its name
    """

    series: SeriesName


class TransactionSummary(OperationAnswer, kw_only=True):
    """A transaction of one broker.

    Attributes:
        group: the producers that the broker asks about it; empty for none.
        state: ``open``, ``silent``, ``prepared``, ``in-doubt``, ``set-aside`` for an operator, or
            ``committing`` for a large one whose commit is under way.
        begun_at_ms: when it was begun, in milliseconds since 1970.
        topics: the number of messages by topic.
        branches: the number of messages by sender.
        check_count: how often producers were asked.
        series, series_number: its number in a series; None for none.
    """

    id: str
    group: str
    state: str
    begun_at_ms: int
    message_count: int = field(name="messages")
    size_bytes: int = field(name="bytes")
    topics: Mapping[str, int]
    branches: Mapping[str, int]
    check_count: int = field(name="checks")
    series: str | None = None
    series_number: int | None = None


class OpenTransactions(OperationAnswer):
    """The transactions of one broker that have not ended."""

    transactions: tuple[TransactionSummary, ...]
    """The oldest, as many as were asked for."""
    count: int
    """The number of all that were meant."""
    remembered: int
    """The number of ended ones whose end is remembered."""
    series: int
    """The number of series."""


class TransactionMessage(OperationAnswer, kw_only=True):
    """A message of a transaction, which no consumer sees yet.

    Attributes:
        topic: where it becomes visible.
        lost: why it cannot be read; empty if it can.
        body_bytes: the size of the complete body; None where it cannot be read.
        order_key_base64, headers_base64: an order key and values of headers that are no UTF-8.
    """

    topic: str
    lost: str = ""
    body_bytes: int | None = None
    body_base64: str | None = None
    tag: str = ""
    keys: tuple[str, ...] = ()
    order_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    order_key_base64: str = ""
    headers_base64: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The beginning of the body, as much as was asked for."""
        return b64decode(self.body_base64 or "")


class TransactionDescription(OperationAnswer, kw_only=True):
    """A transaction with its messages, or how it has ended.

    Attributes:
        state: as of a `TransactionSummary`, or ``committed`` or ``rolled-back``.
        ended_at_ms: when it has ended, in milliseconds since 1970; None if it has not.
        group, begun_at_ms, size_bytes, topics, branches, check_count, series, series_number: as of
            a `TransactionSummary`, unless it has ended.
        messages: its messages, unless it has ended.
    """

    id: str
    state: str
    ended_at_ms: int | None = None
    group: str = ""
    begun_at_ms: int | None = None
    size_bytes: int = field(name="bytes", default=0)
    topics: Mapping[str, int] = field(default_factory=dict)
    branches: Mapping[str, int] = field(default_factory=dict)
    check_count: int = field(name="checks", default=0)
    series: str | None = None
    series_number: int | None = None
    messages: tuple[TransactionMessage, ...] = ()


class OpenTransactionDescription(TransactionDescription, kw_only=True):
    """One that has not ended, of which a broker always sends these fields."""

    group: str
    begun_at_ms: int
    size_bytes: int = field(name="bytes")
    topics: Mapping[str, int]
    branches: Mapping[str, int]
    check_count: int = field(name="checks")
    messages: tuple[TransactionMessage, ...]


class TransactionOutcome(OperationAnswer):
    """The end of a transaction.

    Attributes:
        state: ``committed`` or ``rolled-back``.
        is_repeated: whether its number of a series was committed before: nothing was published.
    """

    state: str
    is_repeated: bool = field(name="repeated", default=False)


class SeriesEnd(OperationAnswer):
    """How far a series has come."""

    series_number: int | None
    """The last number that was committed; None if the series is unknown."""
    committed_at_ms: int | None = None
    """When, in milliseconds since 1970."""


LIST = operation(
    "transaction.list",
    ListTransactions,
    OpenTransactions,
    OPERATORS,
    "List the transactions that have not ended, the oldest first.",
)
SHOW = operation(
    "transaction.show",
    ShowTransaction,
    TransactionDescription,
    OPERATORS,
    "Show a transaction with its messages, or how it has ended.",
)
COMMIT = operation(
    "transaction.commit",
    CommitTransaction,
    TransactionOutcome,
    TRANSACTIONAL,
    "Make the messages of a transaction visible.",
)
ROLLBACK = operation(
    "transaction.rollback",
    EndTransaction,
    TransactionOutcome,
    TRANSACTIONAL,
    "Drop the messages of a transaction.",
)
SERIES = operation(
    "transaction.series", OfSeries, SeriesEnd, OPERATORS, "Say a series' last committed number."
)
