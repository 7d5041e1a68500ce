"""What the journal has told of transactions, while a start reads it.

A power cut may have taken any record that was not durable, and left later ones:

- Batches of half messages are numbered within their branch.  Where one is missing those behind it
  do not count: in sync mode none of them was answered OK, and is added again; in async mode their
  client is told that they are lost.
- A segment begins with all outcomes, and may be there without what they tell of, which stood
  before it.  So of a commit that is not known to be durable the bundle itself must have been seen;
  else the transaction is as it was before, and so is its series.
- A segment that was taken away was so only when a later one, or a checkpoint, that tells all of it
  was durable.  So a bundle that stood where there is no segment is known to have been there.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from martlet.broker.recovery.journal import SEPARATOR
from martlet.broker.transactions.commit_sequence import LastCommit
from martlet.broker.transactions.commit_sequence import digest_of as series_digest
from martlet.broker.transactions.commit_sequence import unpack as unpack_series
from martlet.broker.transactions.outcomes import EndedTransaction, digest_of, unpack
from martlet.broker.transactions.state import HalfBatch, OpenTransaction, TransactionState

if TYPE_CHECKING:
    from martlet.broker.transactions.half_topic import HalfTopic
    from martlet.broker.transactions.manager import Transactions
    from martlet.log.record import Header
    from martlet.log.storage import Segment


class TransactionJournal:
    """Transactions and outcomes, as told so far.

    Attributes:
        durable_position: what stands before it is known to be durable; None for all.
        segments: those that there are, by base.
    """

    def __init__(self) -> None:
        self.durable_position: int | None = None
        self.segments: Sequence[Segment] = ()
        self._open: dict[str, OpenTransaction] = {}
        self._outcomes: dict[bytes, EndedTransaction] = {}
        """By the digest of the transaction's id, oldest first."""
        self._series: dict[bytes, LastCommit] = {}
        """By the digest of the name, the one that was not heard of for longest first."""
        self._seen: set[int] = set()
        """The positions behind the bundles that were read."""

    # what is told

    def apply(self, entry: bytes) -> None:
        """A piece of the journal."""
        text, _, packed = entry.partition(SEPARATOR)
        told = json.loads(text)
        op = told["op"]
        if op == "all":
            outcomes_bytes = told.get("outcomes_bytes", len(packed))
            self._all(told["transactions"], packed[:outcomes_bytes])
            self._all_series(packed[outcomes_bytes:])
        elif op == "begun":
            self._begun(OpenTransaction.read(told["transaction"]))
        elif op == "rolled_back":
            self._ended(
                told["id"], EndedTransaction(TransactionState.ROLLED_BACK, told["at_ns"], 0)
            )
        elif op == "checked":
            for id in told["ids"]:
                if id in self._open:
                    self._open[id].checks += 1
        elif (transaction := self._open.get(told["id"])) is not None:
            if op == "prepared":
                transaction.state, transaction.chosen = TransactionState.PREPARED, told["branches"]
                transaction.checks = 0
            elif op == "set_aside":
                transaction.state = TransactionState.SET_ASIDE

    def apply_bundle(self, told: Mapping[str, Any], header: Header) -> None:
        """What was decided by a bundle."""
        position = header.next_position
        self._seen.add(position)
        if told["op"] == "committed":
            self._ended(
                told["id"], EndedTransaction(TransactionState.COMMITTED, told["at_ns"], position)
            )
            if "series" in told:
                name, number = told["series"]
                self._reached(series_digest(name), LastCommit(number, told["at_ns"], position))
        elif told["op"] == "set_aside" and told["id"] in self._open:
            self._open[told["id"]].state = TransactionState.SET_ASIDE

    def apply_half(self, told: Mapping[str, Any], header: Header) -> None:
        """A batch of half messages."""
        id = told["transaction"]
        transaction = self._open.get(id)
        if transaction is not None and transaction.begun_at_ns != told["begun_at_ns"]:
            # What tells that it was rolled back, and begun anew, is lost.
            transaction = None
        if transaction is None:
            outcome = self._outcomes.get(digest_of(id))
            if outcome is not None and outcome.state is TransactionState.COMMITTED:
                return
            # What tells that it has begun is lost, but for this.
            transaction = OpenTransaction.of_origin(id, told)
            self._begun(transaction)
        branch, number = told["branch"], told["number"]
        known = transaction.branches.get(branch)
        expected = len(known.batches) if known is not None else 0
        if number > expected:
            transaction.lose(branch)
        elif number == expected:
            size_bytes = header.payload_length + header.properties_length
            place = (header.first_offset, header.count - 1, told["topic"], told["queue"])
            transaction.add(branch, HalfBatch(*place, size_bytes, len(told.get("times", ()))))
            transaction.checks = 0
            if transaction.state is TransactionState.SILENT:
                transaction.state = TransactionState.OPEN

    def _begun(self, transaction: OpenTransaction) -> None:
        self._outcomes.pop(digest_of(transaction.id), None)
        self._open[transaction.id] = transaction

    def _ended(self, id: str, outcome: EndedTransaction) -> None:
        self._open.pop(id, None)
        digest = digest_of(id)
        self._outcomes.pop(digest, None)
        self._outcomes[digest] = outcome

    def _all(self, told: Iterable[Mapping[str, Any]], packed: bytes) -> None:
        before = {digest_of(id): transaction for id, transaction in self._open.items()}
        self._open = {each["id"]: OpenTransaction.read(each) for each in told}
        seen, self._outcomes = self._outcomes, {}
        for digest, outcome in unpack(packed):
            if self._is_certain(outcome):
                self._outcomes[digest] = outcome
            elif digest in before:
                transaction = before[digest]
                self._open[transaction.id] = transaction
            elif digest in seen:
                self._outcomes[digest] = seen[digest]

    def _is_certain(self, outcome: EndedTransaction) -> bool:
        """Whether what made it so is there."""
        return outcome.state is TransactionState.ROLLED_BACK or self._is_there(outcome.position)

    def _is_there(self, position: int) -> bool:
        """Whether the bundle that ends at a position is."""
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
        """What a commit that is not there has said of its series does not count."""
        seen, self._series = self._series, {}
        for digest, last in unpack_series(packed):
            if self._is_there(last.position):
                self._series[digest] = last
            elif digest in seen:
                self._series[digest] = seen[digest]

    # what comes of it

    def settle(self, transactions: Transactions, half: HalfTopic | None) -> None:
        """Make transactions of it."""
        for digest, outcome in self._outcomes.items():
            transactions.outcomes.read(digest, outcome)
        for digest, last in self._series.items():
            transactions.series.read(digest, last)
        if half is not None:
            self._keep_apart(half)
        for transaction in self._open.values():
            self._check(transaction, half)
        transactions.restore(half, self._open.values())

    @staticmethod
    def _check(transaction: OpenTransaction, half: HalfTopic | None) -> None:
        """See which of its messages are there."""
        for name, branch in list(transaction.branches.items()):
            for number, batch in enumerate(branch.batches):
                if half is None or not half.holds(batch.first_offset):
                    transaction.lose(name, number)
                    break

    def _keep_apart(self, half: HalfTopic) -> None:
        """See that no later batch gets an offset that a lost one had."""
        ends = [
            batch.first_offset + batch.message_count + 1
            for transaction in self._open.values()
            for batch in transaction.all_batches()
        ]
        half.queue.end_offset = max(half.queue.end_offset, *ends, 0)
