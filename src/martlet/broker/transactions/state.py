"""The transaction: messages that are seen together or not at all, and what may become of them.

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

An open transaction takes messages; a prepared one has all that it will have, on the disk.  One that
was not heard of for a while is silent, or in doubt, and its producers are asked what has become of
it.  Where nobody can tell, it is set aside for a person, who may still decide it, as its producer
may.  One that says so when it begins is rolled back instead while it is open: who has begun it does
it all again.  Nothing but COMMIT makes a message visible, and nothing takes that back.

`TABLE` says all of this, and nothing else decides it: what it does not list is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from martlet.broker.errors import BrokerError, NotFound
from martlet.broker.journal.entries import HalfBatch, HalfBatchEntry, TransactionRecord
from martlet.broker.transactions.commit_sequence import MAX_NAME_LENGTH, MAX_NUMBER, CommitSequence
from martlet.plural import counted

MAX_ID_LENGTH = 255
MAX_GROUP_LENGTH = 255
MAX_BRANCH_LENGTH = 64
_SECOND_NS = 10**9
LEFT_AFTER_NS = 60 * _SECOND_NS
"""How long a try at a number of a series is silent before the next one takes it for dead."""


class TransactionState(StrEnum):
    """Where a transaction is."""

    OPEN = "open"
    SILENT = "silent"
    PREPARED = "prepared"
    IN_DOUBT = "in-doubt"
    SET_ASIDE = "set-aside"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled-back"


class TransactionEvent(StrEnum):
    """What happens to one."""

    BEGIN = "begun again"
    ADD = "added to"
    PREPARE = "prepared"
    CHECK = "checked"
    GIVE_UP = "set aside"
    COMMIT = "committed"
    ROLLBACK = "rolled back"


TABLE: Mapping[TransactionState, Mapping[TransactionEvent, TransactionState]] = {
    TransactionState.OPEN: {
        TransactionEvent.BEGIN: TransactionState.OPEN,
        TransactionEvent.ADD: TransactionState.OPEN,
        TransactionEvent.PREPARE: TransactionState.PREPARED,
        TransactionEvent.CHECK: TransactionState.SILENT,
        TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
    TransactionState.SILENT: {
        TransactionEvent.BEGIN: TransactionState.OPEN,
        TransactionEvent.ADD: TransactionState.OPEN,
        TransactionEvent.PREPARE: TransactionState.PREPARED,
        TransactionEvent.CHECK: TransactionState.SILENT,
        TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
    TransactionState.PREPARED: {
        TransactionEvent.BEGIN: TransactionState.PREPARED,
        TransactionEvent.PREPARE: TransactionState.PREPARED,
        TransactionEvent.CHECK: TransactionState.IN_DOUBT,
        TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
    TransactionState.IN_DOUBT: {
        TransactionEvent.BEGIN: TransactionState.PREPARED,
        TransactionEvent.PREPARE: TransactionState.PREPARED,
        TransactionEvent.CHECK: TransactionState.IN_DOUBT,
        TransactionEvent.GIVE_UP: TransactionState.SET_ASIDE,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
    TransactionState.SET_ASIDE: {
        TransactionEvent.BEGIN: TransactionState.SET_ASIDE,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
    TransactionState.COMMITTED: {
        TransactionEvent.BEGIN: TransactionState.COMMITTED,
        TransactionEvent.COMMIT: TransactionState.COMMITTED,
    },
    TransactionState.ROLLED_BACK: {
        # Nothing of it was seen, so it may be tried anew under its name.
        TransactionEvent.BEGIN: TransactionState.OPEN,
        TransactionEvent.ROLLBACK: TransactionState.ROLLED_BACK,
    },
}


class TransitionRefused(BrokerError):
    """A transaction is not in a state for that, or lacks messages; the text says which, and why.

    Attributes:
        state: in which it is.
        is_incomplete: whether messages of it were lost, or were never added.
    """

    def __init__(self, text: str, state: TransactionState, *, is_incomplete: bool = False) -> None:
        super().__init__(text)
        self.state = state
        self.is_incomplete = is_incomplete


class UnknownTransaction(NotFound):
    """No transaction of that id is known: it never began, or ended too long ago."""


class BadTransaction(BrokerError):
    """No transaction may be like that; the text names the limit."""


def after(id: str, state: TransactionState, event: TransactionEvent) -> TransactionState:
    """The state behind an event. Raises TransitionRefused."""
    found = TABLE[state].get(event)
    if found is None:
        raise TransitionRefused(f"transaction {id!r} is {state}, and cannot be {event}", state)
    return found


@dataclass(slots=True)
class Branch:
    """What one process has added to a transaction.

    Its batches are numbered from 0, so that one that is sent again is known, and one that is
    missing too.

    Attributes:
        batches: by their numbers.
        has_gaps: whether some are known to be lost, and were not added again since.
    """

    batches: list[HalfBatch] = field(default_factory=list)
    has_gaps: bool = False

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return sum(batch.message_count for batch in self.batches)


@dataclass(slots=True)
class OpenTransaction:
    """One that has not ended.

    Attributes:
        id: chosen by its producer.
        group: whose producers know what becomes of it; empty for none.
        begun_at_ns: when it began.
        check_after_ns: how long it may be silent before they are asked.
        state: by `TABLE`.
        branches: what was added, by the name of who did.
        size_bytes: of all batches.
        batch_count: how many there are; each time of delayed messages counts as one.
        checks: how often its producers were asked since it was last heard of.
        due_ns: when to look at it again.
        timer_ns: when that will be done, which may be earlier; 0 for never.
        chosen: the branches that it was prepared with, and how many messages each has.
        place: in a series; None for one that is in none.
        is_disposable: whether it is rolled back when it was not heard of, and not set aside.
    """

    id: str
    group: str
    begun_at_ns: int
    check_after_ns: int
    state: TransactionState = TransactionState.OPEN
    branches: dict[str, Branch] = field(default_factory=dict)
    size_bytes: int = 0
    batch_count: int = 0
    checks: int = 0
    due_ns: int = 0
    timer_ns: int = 0
    chosen: Mapping[str, int] | None = None
    place: CommitSequence | None = None
    is_disposable: bool = False

    @classmethod
    def begun(cls, id: str, entry: TransactionRecord | HalfBatchEntry) -> OpenTransaction:
        """A transaction as an entry says that it began."""
        return cls(
            id,
            entry.group,
            entry.begun_at_ns,
            entry.check_after_ns,
            place=None if entry.series is None else CommitSequence(*entry.series),
            is_disposable=entry.disposable,
        )

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return sum(branch.message_count for branch in self.branches.values())

    @property
    def may_be_abandoned(self) -> bool:
        """Whether it is rolled back when it was not heard of for too long."""
        return self.is_disposable and self.state in (TransactionState.OPEN, TransactionState.SILENT)

    def is_up_to(self, place: CommitSequence) -> bool:
        """Whether it is of the series, and of no later number."""
        own = self.place
        return own is not None and own.name == place.name and own.number <= place.number

    def was_left(self, place: CommitSequence, now_ns: int) -> bool:
        """Whether a try at a place in a series need not fear to disturb it: it is of an earlier
        one, and was silent for long enough that its producer, which does all again, has ended.
        """
        silent_ns = now_ns - (self.due_ns - self.check_after_ns)
        return self.may_be_abandoned and self.is_up_to(place) and silent_ns >= LEFT_AFTER_NS

    @property
    def topics(self) -> dict[str, int]:
        """How many messages it has for each topic."""
        counts: dict[str, int] = {}
        for batch in self.all_batches():
            counts[batch.topic] = counts.get(batch.topic, 0) + batch.message_count
        return counts

    def all_batches(self) -> list[HalfBatch]:
        """Its batches in the order in which they were added."""
        return sorted(batch for branch in self.branches.values() for batch in branch.batches)

    def batches(self, branches: Mapping[str, int] | None = None) -> list[HalfBatch]:
        """Those that belong to it: all, or those of some branches.

        Raises:
            TransitionRefused: the branches do not have as many messages as is said.
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
        """A batch was stored for it."""
        of = self.branches.setdefault(branch, Branch())
        of.batches.append(batch)
        of.has_gaps = False
        self.size_bytes += batch.size_bytes
        self.batch_count += batch.weight

    def lose(self, branch: str, number: int | None = None) -> None:
        """Batches of a branch are lost, and those behind the first of them count no more.

        Args:
            branch: whose.
            number: of the first one; None for one behind all that are there.
        """
        of = self.branches.setdefault(branch, Branch())
        of.has_gaps = True
        if number is not None:
            gone = of.batches[number:]
            del of.batches[number:]
            self.size_bytes -= sum(batch.size_bytes for batch in gone)
            self.batch_count -= sum(batch.weight for batch in gone)

    def describe(self) -> TransactionRecord:
        """The transaction as the journal writes it."""
        return TransactionRecord(
            id=self.id,
            group=self.group,
            begun_at_ns=self.begun_at_ns,
            check_after_ns=self.check_after_ns,
            series=self.place,
            disposable=self.is_disposable,
            state=self.state,
            checks=self.checks,
            gaps=tuple(name for name, branch in self.branches.items() if branch.has_gaps),
            chosen=self.chosen,
            branches={name: tuple(branch.batches) for name, branch in self.branches.items()},
        )

    @classmethod
    def read(cls, record: TransactionRecord) -> OpenTransaction:
        """A transaction as the journal has it."""
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
    """What an operator sets for transactions. Times are in nanoseconds.

    Attributes:
        check_after_ns: how long one may be silent before its producers are asked.
        check_every_ns: how long to wait between asking and asking again.
        max_checks: how often they are asked before it is set aside.
        aside_topic: where its messages can be seen then.
        max_open: how many there may be that have not ended.
        max_bytes: how large one may become.
        max_batches: how often may be added to one.
        max_outcomes: how many outcomes are remembered.
        max_series: how many series are.
        remembered_ns: how long; as long, one waits whose producers cannot be asked.
    """

    check_after_ns: int = 6 * _SECOND_NS
    check_every_ns: int = 30 * _SECOND_NS
    max_checks: int = 15
    aside_topic: str = "transactions-set-aside"
    max_open: int = 10_000
    max_bytes: int = 256 << 20
    max_batches: int = 10_000
    max_outcomes: int = 100_000
    max_series: int = 10_000
    remembered_ns: int = 72 * 3600 * _SECOND_NS

    def check_size(self, transaction: OpenTransaction, more_bytes: int, more_batches: int) -> None:
        """See that a transaction may become so much larger. Raises BadTransaction."""
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
    """See that a transaction may begin like that. Raises BadTransaction."""
    id, group, place = transaction.id, transaction.group, transaction.place
    if not 0 < len(id) <= MAX_ID_LENGTH or not id.isprintable():
        raise BadTransaction(
            f"the transaction id {id[:80]!r}: it must be 1 to {MAX_ID_LENGTH} printable characters"
        )
    if len(group) > MAX_GROUP_LENGTH or not group.isprintable():
        raise BadTransaction(
            f"the group {group[:80]!r}: it must be up to {MAX_GROUP_LENGTH} printable characters"
        )
    if place is not None:
        check_place(place)


def check_place(place: CommitSequence) -> None:
    """See that a transaction may have a place. Raises BadTransaction."""
    if not 0 < len(place.name) <= MAX_NAME_LENGTH or not place.name.isprintable():
        raise BadTransaction(
            f"the series {place.name[:80]!r}: its name must be 1 to {MAX_NAME_LENGTH} printable"
            " characters"
        )
    if not 0 <= place.number <= MAX_NUMBER:
        raise BadTransaction(f"number {place.number} of a series: it must be 0 to {MAX_NUMBER}")
