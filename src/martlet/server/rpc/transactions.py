"""The calls about transactions (see `martlet.broker.transactions.state`).

========================  ==========================================================================
``transaction.begin``     ``id``, ``group``, ``check_after_ms``, ``series``, ``series_number``,
                          ``disposable``: begin it, or return its state if it is known
``transaction.prepare``   ``id``, ``branches``: it is complete, and on the disk once answered
``transaction.commit``    ``id``, ``branches``, ``series``, ``series_number``: its messages become
                          visible
``transaction.rollback``  ``id``: its messages are dropped
``transaction.checks``    ``group``, ``wait_ms``: wait for transactions to check back
``transaction.series``    ``series``: its last committed number
``transaction.list``      those that have not ended, the oldest first
``transaction.show``      one of them with its messages, or how it has ended
========================  ==========================================================================

``branches`` maps the name of each sender whose messages belong to it to their number;
messages of other senders are left out. Each call may be repeated: it is answered as the first time.

Each ``series_number`` of a ``series`` is committed once (see
`martlet.broker.transactions.commit_sequence`): a commit answered with ``"repeated": true`` has
published nothing, since that number was committed before. A ``disposable`` transaction without a
decision is rolled back, where others wait for an operator.

A producer of a group always has a ``transaction.checks`` waiting. While it waits the broker can
check back with this producer; the end of its connection ends that.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from martlet.broker.transactions.commit_sequence import MAX_NAME_LENGTH, MAX_NUMBER, CommitSequence
from martlet.broker.transactions.half_topic import frames_of
from martlet.broker.transactions.state import (
    BadTransaction,
    OpenTransaction,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
    UnknownTransaction,
)
from martlet.durations import MILLISECOND_NS
from martlet.log.record import FRAME_HEADER_BYTES, BadRecord
from martlet.properties.model import Properties
from martlet.server.rpc.arguments import CallArguments, CallError

if TYPE_CHECKING:
    from martlet.broker.transactions.manager import Transactions
    from martlet.options import BrokerOptions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.registry import Answer, Caller, Methods

_MAX_ID_LENGTH = 255
_MAX_BRANCHES = 10_000
_MAX_CHECKS = 100
_MAX_WAIT_MS = 60_000
_MAX_CHECK_AFTER_MS = 400 * 24 * 3600 * 1000
_MAX_LISTED = 1000
_MAX_SHOWN = 1000
_MAX_ANSWER_BYTES = 8 << 20


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
        place_of(arguments),
        disposable,
        is_recorded=is_recorded,
    )


def place_of(arguments: CallArguments) -> CommitSequence | None:
    """Return the place in a series, if any. Raises CallError."""
    if "series" not in arguments and "series_number" not in arguments:
        return None
    name = arguments.text("series", max_value=MAX_NAME_LENGTH)
    return CommitSequence(name, arguments.number("series_number", max_value=MAX_NUMBER))


def begin_open(transactions: Transactions, transaction_id: str, arguments: CallArguments) -> None:
    """Begin a transaction that messages are added to at once. Raises TransitionRefused if it has
    ended.
    """
    state = begin(transactions, transaction_id, arguments, is_recorded=False)
    if state is not TransactionState.OPEN:
        raise TransitionRefused(f"transaction {transaction_id!r} is {state}", state)


class TransactionCalls:
    """Transactions over a server's broker."""

    def __init__(self, transactions: Transactions, commits: GroupCommit) -> None:
        self._transactions = transactions
        self._commits = commits
        self._transactions.check_back.on_due = self._wake
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """The waiting checks by group, the oldest first."""

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "transaction.begin": self._with_errors(self.begin),
            "transaction.prepare": self._with_errors(self.prepare),
            "transaction.commit": self._with_errors(self.commit),
            "transaction.rollback": self._with_errors(self.rollback),
            "transaction.checks": self.checks,
            "transaction.series": self.series,
            "transaction.list": self.list,
            "transaction.show": self._with_errors(self.show),
        }

    @staticmethod
    def _with_errors(
        method: Callable[[Caller, CallArguments], Any],
    ) -> Callable[[Caller, CallArguments], Any]:
        async def call(caller: Caller, arguments: CallArguments) -> Any:
            try:
                return await method(caller, arguments)
            except (TransitionRefused, UnknownTransaction, BadTransaction) as error:
                raise refused(error) from error

        return call

    def _id(self, caller: Caller, arguments: CallArguments) -> str:
        """Return the transaction's id, for a caller that may publish to its topics."""
        transaction_id = arguments.text("id", max_value=_MAX_ID_LENGTH)
        transaction = self._transactions.open.get(transaction_id)
        if transaction is not None:
            for topic in transaction.topics:
                caller.may_publish(topic)
        return transaction_id

    # producers

    async def begin(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Begin a transaction."""
        transaction_id = arguments.text("id", max_value=_MAX_ID_LENGTH)
        state = begin(self._transactions, transaction_id, arguments.without("id"))
        return {"state": state}

    async def prepare(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Prepare a transaction: complete, and safe from a power cut in any flush mode."""
        arguments.only("id", "branches")
        transaction_id = self._id(caller, arguments)
        self._transactions.prepare(transaction_id, _branches(arguments))
        await self._commits.all_on_disk()
        return {"state": TransactionState.PREPARED}

    async def commit(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Commit a transaction."""
        arguments.only("id", "branches", "series", "series_number")
        transaction_id = self._id(caller, arguments)
        outcome = self._transactions.commit(
            transaction_id, _branches(arguments), place_of(arguments)
        )
        return {"state": outcome.state, **({"repeated": True} if outcome.is_repeated else {})}

    async def rollback(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Roll a transaction back."""
        arguments.only("id")
        outcome = self._transactions.rollback(self._id(caller, arguments))
        return {"state": outcome.state}

    # check-backs

    async def checks(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Wait for transactions of a group to check back; answer none after `wait_ms`."""
        arguments = arguments.renamed({"most": "limit"})
        arguments.only("group", "limit", "wait_ms")
        group = arguments.text("group", max_value=255)
        if not group:
            raise CallError("BAD_ARGUMENT", "'group' is empty: name the group to check back for")
        max_count = arguments.number("limit", _MAX_CHECKS, min_value=1, max_value=_MAX_CHECKS)
        wait_ms = arguments.number("wait_ms", 30_000, max_value=_MAX_WAIT_MS)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1000
        while True:
            if caller.is_gone:
                return {"transactions": []}
            taken = self._transactions.take_due(
                group, max_count, lambda each: _may_see(caller, each)
            )
            left_s = deadline_s - loop.time()
            if taken or left_s <= 0:
                return {"transactions": [_to_json(transaction) for transaction in taken]}
            await self._wait(group, left_s)

    async def _wait(self, group: str, max_s: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(group, {})
        waiting[future] = None
        try:
            async with asyncio.timeout(max_s):
                await future
        except TimeoutError:
            pass
        finally:
            waiting.pop(future, None)
            if not waiting and self._waiting.get(group) is waiting:
                del self._waiting[group]

    def _wake(self, group: str) -> None:
        """Wake all waiting producers, since each may be gone; the first takes all transactions."""
        for future in self._waiting.get(group, ()):
            if not future.done():
                future.set_result(None)

    # operators

    async def series(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Answer the last committed number of a commit sequence; null if it is unknown."""
        arguments.only("series")
        last = self._transactions.series.last(arguments.text("series", max_value=MAX_NAME_LENGTH))
        if last is None:
            return {"series_number": None}
        return {"series_number": last.number, "committed_at_ms": last.at_ns // MILLISECOND_NS}

    def list(self, caller: Caller, arguments: CallArguments) -> Answer:
        """List the transactions that have not ended."""
        arguments.only("state", "group", "limit")
        states = [state.value for state in TransactionState]
        state = arguments.choice("state", states) if "state" in arguments else None
        group = arguments.text("group") if "group" in arguments else None
        limit = arguments.number("limit", 100, min_value=1, max_value=_MAX_LISTED)
        wanted = [
            transaction
            for transaction in self._transactions.open.values()
            if state in (None, transaction.state) and group in (None, transaction.group)
        ]
        return {
            "transactions": [_to_json(transaction) for transaction in wanted[:limit]],
            "count": len(wanted),
            "remembered": len(self._transactions.outcomes),
            "series": len(self._transactions.series),
        }

    async def show(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Show a transaction with its messages."""
        arguments.only("id", "limit", "max_body_bytes")
        transaction_id = self._id(caller, arguments)
        limit = arguments.number("limit", 100, max_value=_MAX_SHOWN)
        max_bytes = arguments.number("max_body_bytes", 1024, max_value=_MAX_ANSWER_BYTES)
        transaction = self._transactions.open.get(transaction_id)
        if transaction is None:
            state = self._transactions.state(transaction_id)
            outcome = self._transactions.outcomes.get(transaction_id)
            assert outcome is not None
            return {
                "id": transaction_id,
                "state": state,
                "ended_at_ms": outcome.at_ns // MILLISECOND_NS,
            }
        return _to_json(transaction) | {"messages": self._messages(transaction, limit, max_bytes)}

    def _messages(
        self, transaction: OpenTransaction, limit: int, max_bytes: int
    ) -> Sequence[dict[str, object]]:
        half = self._transactions.half
        messages: list[dict[str, object]] = []
        shown_bytes = 0
        for batch in transaction.all_batches():
            assert half is not None
            try:
                stored = half.get(batch.first_offset, transaction.id)
            except BadRecord as error:
                messages.append({"topic": batch.topic, "lost": str(error)})
                continue
            entries = dict(stored.entries)
            for number, frame in enumerate(frames_of(stored)):
                body = bytes(frame[FRAME_HEADER_BYTES:])
                shown_bytes += min(len(body), max_bytes)
                if len(messages) >= limit or shown_bytes > _MAX_ANSWER_BYTES:
                    return messages
                messages.append(
                    {
                        "topic": batch.topic,
                        "body_bytes": len(body),
                        "body_base64": b64encode(body[:max_bytes]).decode(),
                        **_properties_to_json(entries.get(number, b"")),
                    }
                )
        return messages


def _may_see(caller: Caller, transaction: OpenTransaction) -> bool:
    """Return whether the caller may publish to a transaction's topics. Raises CallError."""
    try:
        for topic in transaction.topics:
            caller.may_publish(topic)
    except CallError as error:
        if error.code != "FORBIDDEN":
            raise
        return False
    return True


def _branches(arguments: CallArguments) -> Mapping[str, int] | None:
    if "branches" not in arguments:
        return None
    branches = arguments.mapping("branches", max_value=_MAX_BRANCHES)
    counts = CallArguments(branches)
    return {name: counts.number(name) for name in branches}


def _to_json(transaction: OpenTransaction) -> dict[str, object]:
    return {
        "id": transaction.id,
        "group": transaction.group,
        "state": transaction.state,
        "begun_at_ms": transaction.begun_at_ns // MILLISECOND_NS,
        "messages": transaction.message_count,
        "bytes": transaction.size_bytes,
        "topics": transaction.topics,
        "branches": {n: b.message_count for n, b in transaction.branches.items()},
        "checks": transaction.checks,
        **({} if transaction.place is None else _sequence_to_json(transaction.place)),
    }


def _sequence_to_json(place: CommitSequence) -> dict[str, object]:
    return {"series": place.name, "series_number": place.number}


def _properties_to_json(entry: bytes) -> dict[str, object]:
    if not entry:
        return {}
    properties = Properties.unpack(entry)
    return {
        name: value
        for name, value in (
            ("tag", properties.tag),
            ("keys", list(properties.keys)),
            ("headers", dict(properties.headers)),
            ("order_key", properties.order_key),
        )
        if value
    }
