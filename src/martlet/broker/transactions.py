"""Transactions: all that have not ended, and how those ended that lately did.

What the journal says of them is JSON, in records of a kind of their own:

- ``{"op": "all", "transactions": [...]}``: all that have not ended, in place of all before; and
  behind a zero byte the outcomes of others (see `martlet.broker.outcomes`)
- ``{"op": "begun", "transaction": {...}}``: one without messages; each batch of half messages says
  the same of its own
- ``{"op": "prepared", "id": "..."}``, ``{"op": "checked", "ids": [...]}``
- ``{"op": "rolled_back", "id": "...", "at_ns": n}``
- in a bundle with the messages: ``{"op": "committed", "id": "...", "at_ns": n, "topics": [...]}``
  and ``{"op": "set_aside", "id": "...", "topics": [...]}``, the topics being told where a power cut
  may yet take what else tells of them

A commit is one record, which holds the messages too.  So nothing is ever half done: a crash finds
the transaction as it was before or as it is after, and there is nothing to finish at a start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.broker.check_back import CheckBack
from martlet.broker.errors import BrokerError, LimitReached, WritesRefused
from martlet.broker.forwarding import forward
from martlet.broker.half import HalfTopic
from martlet.broker.journal import HALF, SEPARATOR
from martlet.broker.outcomes import Outcome, Outcomes
from martlet.broker.queue import Queue
from martlet.broker.transaction import (
    LONGEST_BRANCH,
    LONGEST_GROUP,
    LONGEST_ID,
    BadTransaction,
    Description,
    Event,
    HalfBatch,
    State,
    Transaction,
    TransactionLimits,
    TransactionRefused,
    UnknownTransaction,
    after,
)
from martlet.log.index import Index
from martlet.log.record import BadRecord, Kind

if TYPE_CHECKING:
    from martlet.broker.broker import Broker
    from martlet.broker.topic import Topic
    from martlet.log.batch import Bytes
    from martlet.log.checkpoint import JournalEntry


_LEAST_TOLD = 1024
_SEGMENT_BYTES_EACH = 1024
"""For so many bytes of a segment one outcome is remembered, and one batch of half messages held,
since its head tells all of them.
"""


class Transactions:
    """The transactions of a broker.

    Args:
        broker: whose.
        limits: as the operator has set them.

    Attributes:
        open: those that have not ended, by id, oldest first.
        outcomes: of those that have.
        check_back: knows whose producers are to be asked, and tells of them.
        on_set_aside: called with one that goes aside, and why.
    """

    def __init__(self, broker: Broker, limits: TransactionLimits) -> None:
        self._broker = broker
        self.limits = limits
        self.open: dict[str, Transaction] = {}
        most_told = max(_LEAST_TOLD, broker.log.segment_bytes // _SEGMENT_BYTES_EACH)
        self._most_held = most_told
        self.outcomes = Outcomes(min(limits.most_outcomes, most_told), limits.remembered_ns)
        self.half: HalfTopic | None = None
        self.on_set_aside: Callable[[Transaction, str], None] = lambda transaction, why: None
        self.committed_count = 0
        """Since the start."""
        self.rolled_back_count = 0
        self.check_back = CheckBack(limits, broker.clock, broker.schedule, self._set_aside)
        self._told: dict[int, int] = {}
        """Up to which position of the log each topic at a queue was told of in a bundle."""

    # what clients do

    def state(self, id: str) -> State:
        """Where a transaction is. Raises UnknownTransaction."""
        transaction = self.open.get(id)
        if transaction is not None:
            return transaction.state
        outcome = self.outcomes.get(id)
        if outcome is None:
            raise UnknownTransaction(
                f"there is no transaction {id!r}: it was not begun, or ended too long ago"
            )
        return outcome.state

    def find(self, id: str) -> Transaction:
        """One that has not ended. Raises UnknownTransaction and TransactionRefused."""
        transaction = self.open.get(id)
        if transaction is None:
            state = self.state(id)
            raise TransactionRefused(f"transaction {id!r} is {state}", state)
        return transaction

    def begin(self, id: str, group: str = "", check_after_ns: int | None = None) -> State:
        """Begin a transaction; of one that is known, its state is told.

        Raises:
            BadTransaction: the id or the group is too long, or empty.
            LimitReached: there are as many as there may be.
            WritesRefused: it could not be written down.
        """
        known = self.open.get(id)
        if known is not None:
            self._heard(known, after(id, known.state, Event.BEGIN))
            return known.state
        outcome = self.outcomes.get(id)
        state = State.OPEN if outcome is None else after(id, outcome.state, Event.BEGIN)
        if state is State.OPEN:
            transaction = self._made(id, group, check_after_ns)
            self._journal("begun", transaction=transaction.describe())
            self.outcomes.forget(id)
            self.open[id] = transaction
            self.check_back.watch(transaction)
        return state

    def _made(self, id: str, group: str, check_after_ns: int | None) -> Transaction:
        if not 0 < len(id) <= LONGEST_ID or not id.isprintable():
            raise BadTransaction(
                f"the transaction id {id[:80]!r}: it must be 1 to {LONGEST_ID} printable characters"
            )
        if len(group) > LONGEST_GROUP or not group.isprintable():
            raise BadTransaction(
                f"the group {group[:80]!r}: it must be up to {LONGEST_GROUP} printable characters"
            )
        most = self.limits.most_open
        if len(self.open) >= most:
            raise LimitReached(
                f"transaction {id!r} would be one too many: there are {len(self.open)} that have"
                f" not ended, and --max-transactions is {most}; see 'martlet transactions list'"
            )
        if check_after_ns is None:
            check_after_ns = self.limits.check_after_ns
        return Transaction(id, group, self._broker.clock(), check_after_ns)

    def add(
        self,
        id: str,
        branch: str,
        number: int,
        topic: str,
        bodies: list[bytes] | Bytes,
        entries: Sequence[tuple[int, bytes]] = (),
        queue: int = -1,
    ) -> tuple[HalfBatch, int]:
        """Store messages that nobody sees until the transaction is committed.

        Args:
            id: whose transaction.
            branch: the name of who adds.
            number: of the batch in its branch, from 0; one that is there already is stored once.
            topic: where they belong.
            bodies: the messages, as of `Topic.stage`.
            entries: their properties, by their numbers.
            queue: at which queue of the topic; -1 for any.

        Returns the batch, and the position of the log behind it.

        Raises:
            UnknownTransaction, TransactionRefused: it is not open, or batches before are missing.
            BadTransaction: it would be too large.
            WritesRefused: there is no room.
        """
        transaction = self.find(id)
        state = after(id, transaction.state, Event.ADD)
        if not 0 < len(branch) <= LONGEST_BRANCH:
            raise BadTransaction(f"a branch's name has 1 to {LONGEST_BRANCH} characters")
        batches = transaction.branches[branch].batches if branch in transaction.branches else []
        if number < len(batches):
            return batches[number], self._broker.log.position
        if number > len(batches):
            raise TransactionRefused(
                f"branch {branch!r} of transaction {id!r} has {len(batches)} batches, and batch"
                f" {number} is added: those between were refused, or are lost; roll it back",
                transaction.state,
                is_incomplete=True,
            )
        self._check_size(transaction, sum(map(len, bodies)))
        half = self._half()
        if len(half.held) >= self._most_held:
            raise LimitReached(
                f"open transactions hold what {len(half.held)} sends have added, and each segment"
                " of the log begins with a list of them: end some, add several messages at a time,"
                " or raise --max-bytes-per-file"
            )
        told = {
            "transaction": id,
            "branch": branch,
            "number": number,
            "topic": topic,
            "queue": queue,
            "group": transaction.group,
            "begun_at_ns": transaction.begun_at_ns,
            "check_after_ns": transaction.check_after_ns,
        }
        first = half.queue.end_offset
        batch = self._broker.staged(half)
        half.put(batch, told, bodies, list(entries))
        size_bytes = batch.payload_length
        receipt = self._broker.commit_topic(half, 0)
        if receipt.error is not None:
            raise receipt.error
        added = HalfBatch(first, len(bodies), topic, queue, size_bytes)
        transaction.add(branch, added)
        half.held.add(first)
        self._heard(transaction, state)
        return added, receipt.position

    def _check_size(self, transaction: Transaction, more_bytes: int) -> None:
        limits = self.limits
        size_bytes = transaction.size_bytes + more_bytes
        if size_bytes > limits.most_bytes:
            raise BadTransaction(
                f"transaction {transaction.id!r} would have {size_bytes} bytes, and"
                f" --max-transaction-bytes is {limits.most_bytes}: make it smaller, or raise that"
            )
        if transaction.batch_count >= limits.most_batches:
            raise BadTransaction(
                f"{transaction.batch_count} times messages were added to transaction"
                f" {transaction.id!r}, and --max-transaction-sends is {limits.most_batches}: add"
                " several messages at a time, or raise that"
            )

    def prepare(self, id: str, branches: Mapping[str, int] | None = None) -> None:
        """The transaction has all its messages, and nothing but its outcome is missing.

        Args:
            id: which.
            branches: those that belong to it, and how many messages each has; None for all.

        Raises as `commit`.
        """
        transaction = self.find(id)
        state = after(id, transaction.state, Event.PREPARE)
        transaction.batches(branches)
        if transaction.state is not State.PREPARED or branches != transaction.chosen:
            self._journal("prepared", id=id, branches=branches)
        transaction.chosen = branches
        self._heard(transaction, state)

    def commit(self, id: str, branches: Mapping[str, int] | None = None) -> Outcome:
        """Have everybody see the messages: all, or those of some branches.

        Args:
            id: which; one that was committed already stays so.
            branches: those that belong to it, and how many messages each has.  What others have
                added is left out.  None for those it was prepared with, or else for all.

        Raises:
            UnknownTransaction: it is not known any more.
            TransactionRefused: it was rolled back, or messages are missing.
            WritesRefused: there is no room.
        """
        transaction = self.open.get(id)
        if transaction is None:
            return self._ended(id, Event.COMMIT)
        after(id, transaction.state, Event.COMMIT)
        at_ns = self._broker.clock()
        batches = transaction.batches(transaction.chosen if branches is None else branches)

        def entry(topics: Sequence[Topic]) -> bytes:
            return _packed("committed", id=id, at_ns=at_ns, topics=self._news_of(topics))

        position = self._forward(transaction, batches, entry)
        self.committed_count += 1
        return self._end(transaction, Outcome(State.COMMITTED, at_ns, position))

    def rollback(self, id: str) -> Outcome:
        """Nobody will ever see the messages.

        Raises:
            UnknownTransaction: it is not known any more.
            TransactionRefused: it was committed.
            WritesRefused: it could not be written down.
        """
        transaction = self.open.get(id)
        if transaction is None:
            return self._ended(id, Event.ROLLBACK)
        after(id, transaction.state, Event.ROLLBACK)
        at_ns = self._broker.clock()
        self._journal("rolled_back", id=id, at_ns=at_ns)
        self.rolled_back_count += 1
        position = self._broker.log.position
        return self._end(transaction, Outcome(State.ROLLED_BACK, at_ns, position))

    def _ended(self, id: str, event: Event) -> Outcome:
        after(id, self.state(id), event)
        outcome = self.outcomes.get(id)
        assert outcome is not None
        return outcome

    def _end(self, transaction: Transaction, outcome: Outcome) -> Outcome:
        del self.open[transaction.id]
        self.check_back.ended(transaction)
        if self.half is not None:
            self.half.held.difference_update(b.first_offset for b in transaction.all_batches())
        self.outcomes.add(transaction.id, outcome)
        return outcome

    # messages

    def _half(self) -> HalfTopic:
        """Where half messages are, made when the first come."""
        if self.half is None:
            broker = self._broker
            id = broker.next_id()
            index = Index(broker.log.storage, id, 0)
            queue = Queue(broker.log, id, 0, broker.random.getrandbits(64), index, 0)
            half = HalfTopic(broker, id, HALF, queue)
            broker.journal_topology("topic", id, topic=half.describe())
            broker.adopt(half)
            self.half = half
        return self.half

    def _forward(
        self,
        transaction: Transaction,
        batches: Sequence[HalfBatch],
        entry: Callable[[Sequence[Topic]], bytes],
        to: str = "",
    ) -> int:
        """Store messages where they belong, or all in one topic. Returns the position behind them.

        Raises TransactionRefused, or as `Broker.topic`.
        """
        broker, half = self._broker, self.half
        wanted = []
        try:
            for batch in batches:
                assert half is not None
                stored = half.get(batch.first_offset, transaction.id)
                wanted.append((_part(broker.topic(to or batch.topic), batch.queue), stored))
            return forward(broker, wanted, entry)
        except BadRecord as error:
            for name in transaction.branches:
                transaction.lose(name)
            raise TransactionRefused(
                f"messages of transaction {transaction.id!r} are lost: {error}; roll it back",
                transaction.state,
                is_incomplete=True,
            ) from error

    def _news_of(self, topics: Sequence[Topic]) -> list[Description]:
        """What is to be told of topics because a power cut may take what else tells of them."""
        log = self._broker.log
        news = []
        for topic in topics:
            for part in topic.parts:
                told_at = self._told.get(part.id)
                if told_at is None or told_at > log.durable_position:
                    # Whatever told of it before stands before this, and so does its making.
                    self._told[part.id] = log.position
                    news.append(part.describe())
        return news

    # the journal

    def _journal(self, op: str, **fields: object) -> None:
        broker = self._broker
        entry = _packed(op, **fields)
        broker.log.append_journal(Kind.TRANSACTION, entry, topic=0, stored_at_ns=broker.clock())

    def snapshot(self) -> list[JournalEntry]:
        """All that is known, for the journal."""
        if not self.open and not len(self.outcomes):
            return []
        told = [transaction.describe() for transaction in self.open.values()]
        entry = _packed("all", transactions=told) + SEPARATOR + self.outcomes.pack()
        return [(Kind.TRANSACTION, 0, entry)]

    def restore(self, half: HalfTopic | None, found: Iterable[Transaction]) -> None:
        """Go on with those that a start has found; their producers have time to come back."""
        self.half = half
        for transaction in found:
            assert half is not None or not transaction.batch_count
            self.open[transaction.id] = transaction
            self.check_back.watch(transaction)
            for batch in transaction.all_batches():
                assert half is not None
                half.held.add(batch.first_offset)

    # producers that are silent

    def _heard(self, transaction: Transaction, state: State) -> None:
        transaction.state = state
        if state is not State.SET_ASIDE:
            self.check_back.heard(transaction)

    def take_due(self, group: str, most: int = 100) -> list[Transaction]:
        """Those whose producers are to be asked, for one of the group who is going to be."""
        taken = self.check_back.take(group, most)
        if taken:
            with suppress(WritesRefused):  # At worst somebody is asked once more.
                self._journal("checked", ids=[transaction.id for transaction in taken])
        return taken

    def _set_aside(self, transaction: Transaction, why: str) -> bool:
        """Nobody can tell what has become of it: a person may. False where there is no room."""
        id = transaction.id
        state = after(id, transaction.state, Event.GIVE_UP)

        def entry(topics: Sequence[Topic]) -> bytes:
            return _packed("set_aside", id=id, topics=self._news_of(topics))

        batches = transaction.all_batches()
        try:
            try:
                self._forward(transaction, batches, entry, to=self.limits.aside_topic)
            except TransactionRefused:
                # What is left of it cannot be shown; that it is there is told all the same.
                self._journal("set_aside", id=id)
        except (BrokerError, WritesRefused):
            return False
        transaction.state = state
        self.on_set_aside(transaction, why)
        return True


def _part(topic: Topic, queue: int) -> Topic:
    """A topic at one of its queues, of which there may be fewer than there were."""
    if queue < 0:
        return topic.next_part()
    return topic.parts[queue % len(topic.parts)]


def _packed(op: str, **fields: object) -> bytes:
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
