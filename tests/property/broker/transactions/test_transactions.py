"""Transactions on a simulated disk that is pulled out at every step, beside a model.

Whatever the crash, the messages of a transaction are all there or none is, each once; what a flush
had made durable stays decided; and what was open can be gone on with.  Of a series each number is
committed once, and its last one is that of the last commit that is there.  Writes fail in the
middle, so that a crash falls between any two of those that one operation makes.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.unit.broker.core import SECOND_NS, Core, bodies_of

from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.transactions.state import (
    CommitSequence,
    StillCommitting,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
)
from martlet.testing import SimulatedStorage

IDS = ("a", "b", "c", "d", "e")
SERIES = "s"
TOPICS = ("x", "y", "z")
BRANCHES = ("one", "two")
ENDED = (TransactionState.COMMITTED, TransactionState.ROLLED_BACK)


class Fuse(SimulatedStorage):
    """A storage whose writes fail from one of them on."""

    writes_left: int | None = None

    @property
    def write_error(self) -> OSError | None:
        if self.writes_left is None:
            return None
        self.writes_left -= 1
        return OSError(5, "pulled out") if self.writes_left < 0 else None

    @write_error.setter
    def write_error(self, error: OSError | None) -> None:
        pass


@dataclass
class ModelTransaction:
    """A transaction as its producer knows it."""

    branches: dict[str, list[tuple[str, list[bytes]]]] = field(default_factory=dict)
    """By branch: the topic and the bodies of each batch that was answered OK."""
    outcome: TransactionState | None = None
    number: int | None = None
    """In the series; None for one that is in none."""
    seen: list[tuple[str, list[bytes]]] = field(default_factory=list)
    """Committed messages, batch by batch."""

    @property
    def counts(self) -> dict[str, int]:
        return {name: sum(len(b) for _, b in batches) for name, batches in self.branches.items()}


class TransactionMachine(RuleBasedStateMachine):
    """A broker's transactions and their known state."""

    def __init__(self) -> None:
        super().__init__()
        limits = TransactionLimits(check_every_ns=SECOND_NS, max_checks=2, bundle_bytes=1500)
        self.core = Core(transactions=limits)
        self.core.storage.__class__ = Fuse
        self.transactions: dict[str, ModelTransaction] = {}
        self.durable: dict[str, ModelTransaction] = {}
        self.number = 0
        self.pulled = False

    # what producers do

    def attempt(self, call: Callable[[], object]) -> bool:
        """Whether it was done; where a write failed it may have been, or not."""
        try:
            call()
        except WritesRefused:
            assert self.core.broker.log.failed is not None
            self.pulled = True
            return False
        return True

    ids = st.sampled_from(IDS)

    @precondition(lambda self: not self.pulled)
    @rule(
        id=ids,
        group=st.sampled_from(["", "g"]),
        number=st.none() | st.integers(0, 3),
        disposable=st.booleans(),
    )
    def begin(self, id: str, group: str, number: int | None, disposable: bool) -> None:
        transaction = self.transactions.get(id)
        begin = self.core.broker.transactions.begin
        if transaction is not None and transaction.outcome is TransactionState.COMMITTED:
            assert begin(id) is TransactionState.COMMITTED
        elif transaction is None or transaction.outcome is TransactionState.ROLLED_BACK:
            place = None if number is None else CommitSequence(SERIES, number)
            if number is not None and number <= self.last():
                assert begin(id, sequence=place) is TransactionState.COMMITTED
                return
            self.transactions[id] = ModelTransaction(number=number)
            self.attempt(lambda: begin(id, group, None, place, disposable))

    def last(self) -> int:
        """The last number of the series that was committed; -1 for none."""
        numbers = [
            transaction.number
            for transaction in self.transactions.values()
            if transaction.outcome is TransactionState.COMMITTED and transaction.number is not None
        ]
        return max(numbers, default=-1)

    @precondition(lambda self: not self.pulled)
    @rule(
        id=ids,
        branch=st.sampled_from(BRANCHES),
        topic=st.sampled_from(TOPICS),
        sizes=st.lists(st.integers(1, 900), min_size=1, max_size=3),
    )
    def add(self, id: str, branch: str, topic: str, sizes: list[int]) -> None:
        transaction = self.transactions.get(id)
        if transaction is None or transaction.outcome is not None:
            return
        batches = transaction.branches.setdefault(branch, [])
        self.number += 1
        bodies = [b"%s:%d:%d " % (id.encode(), self.number, n) * n for n in sizes]
        add = self.core.broker.transactions.add
        if self.core.broker.transactions.state(id) not in (
            TransactionState.OPEN,
            TransactionState.SILENT,
        ):
            with pytest.raises(TransitionRefused, match="cannot be added to"):
                add(id, branch, len(batches), topic, bodies)
        elif self.attempt(lambda: add(id, branch, len(batches), topic, bodies)):
            batches.append((topic, bodies))

    @precondition(lambda self: not self.pulled)
    @rule(id=ids)
    def prepare(self, id: str) -> None:
        transaction = self.transactions.get(id)
        if transaction is None or transaction.outcome is not None:
            return
        prepare = self.core.broker.transactions.prepare
        if self.core.broker.transactions.state(id) is TransactionState.SET_ASIDE:
            with pytest.raises(TransitionRefused, match="cannot be prepared"):
                prepare(id, transaction.counts)
        else:
            self.attempt(lambda: prepare(id, transaction.counts))

    @precondition(lambda self: not self.pulled)
    @rule(
        id=ids,
        chosen=st.sets(st.sampled_from(BRANCHES)),
        again=st.booleans(),
        left_after=st.integers(0, 12),
        power=st.booleans(),
        seed=st.integers(0, 1 << 16),
    )
    def commit(
        self, id: str, chosen: set[str], again: bool, left_after: int, power: bool, seed: int
    ) -> None:
        transaction = self.transactions.get(id)
        if transaction is None or transaction.outcome is TransactionState.ROLLED_BACK:
            return
        commit = self.core.broker.transactions.commit
        if transaction.outcome is None:
            counts = {name: count for name, count in transaction.counts.items() if name in chosen}
            if transaction.number is not None and transaction.number <= self.last():
                assert commit(id, counts).is_repeated
                transaction.outcome = TransactionState.ROLLED_BACK
                self.pulled = self.core.broker.log.failed is not None
                return
            transaction.seen = [b for name in sorted(counts) for b in transaction.branches[name]]
            if not self.attempt(lambda: self.commit_in_steps(id, counts, left_after)):
                return
            if self.core.broker.transactions.large_commit is not None:
                self.pulled = True
                self.crash(power, seed)
                return
            transaction.outcome = TransactionState.COMMITTED
            self.clear_away(transaction.number)
        if again:
            commit(id)

    def commit_in_steps(self, id: str, counts: dict[str, int], left_after: int) -> None:
        """Commit a transaction; leave a large one after some of its steps."""
        for _ in range(left_after):
            try:
                self.core.broker.transactions.commit(id, counts)
                return
            except StillCommitting as error:
                if error.needs_flush:
                    self.flush()
                else:
                    self.go_on()
        self.end_large_if_last(id, counts)

    def end_large_if_last(self, id: str, counts: dict[str, int]) -> None:
        """Commit what needs no further step, or leave it under way."""
        try:
            self.core.broker.transactions.commit(id, counts)
        except StillCommitting as error:
            if error.needs_flush:
                self.flush()
                self.end_large_if_last(id, counts)

    def go_on(self) -> None:
        """Let a large commit take a step. Raises WritesRefused if the disk is pulled out."""
        self.core.flush()
        self.pass_time(10_000_000)
        failed = self.core.broker.log.failed
        if failed is not None:
            raise WritesRefused(failed)

    def clear_away(self, number: int | None) -> None:
        """Note that others of the series up to a number are rolled back by its commit."""
        self.pulled = self.core.broker.log.failed is not None
        for other in self.transactions.values():
            left = other.outcome is None and other.number is not None
            if number is not None and left and other.number <= number:  # type: ignore[operator]
                other.outcome = TransactionState.ROLLED_BACK

    @precondition(lambda self: not self.pulled)
    @rule(
        id=ids,
        topic=st.sampled_from(TOPICS),
        sizes=st.lists(st.integers(1, 900), min_size=1, max_size=3),
    )
    def commit_at_once(self, id: str, topic: str, sizes: list[int]) -> None:
        transaction = self.transactions.get(id)
        self.number += 1
        bodies = [b"%s:%d:%d " % (id.encode(), self.number, n) * n for n in sizes]
        commit = self.core.broker.transactions.commit_at_once
        if transaction is not None and transaction.outcome is None:
            with pytest.raises(TransitionRefused, match="was begun before"):
                commit(id, topic, bodies)
        elif transaction is not None and transaction.outcome is TransactionState.COMMITTED:
            commit(id, topic, bodies)
        else:
            self.transactions[id] = transaction = ModelTransaction(seen=[(topic, bodies)])
            if self.attempt(lambda: commit(id, topic, bodies)):
                transaction.outcome = TransactionState.COMMITTED

    @precondition(lambda self: not self.pulled)
    @rule(id=ids)
    def rollback(self, id: str) -> None:
        transaction = self.transactions.get(id)
        if transaction is None or transaction.outcome is TransactionState.COMMITTED:
            return
        if self.attempt(lambda: self.core.broker.transactions.rollback(id)):
            transaction.outcome = TransactionState.ROLLED_BACK

    @precondition(lambda self: not self.pulled)
    @rule(seconds=st.integers(1, 20), is_checked=st.booleans())
    def wait(self, seconds: int, is_checked: bool) -> None:
        self.pass_time(seconds * SECOND_NS)
        if is_checked:
            self.core.broker.transactions.take_due("g")
        self.pulled = self.core.broker.log.failed is not None

    def pass_time(self, duration_ns: int) -> None:
        abandoned: list[str] = []
        transactions = self.core.broker.transactions
        transactions.on_abandoned = lambda transaction, why: abandoned.append(transaction.id)
        self.core.wait(duration_ns)
        for id in abandoned:
            self.transactions[id].outcome = TransactionState.ROLLED_BACK

    @precondition(lambda self: not self.pulled)
    @rule(topic=st.sampled_from(TOPICS))
    def publish(self, topic: str) -> None:
        def publish() -> None:
            error = self.core.publish(topic, b"plain").error
            if error is not None:
                raise error

        self.attempt(publish)

    # what happens to the disk

    @precondition(lambda self: not self.pulled)
    @rule()
    def flush(self) -> None:
        self.core.flush()
        self.durable = deepcopy(self.transactions)

    @precondition(lambda self: not self.pulled)
    @rule()
    def checkpoint(self) -> None:
        fuse, self.core.storage.writes_left = self.core.storage.writes_left, None  # type: ignore[attr-defined]
        self.core.checkpoint()
        self.core.storage.writes_left = fuse  # type: ignore[attr-defined]
        self.durable = deepcopy(self.transactions)

    @precondition(lambda self: not self.pulled)
    @rule(writes=st.integers(0, 8))
    def light_fuse(self, writes: int) -> None:
        self.core.storage.writes_left = writes  # type: ignore[attr-defined]

    @rule(power=st.booleans(), seed=st.integers(0, 1 << 16))
    def crash(self, power: bool, seed: int) -> None:
        self.core.storage.random = Random(seed)
        in_doubt, self.pulled = self.pulled, False
        self.core.kill(power=power)
        self.core.storage.__class__ = Fuse
        while self.core.broker.transactions.large_commit is not None:
            self.go_on()
        seen = self.seen()
        for id in list(self.transactions):
            self.compare(id, seen.get(id, {}), power or in_doubt)
        for id in IDS:
            if id not in self.transactions:
                assert not seen.get(id)
        last = self.core.broker.transactions.series.last(SERIES)
        assert (-1 if last is None else last.number) == self.last()
        if not power:
            return
        # What a power cut has left is durable.
        self.durable = deepcopy(self.transactions)

    def seen(self) -> dict[str, dict[str, list[bytes]]]:
        """By transaction and topic: the bodies that are there, in order."""
        stored: dict[str, dict[str, list[bytes]]] = {}
        broker = self.core.broker
        for name in TOPICS:
            topic = broker.topics.get(name)
            if topic is None:
                continue
            # Those before a gap, too: a channel gets them.
            for body in bodies_of(broker, topic, topic.queue.first_stored_offset):
                if body != b"plain":
                    stored.setdefault(body[:1].decode(), {}).setdefault(name, []).append(body)
        return stored

    def compare(self, id: str, seen: dict[str, list[bytes]], may_lack: bool) -> None:
        """See that a transaction is wholly there or not at all, and go on with it as it is."""
        transaction, durable = self.transactions[id], self.durable.get(id)
        expected: dict[str, list[bytes]] = {}
        for topic, bodies in transaction.seen:
            expected.setdefault(topic, []).extend(bodies)
        for topic in seen.keys() | expected.keys():
            there = sorted(seen.get(topic, ()))
            assert not seen or there == sorted(expected.get(topic, ())), "seen in part"
        transactions = self.core.broker.transactions
        try:
            state = transactions.state(id)
        except NotFound:
            assert may_lack
            assert durable is None
            assert not seen
            del self.transactions[id]
            return
        if not may_lack:
            assert state is transaction.outcome or (
                transaction.outcome is None and state not in ENDED
            )
        if durable is not None and durable.outcome is TransactionState.COMMITTED:
            assert state is TransactionState.COMMITTED
        assert bool(seen) == (state is TransactionState.COMMITTED and bool(expected))
        transaction.outcome = state if state in ENDED else None
        if transaction.outcome is None:
            transaction.seen = []
            self.resume(id, transaction, durable, may_lack)

    def resume(
        self,
        id: str,
        transaction: ModelTransaction,
        durable: ModelTransaction | None,
        may_lack: bool,
    ) -> None:
        """Check that an open transaction has its messages answered OK, or the first of them."""
        branches = self.core.broker.transactions.open[id].branches
        for name in BRANCHES:
            batches = transaction.branches.get(name, [])
            there = len(branches[name].batches) if name in branches else 0
            if durable is not None and durable.outcome is None:
                min_value = [b for b in durable.branches.get(name, []) if b in batches]
                assert there >= len(min_value), "what was durable is lost"
            if may_lack:
                # One that was refused may be there: the producer adds it again.
                transaction.branches[name] = batches[:there]
            else:
                assert there == len(batches)
        if may_lack:
            # The producer gives up what it does not know of for sure.
            self.core.broker.transactions.rollback(id)
            transaction.outcome = TransactionState.ROLLED_BACK

    @invariant()
    def holds_what_is_needed(self) -> None:
        transactions = self.core.broker.transactions
        if transactions.half is not None:
            batches = [b for t in transactions.open.values() for b in t.all_batches()]
            assert transactions.half.held == {batch.first_offset for batch in batches}


TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_transactions_for_long() -> None:
    more = settings(TestTransactions.settings, max_examples=2000, stateful_step_count=80)
    run_state_machine_as_test(TransactionMachine, settings=more)
