"""The beginning of transactions, by a call or with the first messages, and refusals of the broker.

SEND needs these before the broker listens, and so without `martlet.schema`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.transactions.state import (
    MAX_NAME_LENGTH,
    MAX_NUMBER,
    BadTransaction,
    CommitSequence,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
    UnknownTransaction,
)
from martlet.server.rpc.registry import CallArguments, CallError
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.transactions.manager import Transactions
    from martlet.options import BrokerOptions

_MAX_CHECK_AFTER_MS = 400 * 24 * 3600 * 1000


def refused(error: Exception) -> Exception:
    """Return the call's error for one of the broker's."""
    if isinstance(error, TransitionRefused):
        code = "INCOMPLETE" if error.is_incomplete else "CONFLICT"
        return CallError(code, str(error), state=error.state)
    if isinstance(error, UnknownTransaction):
        return CallError("NOT_FOUND", str(error))
    if isinstance(error, BadTransaction):
        return CallError("BAD_TRANSACTION", str(error))
    return error


def transaction_limits(options: BrokerOptions) -> TransactionLimits:
    """Return the limits that the options set."""
    return TransactionLimits(
        check_after_ns=options.transaction_check_after_ns,
        check_every_ns=options.transaction_check_interval_ns,
        max_checks=options.transaction_checks,
        aside_topic=options.transaction_aside_topic,
        max_open=options.max_transactions,
        max_bytes=options.max_transaction_bytes,
        max_batches=options.max_transaction_sends,
        max_outcomes=options.transaction_outcomes,
        max_series=options.transaction_series,
        remembered_ns=options.transaction_memory_ns,
    )


def begin(
    transactions: Transactions,
    transaction_id: str,
    arguments: CallArguments,
    *,
    is_recorded: bool = True,
) -> TransactionState:
    """Begin a transaction with a client's arguments."""
    arguments.only("group", "check_after_ms", "series", "series_number", "disposable")
    check_after_ns = None
    if "check_after_ms" in arguments:
        after_ms = arguments.number("check_after_ms", min_value=1, max_value=_MAX_CHECK_AFTER_MS)
        check_after_ns = after_ms * MILLISECOND_NS
    group, disposable = arguments.text("group", "", max_value=255), arguments.flag("disposable")
    return transactions.begin(
        transaction_id,
        group,
        check_after_ns,
        _sequence_of(arguments),
        disposable,
        is_recorded=is_recorded,
    )


def _sequence_of(arguments: CallArguments) -> CommitSequence | None:
    """Return the number in a commit sequence, if any. Raises CallError."""
    if "series" not in arguments and "series_number" not in arguments:
        return None
    name = arguments.text("series", max_value=MAX_NAME_LENGTH)
    return CommitSequence(name, arguments.number("series_number", max_value=MAX_NUMBER))


def begin_open(transactions: Transactions, transaction_id: str, arguments: CallArguments) -> None:
    """Begin a transaction, which must be open. Raises TransitionRefused if it has ended."""
    state = begin(transactions, transaction_id, arguments, is_recorded=False)
    if state is not TransactionState.OPEN:
        raise TransitionRefused(f"transaction {transaction_id!r} is {state}", state)
