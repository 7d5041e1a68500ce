"""The transactions of a broker: the open ones, and the outcomes of recently ended ones.

A commit is one record that contains the messages::

    BUNDLE record | CommittedEntry | batch of topic a, queue 0 | batch of topic a, queue 1 | ...

So it is atomic: a crash finds the transaction before or after it, and a start has nothing to
complete. A large transaction takes several (see `martlet.broker.transactions.large_commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from martlet.broker.errors import BrokerError, LimitReached, WritesRefused
from martlet.broker.journal.entries import (
    AllTransactionsEntry,
    BegunEntry,
    CheckedEntry,
    CommittedEntry,
    HalfBatch,
    HalfBatchEntry,
    PreparedEntry,
    RolledBackEntry,
    SetAsideEntry,
    TransactionEntry,
    encode,
)
from martlet.broker.transactions.check_back import CheckBack
from martlet.broker.transactions.half_messages import (
    HalfMessageStore,
    HalfTopic,
    TransactionContext,
)
from martlet.broker.transactions.large_commit import LargeCommit
from martlet.broker.transactions.state import (
    MAX_BRANCH_LENGTH,
    UNWATCHED,
    BadTransaction,
    CommitSequence,
    CommitSequences,
    EndedTransaction,
    EndedTransactions,
    OpenTransaction,
    StillCommitting,
    TransactionEvent,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
    UnknownTransaction,
    after,
    check_begun,
)
from martlet.log.batch import total_bytes
from martlet.log.record import RecordKind
from martlet.properties.block import packed_bytes
from martlet.text import counted

if TYPE_CHECKING:
    from martlet.log.checkpoint_file import JournalEntry
    from martlet.native.raw_bodies import Bodies


MAX_SHOWN_BYTES = 256 << 20
"""The maximum size of a transaction whose messages are copied when it is set aside."""
_MIN_LISTED = 1024
_SEGMENT_BYTES_EACH = 1024
"""One open transaction, one held batch of half messages and one remembered outcome are allowed for
this many bytes of a segment, since each segment's head lists all of them.
"""


class Transactions:
    """The transactions of a broker."""

    def __init__(self, context: TransactionContext, limits: TransactionLimits) -> None:
        self._context = context
        self.limits = limits
        self.open: dict[str, OpenTransaction] = {}
        """By id, oldest first."""
        max_listed = max(_MIN_LISTED, context.log.segment_bytes // _SEGMENT_BYTES_EACH)
        self._max_open = min(limits.max_open, max_listed)
        self._max_held = max_listed
        self.outcomes = EndedTransactions(
            min(limits.max_outcomes, max_listed), limits.remembered_ns
        )
        max_series = min(limits.max_series, max(_MIN_LISTED, max_listed // 4))
        self.series = CommitSequences(max_series, limits.remembered_ns)
        self.messages = HalfMessageStore(context)
        self.on_set_aside: Callable[[OpenTransaction, str], None] = lambda transaction, why: None
        """Called with a transaction that is set aside, and the reason."""
        self.on_abandoned: Callable[[OpenTransaction, str], None] = lambda transaction, why: None
        """Called with one that is rolled back for inactivity, and the reason."""
        self.committed_count = 0
        """Since the start, as the next one."""
        self.rolled_back_count = 0
        self.large_commit: LargeCommit | None = None
        """The one under way."""
        self._large_end = 0
        """The position behind the last one."""
        self.on_unflushed: Callable[[], None] = lambda: None
        """Called when a large commit goes on once the log is flushed."""
        self.on_large_committed: Callable[[], None] = lambda: None
        """Called when a large commit has ended, and when its messages are shown."""
        self.check_back = CheckBack(limits, context.clock, context.schedule, self._give_up)

    @property
    def half(self) -> HalfTopic | None:
        """The topic of half messages, once there were any."""
        return self.messages.topic

    # requests of clients

    def state(self, id: str) -> TransactionState:
        """Return the state of a transaction. Raises UnknownTransaction."""
        transaction = self.open.get(id)
        if transaction is not None:
            return transaction.state
        outcome = self.outcomes.get(id)
        if outcome is None:
            raise UnknownTransaction(
                f"there is no transaction {id!r}: it was not begun, or ended too long ago"
            )
        return outcome.state

    def committed(self, id: str) -> EndedTransaction | None:
        """Return the outcome of a committed transaction."""
        outcome = self.outcomes.get(id)
        is_committed = outcome is not None and outcome.state is TransactionState.COMMITTED
        return outcome if is_committed else None

    def find(self, id: str) -> OpenTransaction:
        """Return an open transaction. Raises UnknownTransaction and TransitionRefused."""
        transaction = self.open.get(id)
        if transaction is None:
            state = self.state(id)
            raise TransitionRefused(f"transaction {id!r} is {state}", state)
        return transaction

    def begin(
        self,
        id: str,
        group: str = "",
        check_after_ns: int | None = None,
        sequence: CommitSequence | None = None,
        is_disposable: bool = False,
        *,
        is_recorded: bool = True,
    ) -> TransactionState:
        """Begin a transaction. Returns the state, which is another for a known id or a committed
        number.

        Args:
            id, group, sequence, is_disposable: as of `OpenTransaction`.
            check_after_ns: the inactivity before a check-back; None for the operator's setting.
            is_recorded: whether to journal it now. Otherwise the caller adds messages at once,
                whose batch describes it, and calls `record` if that failed.

        Raises:
            BadTransaction: the id, the group or the series is too long, or empty.
            LimitReached: the maximum number of transactions is open.
            WritesRefused: it could not be journaled.
        """
        transaction = self.open.get(id)
        if transaction is not None:
            self._note_activity(transaction, after(id, transaction.state, TransactionEvent.BEGIN))
            return transaction.state
        outcome = self.outcomes.get(id)
        state = (
            TransactionState.OPEN
            if outcome is None
            else after(id, outcome.state, TransactionEvent.BEGIN)
        )
        if state is TransactionState.OPEN:
            if check_after_ns is None:
                check_after_ns = self.limits.check_after_ns
            now_ns = self._context.clock()
            transaction = OpenTransaction(
                id, group, now_ns, check_after_ns, sequence=sequence, is_disposable=is_disposable
            )
            check_begun(transaction)
            if sequence is not None:
                if self.series.committed(sequence) or self._is_committing(sequence):
                    return TransactionState.COMMITTED
                self.series.check_room(sequence.name, now_ns)
                self._clear_away([t for t in self.open.values() if t.was_left(sequence, now_ns)])
            self._check_room(id)
            if is_recorded:
                self._journal(BegunEntry(transaction.describe()))
            self.outcomes.forget(id)
            self.open[id] = transaction
            self.check_back.watch(transaction)
        return state

    def record(self, id: str) -> None:
        """Journal the beginning of a transaction to which nothing could be added, so that it can be
        rolled back. Raises WritesRefused; then it has not begun.
        """
        transaction = self.open[id]
        try:
            self._journal(BegunEntry(transaction.describe()))
        except WritesRefused:
            del self.open[id]
            self.check_back.ended(transaction)
            raise

    def _check_room(self, id: str) -> None:
        if len(self.open) >= self._max_open:
            max_count = f"--max-transactions is {self.limits.max_open}"
            if self._max_open < self.limits.max_open:
                max_count = (
                    "each segment of the log begins with a list of them: end some, or raise"
                    " --max-bytes-per-file"
                )
            raise LimitReached(
                f"transaction {id!r} would be one too many: there are {len(self.open)} that have"
                f" not ended, and {max_count}; see 'martlet transactions list'"
            )

    def add(
        self,
        id: str,
        branch: str,
        number: int,
        topic: str,
        bodies: Bodies,
        entries: Sequence[tuple[int, bytes]] = (),
        queue: int = -1,
        times: Sequence[tuple[int, int]] = (),
    ) -> tuple[HalfBatch, int]:
        """Store messages that are invisible until the transaction is committed.

        Args:
            branch: the name of the adding process.
            number: of the batch in its branch, from 0; a repeated one is not stored again.
            topic: their target topic.
            bodies: the messages, as of `Topic.stage`.
            entries: their properties, by number.
            queue: the target queue; -1 for any.
            times: the delivery times, in nanoseconds since 1970, and the message count of each, in
                order; empty for immediate delivery.

        Returns the batch, and the position of the log behind it.

        Raises:
            UnknownTransaction, TransitionRefused: it is not open, or earlier batches are missing.
            BadTransaction: it would become too large.
            WritesRefused: there is no space.
        """
        transaction = self.find(id)
        state = after(id, transaction.state, TransactionEvent.ADD)
        stored = _stored_batch(transaction, branch, number)
        if stored is not None:
            return stored, self._context.log.position
        properties_bytes = packed_bytes([entries])
        more_bytes = total_bytes(bodies) + properties_bytes
        self.limits.check_size(transaction, more_bytes, max(1, len(times)))
        half = self._half_with_room()
        entry = HalfBatchEntry(
            transaction=id,
            branch=branch,
            number=number,
            topic=topic,
            queue=queue,
            group=transaction.group,
            begun_at_ns=transaction.begun_at_ns,
            check_after_ns=transaction.check_after_ns,
            series=transaction.sequence,
            disposable=transaction.is_disposable,
            times=tuple(times),
        )
        first = half.queue.end_offset
        batch = self._context.staged(half)
        batch.add(encode(entry))
        if entries:
            batch.set_properties(1, entries)
        batch.add_bodies(bodies)
        size_bytes = batch.payload_length + properties_bytes
        receipt = self._context.commit_topic(half, 0)
        if receipt.error is not None:
            raise receipt.error
        added = HalfBatch(first, len(bodies), topic, queue, size_bytes, len(times))
        transaction.add(branch, added)
        assert first not in half.held and half.queue.end_offset == first + 1 + len(bodies)
        half.held.add(first)
        transaction.position = receipt.position
        self._note_activity(transaction, state)
        return added, receipt.position

    def _half_with_room(self) -> HalfTopic:
        """Return the topic of half messages. Raises LimitReached and WritesRefused."""
        half = self.messages.made()
        if len(half.held) >= self._max_held:
            raise LimitReached(
                f"open transactions hold what {len(half.held)} sends have added, and each segment"
                " of the log begins with a list of them: end some, add several messages at a time,"
                " or raise --max-bytes-per-file"
            )
        return half

    def prepare(self, id: str, branches: Mapping[str, int] | None = None) -> None:
        """Prepare a transaction: it has all its messages, of those branches with their message
        counts or of all, and only its outcome is missing. Raises as `commit`.
        """
        transaction = self.find(id)
        state = after(id, transaction.state, TransactionEvent.PREPARE)
        transaction.batches(branches)
        if branches is not None:
            # Without empty branches, which each segment's head would list.
            branches = {n: count for n, count in branches.items() if n in transaction.branches}
        if transaction.state is not TransactionState.PREPARED or branches != transaction.chosen:
            self._journal(PreparedEntry(id, branches))
        transaction.chosen = branches
        self._note_activity(transaction, state)

    def commit(
        self,
        id: str,
        branches: Mapping[str, int] | None = None,
        sequence: CommitSequence | None = None,
    ) -> EndedTransaction:
        """Commit: make the messages visible, all or those of some branches.

        If its number in its series was committed before, it is rolled back; otherwise leftover
        older transactions of the series are.

        Args:
            id: the transaction's; a committed one stays so.
            branches: the branches that belong to it, and the message count of each; others are left
                out. None for those it was prepared with, or else for all.
            sequence: its number in a series, for a transaction that may be forgotten.

        Raises:
            UnknownTransaction: it is no longer known.
            TransitionRefused: it was rolled back, or messages are missing.
            WritesRefused: there is no space.
            StillCommitting: it is large, or waits for a large one; call again.
        """
        transaction = self.open.get(id)
        if transaction is not None:
            sequence = transaction.sequence
        large = self.large_commit
        if large is not None and large.delays(id, sequence):
            raise self._still_committing(large)
        last = None if sequence is None else self.series.committed(sequence)
        if last is not None:
            if transaction is not None:
                self._clear_away([transaction])
            return EndedTransaction(
                TransactionState.COMMITTED, last.at_ns, last.position, is_repeated=True
            )
        if transaction is None:
            return self._ended(id, TransactionEvent.COMMIT)
        after(id, transaction.state, TransactionEvent.COMMIT)
        at_ns = self._context.clock()
        if sequence is not None:
            self.series.check_room(sequence.name, at_ns)
        batches = transaction.batches(transaction.chosen if branches is None else branches)
        for topic in dict.fromkeys(batch.topic for batch in batches):
            self._context.topic(topic)  # Messages that are not committed create none.
        if sum(batch.size_bytes for batch in batches) > self.limits.bundle_bytes:
            self._begin_large(transaction, batches, branches)
        position = self.messages.forward(
            transaction, batches, lambda topics: CommittedEntry(id, at_ns, topics, sequence)
        )
        return self._committed(transaction, at_ns, position)

    def _committed(
        self, transaction: OpenTransaction, at_ns: int, position: int
    ) -> EndedTransaction:
        """Note that a transaction's last messages were stored, up to a position."""
        self.committed_count += 1
        outcome = self._end(
            transaction, EndedTransaction(TransactionState.COMMITTED, at_ns, position)
        )
        sequence = transaction.sequence
        if sequence is not None:
            self.series.reached(sequence, at_ns, position)
            self._clear_away([t for t in self.open.values() if t.is_up_to(sequence)])
        return outcome

    # large commits

    def _begin_large(
        self,
        transaction: OpenTransaction,
        batches: Sequence[HalfBatch],
        branches: Mapping[str, int] | None,
    ) -> NoReturn:
        """Begin the commit of a large transaction, which goes on by itself. Raises StillCommitting,
        or as `commit`; then it has not begun.
        """
        if self.large_commit is not None:
            raise self._still_committing(self.large_commit)
        if self._context.visible_position < self._large_end:
            raise StillCommitting(
                f"transaction {transaction.id!r} is large, and waits until replicas have the end of"
                " the large commit before it"
            )
        if self._context.log.durable_position < transaction.position:
            raise StillCommitting(
                f"transaction {transaction.id!r} is large, and is committed once its messages are"
                " on the disk",
                needs_flush=True,
            )
        if branches is None:
            branches = transaction.chosen
        if branches is None:
            branches = {name: b.message_count for name, b in transaction.branches.items()}
        large = self._new_large(transaction)
        large.begin(batches, {name: count for name, count in branches.items() if count})
        self.large_commit = large
        self.check_back.ended(transaction)
        raise self._still_committing(large)

    def _new_large(self, transaction: OpenTransaction) -> LargeCommit:
        return LargeCommit(
            self._context,
            self.messages,
            transaction,
            self.limits.bundle_bytes,
            self._end_large,
            lambda: self.on_unflushed(),  # noqa: PLW0108 -- it is set later
        )

    def _end_large(self, transaction: OpenTransaction, batches: Sequence[HalfBatch]) -> None:
        """Publish the last messages of a large transaction, and end its commit. Raises BrokerError
        and WritesRefused.
        """
        id, at_ns = transaction.id, self._context.clock()
        position = self.messages.forward_held(
            transaction,
            batches,
            lambda _, topics: CommittedEntry(id, at_ns, topics, transaction.sequence),
        )
        self.messages.show(transaction)
        self.large_commit = None
        self._large_end = position
        self._committed(transaction, at_ns, position)
        self._resume_large()
        self.on_large_committed()

    def _resume_large(self) -> None:
        """Go on with a commit that was under way at the last stop."""
        for transaction in self.open.values():
            if transaction.state is TransactionState.COMMITTING:
                self.large_commit = self._new_large(transaction)
                self.large_commit.resume()
                return

    def _is_committing(self, sequence: CommitSequence) -> bool:
        """Whether a large commit of that number, or a later one, of a series is under way."""
        large = self.large_commit
        own = None if large is None else large.transaction.sequence
        return own is not None and own.name == sequence.name and own.number >= sequence.number

    def _still_committing(self, large: LargeCommit) -> StillCommitting:
        own = large.transaction
        trouble = f": {large.trouble}; it goes on when that has ended" if large.trouble else ""
        return StillCommitting(
            f"transaction {own.id!r} of {counted(own.message_count, 'message')} is being"
            f" committed{trouble}",
            is_stopped=bool(trouble),
        )

    def commit_at_once(
        self,
        id: str,
        topic: str,
        bodies: Bodies,
        entries: Sequence[tuple[int, bytes]] = (),
        queue: int = -1,
        times: Sequence[tuple[int, int]] = (),
    ) -> EndedTransaction:
        """Commit a transaction that has these messages and no others, which are stored once, in
        their topic. Arguments and errors are those of `begin`, `add` and `commit`.
        """
        if id in self.open:
            state = self.open[id].state
            raise TransitionRefused(f"transaction {id!r} was begun before, and is {state}", state)
        outcome = self.committed(id)
        if outcome is not None:
            return outcome
        at_ns = self._context.clock()
        transaction = OpenTransaction(id, "", at_ns, 0)
        check_begun(transaction)
        more_bytes = total_bytes(bodies) + packed_bytes([entries])
        self.limits.check_size(transaction, more_bytes, max(1, len(times)))
        position = self.messages.publish(
            topic, queue, bodies, entries, times, lambda topics: CommittedEntry(id, at_ns, topics)
        )
        self.committed_count += 1
        outcome = EndedTransaction(TransactionState.COMMITTED, at_ns, position)
        self.outcomes.add(id, outcome)
        return outcome

    def _clear_away(self, transactions: Iterable[OpenTransaction]) -> None:
        """Roll back leftover transactions of a series; one that cannot be now expires later."""
        with suppress(WritesRefused):
            for transaction in transactions:
                self.rollback(transaction.id)

    def rollback(self, id: str) -> EndedTransaction:
        """Roll back: the messages never become visible.

        Raises:
            UnknownTransaction: it is no longer known.
            TransitionRefused: it was committed.
            WritesRefused: it could not be journaled.
        """
        transaction = self.open.get(id)
        if transaction is None:
            return self._ended(id, TransactionEvent.ROLLBACK)
        after(id, transaction.state, TransactionEvent.ROLLBACK)
        at_ns = self._context.clock()
        self._journal(RolledBackEntry(id, at_ns))
        self.rolled_back_count += 1
        position = self._context.log.position
        return self._end(
            transaction, EndedTransaction(TransactionState.ROLLED_BACK, at_ns, position)
        )

    def _ended(self, id: str, event: TransactionEvent) -> EndedTransaction:
        after(id, self.state(id), event)
        outcome = self.outcomes.get(id)
        assert outcome is not None
        return outcome

    def _end(self, transaction: OpenTransaction, outcome: EndedTransaction) -> EndedTransaction:
        assert self.open.get(transaction.id) is transaction
        assert outcome.state in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK)
        del self.open[transaction.id]
        self.check_back.ended(transaction)
        self.messages.release(transaction)
        self.outcomes.add(transaction.id, outcome)
        return outcome

    # the journal

    def _journal(self, entry: TransactionEntry) -> None:
        self._context.journal(RecordKind.TRANSACTION, encode(entry))

    def snapshot(self) -> list[JournalEntry]:
        """Return all state for the journal."""
        if not self.open and not len(self.outcomes) and not len(self.series):
            return []
        outcomes = self.outcomes.pack()
        entry = AllTransactionsEntry(
            transactions=tuple(transaction.describe() for transaction in self.open.values()),
            outcomes_bytes=len(outcomes),
            packed=outcomes + self.series.pack(),
        )
        return [(RecordKind.TRANSACTION, 0, encode(entry))]

    def restore(self, half: HalfTopic | None, transactions: Iterable[OpenTransaction]) -> None:
        """Restore the open transactions after a start; their producers have time to reconnect."""
        self.messages.topic = half
        for transaction in transactions:
            self.open[transaction.id] = transaction
            self.check_back.watch(transaction)
            self.messages.hold(transaction)
            transaction.position = self._context.log.position
        self._resume_large()

    # check-back

    def _note_activity(self, transaction: OpenTransaction, state: TransactionState) -> None:
        transaction.state = state
        if state not in UNWATCHED:
            self.check_back.note_activity(transaction)

    def take_due(
        self,
        group: str,
        max_count: int = 100,
        suits: Callable[[OpenTransaction], bool] = lambda _: True,
    ) -> list[OpenTransaction]:
        """Return transactions that suit and that a producer of the group will be asked for."""
        taken = self.check_back.take(group, max_count, suits)
        if taken:
            with suppress(WritesRefused):  # Then a producer is asked once more.
                self._journal(CheckedEntry(tuple(transaction.id for transaction in taken)))
        return taken

    def _give_up(self, transaction: OpenTransaction, why: str) -> bool:
        """End the checks of a transaction. Returns False where nothing could be done."""
        if not transaction.may_be_abandoned:
            return self._set_aside(transaction, why)
        try:
            self.rollback(transaction.id)
        except WritesRefused:
            return False
        self.on_abandoned(transaction, why)
        return True

    def _set_aside(self, transaction: OpenTransaction, why: str) -> bool:
        """Set a transaction aside for an operator. Returns False where there is no space."""
        id = transaction.id
        state = after(id, transaction.state, TransactionEvent.GIVE_UP)
        batches, topic = transaction.all_batches(), self.limits.aside_topic
        if transaction.size_bytes > MAX_SHOWN_BYTES:
            why += f", and it is too large for topic {topic!r}: see 'martlet transactions show'"
            batches = []
        try:
            try:
                self.messages.forward(
                    transaction, batches, lambda topics: SetAsideEntry(id, topics), to=topic
                )
            except TransitionRefused:
                # Its messages are lost; journal its state all the same.
                self._journal(SetAsideEntry(id))
        except (BrokerError, WritesRefused):
            return False
        transaction.state = state
        self.on_set_aside(transaction, why)
        return True


def _stored_batch(transaction: OpenTransaction, branch: str, number: int) -> HalfBatch | None:
    """Return the batch of a number in a branch; None for the next number. Raises BadTransaction and
    TransitionRefused.
    """
    if not 0 < len(branch) <= MAX_BRANCH_LENGTH:
        raise BadTransaction(f"a branch's name has 1 to {MAX_BRANCH_LENGTH} characters")
    batches = transaction.branches[branch].batches if branch in transaction.branches else []
    if number > len(batches):
        raise TransitionRefused(
            f"branch {branch!r} of transaction {transaction.id!r} has {len(batches)} batches, and"
            f" batch {number} is added: those between were refused, or are lost; roll it back",
            transaction.state,
            is_incomplete=True,
        )
    return batches[number] if number < len(batches) else None
