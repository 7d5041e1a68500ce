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

An open transaction accepts messages; a prepared one has all its messages on the disk. An inactive
one is silent, or in doubt, and its producers are asked for the outcome. Without an answer, it is
set aside for an operator, who may still decide it, and so may its producer. An open transaction
that was begun as disposable is rolled back instead: its producer repeats it from the start. Only
COMMIT makes a message visible, and nothing undoes it.

`TABLE` alone defines the transitions: it refuses what it does not list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from martlet.broker.errors import BrokerError, NotFound
from martlet.broker.journal.entries import HalfBatch, HalfBatchEntry, TransactionRecord
from martlet.text import counted

MAX_ID_LENGTH = 255
MAX_GROUP_LENGTH = 255
MAX_BRANCH_LENGTH = 64
MAX_NAME_LENGTH = 255
"""Of a series."""
MAX_NUMBER = (1 << 63) - 1
_SECOND_NS = 10**9
LEFT_AFTER_NS = 60 * _SECOND_NS
"""The inactivity after which a try of a series' number no longer blocks the next one."""


class TransactionState(StrEnum):
    """The state of a transaction."""

    OPEN = "open"
    SILENT = "silent"
    PREPARED = "prepared"
    IN_DOUBT = "in-doubt"
    SET_ASIDE = "set-aside"
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
            branches={name: tuple(branch.batches) for name, branch in self.branches.items()},
        )

    @classmethod
    def read(cls, record: TransactionRecord) -> OpenTransaction:
        """Restore a transaction from the journal."""
        transaction = cls.begun(record.id, record)
        transaction.state = TransactionState(record.state)
        transaction.checks = record.checks
        transaction.chosen = record.chosen
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
    max_bytes: int = 256 << 20
    """The maximum size of one."""
    max_batches: int = 10_000
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
        if size_bytes > self.max_bytes:
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
