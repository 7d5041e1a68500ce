"""The calls about transactions (see `martlet.broker.transactions.state`): those of operators, which
`martlet.schema.transactions` declares, and those of producers:

========================  ==========================================================================
``transaction.begin``     ``id``, ``group``, ``check_after_ms``, ``series``, ``series_number``,
                          ``disposable``: begin it, or return its state if it is known
``transaction.prepare``   ``id``, ``branches``: it is complete, and on the disk once answered
``transaction.checks``    ``group``, ``wait_ms``: wait for transactions to check back
========================  ==========================================================================

``branches`` maps the name of each sender whose messages belong to it to their number;
messages of other senders are left out. Each call may be repeated: it is answered as the first time.

Each ``series_number`` of a ``series`` is committed once (see
`martlet.broker.transactions.state`): a commit answered with ``"repeated": true`` has
published nothing, since that number was committed before. A ``disposable`` transaction without a
decision is rolled back, where others wait for an operator.

A producer of a group always has a ``transaction.checks`` waiting. While it waits the broker can
check back with this producer; the end of its connection ends that.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from martlet.broker.transactions.half_messages import frames_of
from martlet.broker.transactions.state import (
    BadTransaction,
    CommitSequence,
    OpenTransaction,
    StillCommitting,
    TransactionState,
    TransitionRefused,
    UnknownTransaction,
)
from martlet.log.record import FRAME_HEADER_BYTES, BadRecord
from martlet.properties.model import Properties
from martlet.schema.read import to_json
from martlet.schema.transactions import (
    COMMIT,
    LIST,
    ROLLBACK,
    SERIES,
    SHOW,
    CommitTransaction,
    EndTransaction,
    ListTransactions,
    OfSeries,
    OpenTransactionDescription,
    OpenTransactions,
    SeriesEnd,
    ShowTransaction,
    TransactionDescription,
    TransactionMessage,
    TransactionOutcome,
    TransactionSummary,
)
from martlet.server.rpc.begun_transactions import begin, refused
from martlet.server.rpc.registry import CallArguments, CallError, served
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.transactions.manager import Transactions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.registry import Answer, Caller, Methods

_MAX_ID_LENGTH = 255
_MAX_BRANCHES = 10_000
_MAX_CHECKS = 100
_MAX_WAIT_MS = 60_000
_MAX_COMMIT_WAIT_S = 5.0
"""How long a call waits for the end of a large commit before it answers TRY_AGAIN."""
_MAX_ANSWER_BYTES = 8 << 20


class TransactionCalls:
    """Transactions over a server's broker."""

    def __init__(self, transactions: Transactions, commits: GroupCommit) -> None:
        self._transactions = transactions
        self._commits = commits
        self._transactions.check_back.on_due = self._wake
        self._transactions.on_large_committed = lambda: _wake(self._committing)
        self._committing: dict[asyncio.Future[None], None] = {}
        """The waiting commits."""
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """The waiting checks by group, the oldest first."""

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "transaction.begin": self.begin,
            "transaction.prepare": self.prepare,
            "transaction.checks": self.checks,
            **served(COMMIT, self.commit),
            **served(ROLLBACK, self.rollback),
            **served(SERIES, self.series),
            **served(LIST, self.list),
            **served(SHOW, self.show),
        }

    # producers

    async def begin(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Begin a transaction."""
        transaction_id = arguments.text("id", max_value=_MAX_ID_LENGTH)
        with _refusals():
            state = begin(self._transactions, transaction_id, arguments.without("id"))
        return {"state": state}

    async def prepare(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Prepare a transaction: complete, and safe from a power cut in any flush mode."""
        arguments.only("id", "branches")
        transaction_id = arguments.text("id", max_value=_MAX_ID_LENGTH)
        self._check_may_end(caller, transaction_id)
        with _refusals():
            self._transactions.prepare(transaction_id, _branches(arguments))
        await self._commits.all_on_disk()
        return {"state": TransactionState.PREPARED}

    async def commit(self, caller: Caller, request: CommitTransaction) -> TransactionOutcome:
        """Commit a transaction; a large one takes some time."""
        self._check_may_end(caller, request.id)
        sequence = None
        if request.series is not None and request.series_number is not None:
            sequence = CommitSequence(request.series, request.series_number)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _MAX_COMMIT_WAIT_S
        while True:
            try:
                with _refusals():
                    outcome = self._transactions.commit(request.id, request.branches, sequence)
                return TransactionOutcome(outcome.state, outcome.is_repeated)
            except StillCommitting as error:
                if error.needs_flush:
                    await self._commits.all_on_disk()
                elif error.is_stopped:
                    raise CallError("REFUSED", str(error), state=error.state) from None
                elif loop.time() >= deadline_s:
                    text = f"{error}; ask again"
                    raise CallError("TRY_AGAIN", text, state=error.state) from None
                else:
                    await _wait_among(self._committing, deadline_s - loop.time())

    def rollback(self, caller: Caller, request: EndTransaction) -> TransactionOutcome:
        """Roll a transaction back."""
        self._check_may_end(caller, request.id)
        with _refusals():
            return TransactionOutcome(self._transactions.rollback(request.id).state)

    def _check_may_end(self, caller: Caller, transaction_id: str) -> None:
        """Check that a caller may publish to a transaction's topics. Raises CallError."""
        transaction = self._transactions.open.get(transaction_id)
        if transaction is not None:
            for topic in transaction.topics:
                caller.may_publish(topic)

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
                group, max_count, lambda transaction: _may_see(caller, transaction)
            )
            left_s = deadline_s - loop.time()
            if taken or left_s <= 0:
                return {"transactions": [to_json(_summary(one)) for one in taken]}
            await self._wait(group, left_s)

    async def _wait(self, group: str, max_s: float) -> None:
        waiting = self._waiting.setdefault(group, {})
        try:
            await _wait_among(waiting, max_s)
        finally:
            if not waiting and self._waiting.get(group) is waiting:
                del self._waiting[group]

    def _wake(self, group: str) -> None:
        """Wake all waiting producers, since each may be gone; the first takes all transactions."""
        _wake(self._waiting.get(group, ()))

    # operators

    def series(self, caller: Caller, request: OfSeries) -> SeriesEnd:
        """Answer the last committed number of a commit sequence."""
        last = self._transactions.series.last(request.series)
        if last is None:
            return SeriesEnd(None)
        return SeriesEnd(last.number, last.at_ns // MILLISECOND_NS)

    def list(self, caller: Caller, request: ListTransactions) -> OpenTransactions:
        """List the transactions that have not ended."""
        transactions = [
            transaction
            for transaction in self._transactions.open.values()
            if request.state in (None, transaction.state)
            and request.group in (None, transaction.group)
        ]
        return OpenTransactions(
            tuple(map(_summary, transactions[: request.limit])),
            count=len(transactions),
            remembered=len(self._transactions.outcomes),
            series=len(self._transactions.series),
        )

    def show(self, caller: Caller, request: ShowTransaction) -> TransactionDescription:
        """Show a transaction with its messages."""
        transaction = self._transactions.open.get(request.id)
        if transaction is None:
            state = self._transactions.state(request.id)
            outcome = self._transactions.outcomes.get(request.id)
            assert outcome is not None
            return TransactionDescription(
                id=request.id, state=state, ended_at_ms=outcome.at_ns // MILLISECOND_NS
            )
        fields = asdict(_summary(transaction))
        del fields["message_count"]
        messages = tuple(self._messages(transaction, request.limit, request.max_body_bytes))
        return OpenTransactionDescription(**fields, messages=messages)

    def _messages(
        self, transaction: OpenTransaction, limit: int, max_bytes: int
    ) -> Iterator[TransactionMessage]:
        half = self._transactions.half
        count = shown_bytes = 0
        for batch in transaction.all_batches():
            assert half is not None
            try:
                stored = half.get(batch.first_offset, transaction.id)
            except BadRecord as error:
                count += 1
                yield TransactionMessage(topic=batch.topic, lost=str(error))
                continue
            entries = dict(stored.entries)
            for number, frame in enumerate(frames_of(stored)):
                body = bytes(frame[FRAME_HEADER_BYTES:])
                shown_bytes += min(len(body), max_bytes)
                if count >= limit or shown_bytes > _MAX_ANSWER_BYTES:
                    return
                count += 1
                properties = Properties.unpack(entries.get(number) or b"")
                yield TransactionMessage(
                    topic=batch.topic,
                    body_bytes=len(body),
                    body_base64=b64encode(body[:max_bytes]).decode(),
                    **properties.published_json(),
                )


async def _wait_among(waiting: dict[asyncio.Future[None], None], max_s: float) -> None:
    """Wait to be woken with all that wait there, or for a time."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting[future] = None
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await future
    finally:
        waiting.pop(future, None)


def _wake(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


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


def _summary(transaction: OpenTransaction) -> TransactionSummary:
    sequence = transaction.sequence
    return TransactionSummary(
        id=transaction.id,
        group=transaction.group,
        state=transaction.state,
        begun_at_ms=transaction.begun_at_ns // MILLISECOND_NS,
        message_count=transaction.message_count,
        size_bytes=transaction.size_bytes,
        topics=transaction.topics,
        branches={name: branch.message_count for name, branch in transaction.branches.items()},
        check_count=transaction.checks,
        series=None if sequence is None else sequence.name,
        series_number=None if sequence is None else sequence.number,
    )


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (TransitionRefused, UnknownTransaction, BadTransaction) as error:
        raise refused(error) from error
