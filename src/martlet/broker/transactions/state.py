"""The transaction: messages that become visible together or not at all, and its states.

::

                add, begin                     prepare
              +-----------+              +---------------------+
              v           |              |                     v
    begin -> OPEN --------+--------------+                 PREPARED
              | ^ add                                       |   ^ prepare
        check v |                                     check v   |
             SILENT ------------------ prepare --------> (PREPARED)
              |                                          IN DOUBT
              +---- give up ---> SET ASIDE <--- give up ----+

    all of these -- commit --> COMMITTED, and -- rollback --> ROLLED BACK
    all of these -- commit, large --> COMMITTING --> COMMITTED

An open transaction accepts messages; a prepared one has all its messages on the disk. An inactive
one is silent, or in doubt, and its producers are asked for the outcome. Without an answer, it is
set aside for an operator, who may still decide it, and so may its producer. An open transaction
that was begun as disposable is rolled back instead: its producer repeats it from the start. Only
COMMIT makes a message visible, and nothing undoes it. A large transaction is committing for as long
as its messages are being published; readers see none of them before the last one.

`TABLE` alone defines the transitions: it refuses what it does not list.

A client that lost its connection during a commit repeats it, and a restarted job begins its batch
again under the same id: both get the outcome. So an outcome is remembered for a time, and up to a
number of the newest ones.

A commit sequence is a series of numbered transactions, of which each number is committed once. A
job that works in batches gives its transactions the name of the job and the number of the batch.
After a kill it does not know whether its last batch was committed, and repeats it with another
transaction id and other contents: the number identifies it. So a series is one number, the last
that was committed; a number that is not above it is never committed again. One series more than
the maximum replaces the longest inactive one, if that is old enough; otherwise the new one is
refused, since forgetting an active series would let its next repetition commit again.

Each segment of the log begins with all outcomes and series, so they are small, for ids and names of
any length::

    digest of the id 16 | ended at i64 ns | position u64 | state u8              an outcome
    digest of the name 16 | number i64 | committed at i64 ns | position u64      a series
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple

from martlet.broker.errors import BrokerError, LimitReached, NotFound
from martlet.broker.journal.entries import (
    HalfBatch,
    HalfBatchEntry,
    PublishedRange,
    TransactionRecord,
)
from martlet.text import counted

MAX_ID_LENGTH = 255
MAX_GROUP_LENGTH = 255
MAX_BRANCH_LENGTH = 64
MAX_NAME_LENGTH = 255
"""Of a series."""
MAX_NUMBER = (1 << 63) - 1
_SECOND_NS = 10**9
_FIRST = attrgetter("first_offset")
LEFT_AFTER_NS = 60 * _SECOND_NS
"""The inactivity after which a try of a series' number no longer blocks the next one."""


class TransactionState(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    SILENT = "silent"
    PREPARED = "prepared"
    IN_DOUBT = "in-doubt"
    SET_ASIDE = "set-aside"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


class TransactionEvent(StrEnum):
    """An event of a transaction."""

    BEGIN = "begun again"
    ADD = "added to"
    PREPARE = "prepared"
    CHECK = "checked"
    GIVE_UP = "set aside"
    COMMIT = "committed"
    ROLLBACK = "rolled back"


_ENDS = {
    TransactionEvent.COMMIT: TransactionState.COMMITTED,
    TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
}
_TAKES_MESSAGES = {
    TransactionEvent.BEGIN: TransactionState.OPEN,
    TransactionEvent.ADD: TransactionState.OPEN,
    TransactionEvent.PREPARE: TransactionState.PREPARED,
    TransactionEvent.CHECK: TransactionState.SILENT,
    TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
    **_ENDS,
}
_HAS_ALL_MESSAGES = {
    TransactionEvent.BEGIN: TransactionState.PREPARED,
    TransactionEvent.PREPARE: TransactionState.PREPARED,
    TransactionEvent.CHECK: TransactionState.IN_DOUBT,
    TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
    **_ENDS,
}
TABLE: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    TransactionState.OPEN: _TAKES_MESSAGES,
    TransactionState.SILENT: _TAKES_MESSAGES,
    TransactionState.PREPARED: _HAS_ALL_MESSAGES,
    TransactionState.IN_DOUBT: _HAS_ALL_MESSAGES,
    TransactionState.SET_ASIDE: {TransactionEvent.BEGIN: TransactionState.SET_ASIDE, **_ENDS},
    TransactionState.COMMITTING: {
        TransactionEvent.BEGIN: TransactionState.COMMITTING,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
    },
    TransactionState.COMMITTED: {
        TransactionEvent.BEGIN: TransactionState.COMMITTED,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
    },
    TransactionState.ROLLED_BACK: {
        # Nothing of it was visible, so its id may be used again.
        TransactionEvent.BEGIN: TransactionState.OPEN,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
}


UNWATCHED = frozenset({TransactionState.SET_ASIDE, TransactionState.COMMITTING})
"""The states in which no producer is asked for the outcome."""


class TransitionRefused(BrokerError):
    """A transaction's state does not allow the event, or it lacks messages; the text says which."""

    def __init__(self, text: str, state: TransactionState, *, is_incomplete: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.is_incomplete = is_incomplete
        """Whether messages of it were lost, or never added."""


class UnknownTransaction(NotFound):
    """No transaction of that id is known: it never began, or ended too long ago."""


class BadTransaction(BrokerError):
    """The transaction is invalid; the text names the limit."""


class StillCommitting(BrokerError):
    """A commit takes longer, and goes on by itself: ask again for its outcome."""

    state = TransactionState.COMMITTING

    def __init__(self, text: str, *, needs_flush: bool = False, is_stopped: bool = False) -> None:
        super().__init__(text)
        self.needs_flush = needs_flush
        """Whether it has not begun, since its messages must survive a power cut first."""
        self.is_stopped = is_stopped
        """Whether its last step was refused, as the text says; it is tried again."""


def after(id: str, state: TransactionState, event: TransactionEvent) -> TransactionState:
    """Return the state after an event. Raises TransitionRefused."""
    next_state = TABLE[state].get(event)
    if next_state is None:
        raise TransitionRefused(f"transaction {id!r} is {state}, and cannot be {event}", state)
    return next_state


class CommitSequence(NamedTuple):
    """A transaction's number in a series, above all committed before."""

    name: str
    number: int


@dataclass(slots=True)
class Branch:
    """The batches that one process has added to a transaction."""

    batches: list[HalfBatch] = field(default_factory=list)
    """By number, from 0, so that repeated and missing ones are recognised."""
    has_gaps: bool = False
    """Whether some are lost, and were not added again since."""

    @property
    def message_count(self) -> int:
        """The number of its messages."""
        return sum(batch.message_count for batch in self.batches)


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction; for its first fields see `TransactionRecord`, which describes it."""

    id: str
    group: str
    begun_at_ns: int
    check_after_ns: int
    state: TransactionState = TransactionState.OPEN
    branches: dict[str, Branch] = field(default_factory=dict)
    """The added batches, by the name of the adding process."""
    size_bytes: int = 0
    batch_count: int = 0
    """The number of batches; each delivery time counts as one."""
    checks: int = 0
    due_ns: int = 0
    """When to examine it again."""
    timer_ns: int = 0
    """The time of the scheduled alarm, which may be earlier; 0 for none."""
    chosen: Mapping[str, int] | None = None
    published: list[PublishedRange] = field(default_factory=list)
    held_from: dict[int, int] = field(default_factory=dict)
    position: int = 0
    """The log's position behind the last messages that were added."""
    sequence: CommitSequence | None = None
    is_disposable: bool = False

    @classmethod
    def begun(cls, id: str, entry: TransactionRecord | HalfBatchEntry) -> OpenTransaction:
        """Make a transaction from the entry of its beginning."""
        return cls(
            id,
            entry.group,
            entry.begun_at_ns,
            entry.check_after_ns,
            sequence=None if entry.series is None else CommitSequence(*entry.series),
            is_disposable=entry.disposable,
        )

    @property
    def message_count(self) -> int:
        """The number of its messages."""
        return sum(branch.message_count for branch in self.branches.values())

    @property
    def may_be_abandoned(self) -> bool:
        """Whether it is rolled back after too long inactivity."""
        return self.is_disposable and self.state in (TransactionState.OPEN, TransactionState.SILENT)

    def is_up_to(self, sequence: CommitSequence) -> bool:
        """Whether it is in the series, with no later number."""
        own = self.sequence
        return own is not None and own.name == sequence.name and own.number <= sequence.number

    def was_left(self, sequence: CommitSequence, now_ns: int) -> bool:
        """Whether a try at a number of a series may ignore it: it has no later number, and its
        producer, which repeats everything, has ended by its inactivity.
        """
        silent_ns = now_ns - (self.due_ns - self.check_after_ns)
        return self.may_be_abandoned and self.is_up_to(sequence) and silent_ns >= LEFT_AFTER_NS

    @property
    def topics(self) -> dict[str, int]:
        """The number of its messages for each topic."""
        counts: dict[str, int] = {}
        for batch in self.all_batches():
            counts[batch.topic] = counts.get(batch.topic, 0) + batch.message_count
        return counts

    def all_batches(self) -> list[HalfBatch]:
        """Its batches in the order in which they were added."""
        return sorted(batch for branch in self.branches.values() for batch in branch.batches)

    def batches(self, branches: Mapping[str, int] | None = None) -> list[HalfBatch]:
        """Return the batches that belong to it: all, or those of some branches. Raises
        TransitionRefused if a branch has another message count.
        """
        if branches is None:
            if any(branch.has_gaps for branch in self.branches.values()):
                raise TransitionRefused(
                    f"messages of transaction {self.id!r} were lost: roll it back, or commit it"
                    " with the counts of the messages that it should have",
                    self.state,
                    is_incomplete=True,
                )
            return self.all_batches()
        chosen = [self._complete_branch(name, count) for name, count in branches.items()]
        return sorted(batch for branch in chosen for batch in branch.batches)

    def _complete_branch(self, name: str, message_count: int) -> Branch:
        branch = self.branches.get(name) or Branch()
        if branch.message_count != message_count:
            raise TransitionRefused(
                f"branch {name!r} of transaction {self.id!r} has"
                f" {counted(branch.message_count, 'message')}, and the commit says"
                f" {message_count}: roll it back",
                self.state,
                is_incomplete=True,
            )
        return branch

    def add(self, branch: str, batch: HalfBatch) -> None:
        """Add a batch that was stored."""
        of = self.branches.setdefault(branch, Branch())
        of.batches.append(batch)
        of.has_gaps = False
        self.size_bytes += batch.size_bytes
        self.batch_count += batch.weight

    def publish(self, branches: Mapping[str, int], bundle: PublishedRange) -> None:
        """Note that a bundle of its commit, of these branches, was stored."""
        self.state = TransactionState.COMMITTING
        self.chosen = branches
        self.published.append(bundle)

    def unpublished(self) -> list[HalfBatch]:
        """Return the batches of a commit under way that are still to be published, in order."""
        assert self.chosen is not None
        branches = [self.branches[name] for name in self.chosen if name in self.branches]
        batches = sorted(batch for branch in branches for batch in branch.batches)
        done = sorted(self.published)
        at = [bisect_right(done, batch.first_offset, key=_FIRST) - 1 for batch in batches]
        return [
            batch
            for batch, number in zip(batches, at, strict=True)
            if number < 0 or batch.first_offset >= done[number].end_offset
        ]

    def lose(self, branch: str, number: int | None = None) -> None:
        """Drop the lost batches of a branch from the first lost one on, by its number; None stands
        for one behind all that are stored.
        """
        of = self.branches.setdefault(branch, Branch())
        of.has_gaps = True
        if number is not None:
            gone = of.batches[number:]
            del of.batches[number:]
            self.size_bytes -= sum(batch.size_bytes for batch in gone)
            self.batch_count -= sum(batch.weight for batch in gone)

    def describe(self) -> TransactionRecord:
        """Describe the transaction for the journal."""
        return TransactionRecord(
            id=self.id,
            group=self.group,
            begun_at_ns=self.begun_at_ns,
            check_after_ns=self.check_after_ns,
            series=self.sequence,
            disposable=self.is_disposable,
            state=self.state,
            checks=self.checks,
            gaps=tuple(name for name, branch in self.branches.items() if branch.has_gaps),
            chosen=self.chosen,
            published=tuple(self.published),
            held_from=tuple(self.held_from.items()),
            branches={name: tuple(branch.batches) for name, branch in self.branches.items()},
        )

    @classmethod
    def read(cls, record: TransactionRecord) -> OpenTransaction:
        """Restore a transaction from the journal."""
        transaction = cls.begun(record.id, record)
        transaction.state = TransactionState(record.state)
        transaction.checks = record.checks
        transaction.chosen = record.chosen
        transaction.published = list(record.published)
        transaction.held_from = dict(record.held_from)
        for name, batches in record.branches.items():
            for batch in batches:
                transaction.add(name, batch)
        for name in record.gaps:
            transaction.lose(name)
        return transaction


@dataclass(frozen=True, kw_only=True)
class TransactionLimits:
    """The operator's limits of transactions."""

    check_after_ns: int = 6 * _SECOND_NS
    """The inactivity before a check-back."""
    check_every_ns: int = 30 * _SECOND_NS
    max_checks: int = 15
    """The number of check-backs before it is set aside."""
    aside_topic: str = "transactions-set-aside"
    """The topic that then shows its messages."""
    max_open: int = 10_000
    max_bytes: int = 0
    """The maximum size of one; 0 for no limit but the disk's."""
    bundle_bytes: int = 16 << 20
    """The maximum size of one that is committed in one step, and of each step of a larger one."""
    max_batches: int = 100_000
    """The maximum number of batches of one."""
    max_outcomes: int = 100_000
    max_series: int = 10_000
    remembered_ns: int = 72 * 3600 * _SECOND_NS
    """For how long outcomes and series are remembered, and a transaction waits whose producers
    cannot be asked.
    """

    def check_size(self, transaction: OpenTransaction, more_bytes: int, more_batches: int) -> None:
        """Check that a transaction may grow by some bytes and batches. Raises BadTransaction."""
        size_bytes = transaction.size_bytes + more_bytes
        if 0 < self.max_bytes < size_bytes:
            raise BadTransaction(
                f"transaction {transaction.id!r} would have {size_bytes} bytes, and"
                f" --max-transaction-bytes is {self.max_bytes}: make it smaller, or raise that"
            )
        if transaction.batch_count + more_batches > self.max_batches:
            raise BadTransaction(
                f"{transaction.batch_count} times messages were added to transaction"
                f" {transaction.id!r}, each time of delayed ones counted, and"
                f" --max-transaction-sends is {self.max_batches}: add several messages at a time,"
                " delay them in fewer steps, or raise that"
            )


def check_begun(transaction: OpenTransaction) -> None:
    """Check that a transaction may begin. Raises BadTransaction."""
    id, group, sequence = transaction.id, transaction.group, transaction.sequence
    if not 0 < len(id) <= MAX_ID_LENGTH or not id.isprintable():
        raise BadTransaction(
            f"the transaction id {id[:80]!r}: it must be 1 to {MAX_ID_LENGTH} printable characters"
        )
    if len(group) > MAX_GROUP_LENGTH or not group.isprintable():
        raise BadTransaction(
            f"the group {group[:80]!r}: it must be up to {MAX_GROUP_LENGTH} printable characters"
        )
    if sequence is not None:
        check_sequence(sequence)


def check_sequence(sequence: CommitSequence) -> None:
    """Check a transaction's number in a series. Raises BadTransaction."""
    if not 0 < len(sequence.name) <= MAX_NAME_LENGTH or not sequence.name.isprintable():
        raise BadTransaction(
            f"the series {sequence.name[:80]!r}: its name must be 1 to {MAX_NAME_LENGTH} printable"
            " characters"
        )
    if not 0 <= sequence.number <= MAX_NUMBER:
        raise BadTransaction(f"number {sequence.number} of a series: it must be 0 to {MAX_NUMBER}")


_OUTCOME = struct.Struct("<16sqQB")
_SERIES = struct.Struct("<16sqqQ")
_STATES = {1: TransactionState.COMMITTED, 2: TransactionState.ROLLED_BACK}
_NUMBERS = {state: number for number, state in _STATES.items()}
_OLD_AT_ONCE = 4


class EndedTransaction(NamedTuple):
    """The outcome of a transaction, committed or rolled back."""

    state: TransactionState
    at_ns: int
    position: int
    """The log position behind its record."""
    is_repeated: bool = False
    """Whether its number was committed before, by another transaction."""


def digest_of(id: str) -> bytes:
    """Return the digest that identifies a transaction, or a series."""
    return blake2b(id.encode(), digest_size=16).digest()


class EndedTransactions:
    """The outcomes of one broker, remembered up to a number, and up to a time."""

    def __init__(self, max_count: int, max_ns: int) -> None:
        self._max_count = max_count
        self._max_ns = max_ns
        self._rows: dict[bytes, bytes] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, id: str, outcome: EndedTransaction) -> None:
        """Add the outcome of a transaction."""
        self.read(digest_of(id), outcome)
        for _ in range(_OLD_AT_ONCE):
            if not self._is_over(outcome.at_ns):
                break
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, outcome: EndedTransaction) -> None:
        """Add an outcome from the journal."""
        number = _NUMBERS[outcome.state]
        self._rows.pop(digest, None)
        self._rows[digest] = _OUTCOME.pack(digest, outcome.at_ns, outcome.position, number)

    def _is_over(self, now_ns: int) -> bool:
        """Whether the oldest one is to be forgotten."""
        if not self._rows:
            return False
        oldest = next(iter(self._rows.values()))
        return (
            len(self._rows) > self._max_count or now_ns - _OUTCOME.unpack(oldest)[1] > self._max_ns
        )

    def get(self, id: str) -> EndedTransaction | None:
        """Return the outcome of a transaction; None if it is unknown."""
        row = self._rows.get(digest_of(id))
        return None if row is None else _outcome(row)

    def forget(self, id: str) -> None:
        """Forget an outcome, since its transaction has begun anew."""
        self._rows.pop(digest_of(id), None)

    def pack(self) -> bytes:
        """Pack all outcomes for the journal."""
        return b"".join(self._rows.values())


def unpack_outcomes(data: bytes) -> Iterator[tuple[bytes, EndedTransaction]]:
    """Yield packed outcomes, each with the digest of its transaction's id."""
    for row in _OUTCOME.iter_unpack(data):
        yield row[0], _outcome(row)


def _outcome(row: bytes | tuple[bytes, int, int, int]) -> EndedTransaction:
    _, at_ns, position, number = _OUTCOME.unpack(row) if isinstance(row, bytes) else row
    return EndedTransaction(_STATES[number], at_ns, position)


class LastCommit(NamedTuple):
    """The last commit of a series."""

    number: int
    at_ns: int
    position: int
    """The log position behind its record."""


class CommitSequences:
    """The series of one broker, remembered up to a number, and for a time at least."""

    def __init__(self, max_count: int, kept_ns: int) -> None:
        self._max_count = max_count
        self._kept_ns = kept_ns
        self._rows: dict[bytes, LastCommit] = {}
        """By the digest of the name, the longest inactive one first."""

    def __len__(self) -> int:
        return len(self._rows)

    def last(self, name: str) -> LastCommit | None:
        """Return the last commit of a series; None if it is unknown."""
        return self._rows.get(digest_of(name))

    def committed(self, sequence: CommitSequence) -> LastCommit | None:
        """Return the commit of a number, or of one above it; None if there is none."""
        last = self.last(sequence.name)
        return last if last is not None and sequence.number <= last.number else None

    def check_room(self, name: str, now_ns: int) -> None:
        """Check that a series can be added. Raises LimitReached."""
        if len(self._rows) < self._max_count or digest_of(name) in self._rows:
            return
        oldest = next(iter(self._rows.values()))
        if now_ns - oldest.at_ns < self._kept_ns:
            raise LimitReached(
                f"series {name[:80]!r} would be one too many: {len(self._rows)} had a commit within"
                " --transaction-memory, and each must be remembered; raise --transaction-series"
            )

    def reached(self, sequence: CommitSequence, at_ns: int, position: int) -> None:
        """Record the commit of a number."""
        self.read(digest_of(sequence.name), LastCommit(sequence.number, at_ns, position))
        while len(self._rows) > self._max_count:
            del self._rows[next(iter(self._rows))]

    def read(self, digest: bytes, last: LastCommit) -> None:
        """Add a series from the journal."""
        self._rows.pop(digest, None)
        self._rows[digest] = last

    def pack(self) -> bytes:
        """Pack all series for the journal."""
        return b"".join(_SERIES.pack(digest, *last) for digest, last in self._rows.items())


def unpack_series(data: bytes) -> Iterator[tuple[bytes, LastCommit]]:
    """Yield packed series, each with the digest of its name."""
    for digest, *last in _SERIES.iter_unpack(data):
        yield digest, LastCommit(*last)
