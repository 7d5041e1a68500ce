"""Replay of transactions: their state as of a record of the journal.

A power cut may have lost any record that was not durable, and kept later ones:

- Batches of half messages are numbered within their branch. If one is missing, the later ones are
  ignored: in sync mode none of them was answered OK, and the client adds them again; in async mode
  the commit fails and reports them as lost.
- A segment begins with all outcomes, and may survive without the earlier bundles of those commits.
  So the bundle of a commit that is not known to be durable must have been read; otherwise the
  transaction keeps its former state, and so does its series.
- A segment is removed only when a later one, or a checkpoint, that contains its state is durable.
  So a bundle in a missing segment is known to have been durable.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from martlet.broker.journal.entries import (
    AllTransactionsEntry,
    BegunEntry,
    CheckedEntry,
    CommittedEntry,
    CommittingEntry,
    HalfBatch,
    HalfBatchEntry,
    PreparedEntry,
    PublishedRange,
    RolledBackEntry,
    SetAsideEntry,
    TransactionEntry,
    TransactionRecord,
    UnknownTransactionEntry,
)
from martlet.broker.transactions.state import (
    EndedTransaction,
    LastCommit,
    OpenTransaction,
    TransactionState,
    digest_of,
    unpack_outcomes,
    unpack_series,
)

if TYPE_CHECKING:
    from martlet.broker.transactions.half_messages import HalfTopic
    from martlet.broker.transactions.manager import Transactions
    from martlet.log.record import Header
    from martlet.log.storage import Segment


class TransactionJournal:
    """Transactions and outcomes after the entries and batches applied so far."""

    def __init__(self) -> None:
        self.durable_position: int | None = None
        """Records before it are known to be durable; None for all."""
        self.segments: Sequence[Segment] = ()
        """The existing segments, by base."""
        self._open: dict[str, OpenTransaction] = {}
        self._outcomes: dict[bytes, EndedTransaction] = {}
        """By the digest of the transaction's id, oldest first."""
        self._series: dict[bytes, LastCommit] = {}
        """By the digest of the name, the one whose last commit is oldest first."""
        self._committing: dict[str, OpenTransaction] = {}
        """Those of `_open` whose commits are under way."""
        self._seen: set[int] = set()
        """The end positions of the bundles that were read."""

    def apply(self, entry: TransactionEntry | UnknownTransactionEntry) -> None:
        """Apply an entry that has a record of its own."""
        match entry:
            case AllTransactionsEntry():
                packed = entry.packed
                end = len(packed) if entry.outcomes_bytes is None else entry.outcomes_bytes
                self._all_outcomes(entry.transactions, packed[:end])
                self._all_series(packed[end:])
            case BegunEntry(record):
                self._begun(OpenTransaction.read(record))
            case RolledBackEntry(id, at_ns):
                self._ended(id, EndedTransaction(TransactionState.ROLLED_BACK, at_ns, 0))
            case CheckedEntry(ids):
                for id in ids:
                    if id in self._open:
                        self._open[id].checks += 1
            case PreparedEntry(id, branches):
                if (transaction := self._open.get(id)) is not None:
                    transaction.state, transaction.chosen = TransactionState.PREPARED, branches
                    transaction.checks = 0
            case SetAsideEntry(id):
                self._set_aside(id)

    def apply_bundle(
        self, entry: TransactionEntry | UnknownTransactionEntry, header: Header
    ) -> None:
        """Apply the entry of a bundle."""
        position = header.next_position
        if self.durable_position is not None:
            self._seen.add(position)
        match entry:
            case CommittedEntry(id, at_ns, _, series):
                outcome = EndedTransaction(TransactionState.COMMITTED, at_ns, position)
                self._ended(id, outcome)
                if series is not None:
                    name, number = series
                    self._reached(digest_of(name), LastCommit(number, at_ns, position))
            case CommittingEntry(id):
                if (transaction := self._open.get(id)) is not None:
                    bundle = PublishedRange(entry.first_offset, entry.end_offset, position)
                    transaction.publish(entry.branches, bundle)
                    transaction.held_from.update(entry.held_from)
                    self._committing[id] = transaction
            case SetAsideEntry(id):
                self._set_aside(id)

    def held_from(self, queue: int) -> int | None:
        """Return the offset of a queue, by its number in the log, from which on readers wait for
        the end of a commit; None for none.
        """
        held = [t.held_from[queue] for t in self._committing.values() if queue in t.held_from]
        return min(held, default=None)

    def apply_half(self, entry: HalfBatchEntry, header: Header) -> None:
        """Apply a batch of half messages."""
        id = entry.transaction
        transaction = self._open.get(id)
        if transaction is not None and transaction.begun_at_ns != entry.begun_at_ns:
            # The entries of its rollback and of its new beginning are lost.
            transaction = None
        if transaction is None:
            outcome = self._outcomes.get(digest_of(id))
            if outcome is not None and outcome.state is TransactionState.COMMITTED:
                return
            # The entry of its beginning is lost; this batch repeats the fields.
            transaction = OpenTransaction.begun(id, entry)
            self._begun(transaction)
        branch, number = entry.branch, entry.number
        stored = transaction.branches.get(branch)
        expected = len(stored.batches) if stored is not None else 0
        if number > expected:
            transaction.lose(branch)
        elif number == expected:
            size_bytes = header.payload_length + header.properties_length
            first, message_count = header.first_offset, header.count - 1
            batch = HalfBatch(
                first, message_count, entry.topic, entry.queue, size_bytes, len(entry.times)
            )
            transaction.add(branch, batch)
            transaction.checks = 0
            if transaction.state is TransactionState.SILENT:
                transaction.state = TransactionState.OPEN

    def _set_aside(self, id: str) -> None:
        if id in self._open:
            self._open[id].state = TransactionState.SET_ASIDE

    def _begun(self, transaction: OpenTransaction) -> None:
        self._outcomes.pop(digest_of(transaction.id), None)
        self._open[transaction.id] = transaction

    def _ended(self, id: str, outcome: EndedTransaction) -> None:
        self._open.pop(id, None)
        self._committing.pop(id, None)
        digest = digest_of(id)
        self._outcomes.pop(digest, None)
        self._outcomes[digest] = outcome

    def _all_outcomes(self, records: Iterable[TransactionRecord], packed: bytes) -> None:
        before = {digest_of(id): transaction for id, transaction in self._open.items()}
        self._open = {record.id: OpenTransaction.read(record) for record in records}
        seen, self._outcomes = self._outcomes, {}
        for digest, outcome in unpack_outcomes(packed):
            is_rolled_back = outcome.state is TransactionState.ROLLED_BACK
            if is_rolled_back or self._is_there(outcome.position):
                self._outcomes[digest] = outcome
            elif digest in before:
                transaction = before[digest]
                self._open[transaction.id] = transaction
            elif digest in seen:
                self._outcomes[digest] = seen[digest]
        self._committing = {
            id: transaction
            for id, transaction in self._open.items()
            if transaction.state is TransactionState.COMMITTING
        }
        for transaction in self._committing.values():
            bundles = [
                bundle for bundle in transaction.published if self._is_there(bundle.position)
            ]
            transaction.published = bundles

    def _is_there(self, position: int) -> bool:
        """Whether the bundle that ends at a position exists."""
        durable = self.durable_position
        if durable is None or position <= durable or position in self._seen:
            return True
        before = bisect_left(self.segments, position, key=lambda segment: segment.base)
        segment = self.segments[before - 1] if before else None
        return segment is None or position > segment.base + segment.capacity

    def _reached(self, digest: bytes, last: LastCommit) -> None:
        self._series.pop(digest, None)
        self._series[digest] = last

    def _all_series(self, packed: bytes) -> None:
        """Replace the series, except by those of commits that do not exist."""
        seen, self._series = self._series, {}
        for digest, last in unpack_series(packed):
            if self._is_there(last.position):
                self._series[digest] = last
            elif digest in seen:
                self._series[digest] = seen[digest]

    def settle(self, transactions: Transactions, half: HalfTopic | None) -> None:
        """Pass the recovered state to a broker's transactions."""
        for digest, outcome in self._outcomes.items():
            transactions.outcomes.read(digest, outcome)
        for digest, last in self._series.items():
            transactions.series.read(digest, last)
        if half is not None:
            self._reserve_offsets(half)
        for transaction in self._open.values():
            self._check(transaction, half)
        transactions.restore(half, self._open.values())

    @staticmethod
    def _check(transaction: OpenTransaction, half: HalfTopic | None) -> None:
        """Determine which messages of a transaction are stored."""
        for name, branch in list(transaction.branches.items()):
            for number, batch in enumerate(branch.batches):
                if half is None or not half.holds(batch.first_offset):
                    transaction.lose(name, number)
                    break

    def _reserve_offsets(self, half: HalfTopic) -> None:
        """Prevent later batches from getting the offsets of lost ones."""
        ends = [
            batch.first_offset + batch.message_count + 1
            for transaction in self._open.values()
            for batch in transaction.all_batches()
        ]
        half.queue.end_offset = max(half.queue.end_offset, *ends, 0)
