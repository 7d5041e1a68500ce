"""Limits of transactions: in the log, in the heads of its segments, and in memory."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core, bodies_of

from martlet.broker.errors import LimitReached
from martlet.broker.transactions.state import BadTransaction, TransactionLimits, TransactionState
from martlet.properties.model import Properties

S = TransactionState


@pytest.mark.parametrize("restarted", [False, True])
def test_properties_count_as_bytes_of_a_transaction(restarted: bool) -> None:
    core = Core(segment_bytes=1 << 16, transactions=TransactionLimits(max_bytes=10_000))
    entry = Properties(headers={"much": "x" * 4000}).pack()
    core.broker.transactions.begin("t")
    for number in range(2):
        core.broker.transactions.add("t", "b", number, "orders", [b"x"], [(0, entry)])
    if restarted:
        core.kill()
    transactions = core.broker.transactions
    with pytest.raises(BadTransaction, match="--max-transaction-bytes is 10000"):
        transactions.add("t", "b", 2, "orders", [b"x"], [(0, entry)])
    transactions.commit("t", {"b": 2})
    assert bodies_of(core.broker, core.broker.topics["orders"]) == [b"x", b"x"]


def test_prepared_branches_with_messages_are_reported() -> None:
    core = Core(segment_bytes=1 << 16)
    transactions = core.broker.transactions
    transactions.begin("t")
    transactions.add("t", "b", 0, "orders", [b"one"])
    transactions.add("t", "other", 0, "orders", [b"two"])
    before = core.broker.log.position
    transactions.prepare("t", {"b": 1, **{f"{number:0100}": 0 for number in range(100)}})
    assert core.broker.log.position - before < 500
    core.kill()
    assert core.broker.transactions.open["t"].chosen == {"b": 1}
    core.broker.transactions.commit("t")
    assert bodies_of(core.broker, core.broker.topics["orders"]) == [b"one"]


def test_open_transactions_are_limited_by_the_heads_of_segments() -> None:
    core = Core(segment_bytes=1 << 20)
    transactions = core.broker.transactions
    for number in range(1024):
        transactions.begin(f"{number:032}", "group")
    with pytest.raises(LimitReached, match="raise --max-bytes-per-file"):
        transactions.begin("one more")
    transactions.rollback(f"{0:032}")
    transactions.begin("one more")


@pytest.mark.parametrize("group", ["", "g"])
def test_one_that_has_ended_is_not_kept_until_it_would_have_been_asked_about(group: str) -> None:
    core = Core(segment_bytes=1 << 20)
    transactions = core.broker.transactions
    day_ns = 24 * 3600 * SECOND_NS
    transactions.begin("stays", group, day_ns)
    for number in range(1000):
        transactions.begin(f"t{number}", group, day_ns)
        transactions.rollback(f"t{number}")
    assert transactions.check_back.waiting_count < 200
    core.clock.advance(day_ns)
    core.broker.run()
    assert transactions.state("stays") is S.SILENT


def test_a_group_known_before_a_restart_is_asked_as_often_as_others() -> None:
    limits = TransactionLimits(check_every_ns=SECOND_NS, max_checks=3)
    core = Core(transactions=limits)
    core.broker.transactions.begin("t", "g")
    for _ in range(3):
        core.wait(7 * SECOND_NS)
        assert core.broker.transactions.take_due("g")
    core.broker.transactions.add("t", "b", 0, "orders", [b"one"])
    core.kill()
    core.wait(7 * SECOND_NS)
    assert core.broker.transactions.state("t") is S.SILENT
    assert [transaction.checks for transaction in core.broker.transactions.take_due("g")] == [1]


def test_rolled_back_messages_stay_out_of_those_added_anew_after_a_power_cut() -> None:
    """A power cut takes the rollback and the new beginning, and leaves what was added then."""
    core = Core(segment_bytes=1 << 16)
    transactions = core.broker.transactions
    transactions.begin("t")
    transactions.add("t", "b", 0, "orders", [b"rolled back"])
    core.flush()
    before = core.broker.log.position
    core.clock.advance(1)
    transactions.rollback("t")
    transactions.begin("t")
    lost_bytes = core.broker.log.position - before
    transactions.add("t", "b", 0, "orders", [b"added anew"])
    segment = core.broker.log.find(before)
    assert segment is not None
    segment.write(bytes(lost_bytes), before - segment.base)
    core.kill()
    core.broker.transactions.commit("t", {"b": 1})
    assert bodies_of(core.broker, core.broker.topics["orders"]) == [b"added anew"]
