"""Limits of transactions: in the log, in the heads of its segments, and in memory."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.errors import LimitReached
from martlet.broker.transactions.state import BadTransaction, TransactionLimits, TransactionState
from martlet.properties.model import Properties

S = TransactionState


@pytest.mark.parametrize("restarted", [False, True])
def test_properties_count_as_bytes_of_a_transaction(restarted: bool) -> None:
    core = Core(segment_bytes=1 << 16, transactions=TransactionLimits(max_bytes=10_000))
    entry = Properties(headers={"much": "x" * 4000}).pack()
    core.transactions.begin("t")
    for number in range(2):
        core.transactions.add("t", "b", number, "orders", [b"x"], [(0, entry)])
    if restarted:
        core.kill()
    with pytest.raises(BadTransaction, match="--max-transaction-bytes is 10000"):
        core.transactions.add("t", "b", 2, "orders", [b"x"], [(0, entry)])
    core.transactions.commit("t", {"b": 2})
    assert core.stored("orders") == [b"x", b"x"]


def test_prepared_branches_with_messages_are_reported() -> None:
    core = Core(segment_bytes=1 << 16)
    core.transactions.begin("t")
    core.transactions.add("t", "b", 0, "orders", [b"one"])
    core.transactions.add("t", "other", 0, "orders", [b"two"])
    before = core.broker.log.position
    core.transactions.prepare("t", {"b": 1, **{f"{number:0100}": 0 for number in range(100)}})
    assert core.broker.log.position - before < 500
    core.kill()
    assert core.transactions.open["t"].chosen == {"b": 1}
    core.transactions.commit("t")
    assert core.stored("orders") == [b"one"]


def test_open_transactions_are_limited_by_the_heads_of_segments() -> None:
    core = Core(segment_bytes=1 << 20)
    for number in range(1024):
        core.transactions.begin(f"{number:032}", "group")
    with pytest.raises(LimitReached, match="raise --max-bytes-per-file"):
        core.transactions.begin("one more")
    core.transactions.rollback(f"{0:032}")
    core.transactions.begin("one more")


@pytest.mark.parametrize("group", ["", "g"])
def test_one_that_has_ended_is_not_kept_until_it_would_have_been_asked_about(group: str) -> None:
    core = Core(segment_bytes=1 << 20)
    day_ns = 24 * 3600 * SECOND_NS
    core.transactions.begin("stays", group, day_ns)
    for number in range(1000):
        core.transactions.begin(f"t{number}", group, day_ns)
        core.transactions.rollback(f"t{number}")
    assert core.transactions.check_back.waiting_count < 200
    core.wait(day_ns)
    assert core.transactions.state("stays") is S.SILENT


def test_a_group_known_before_a_restart_is_asked_as_often_as_others() -> None:
    limits = TransactionLimits(check_every_ns=SECOND_NS, max_checks=3)
    core = Core(transactions=limits)
    core.transactions.begin("t", "g")
    for _ in range(3):
        core.wait(7 * SECOND_NS)
        assert core.transactions.take_due("g")
    core.transactions.add("t", "b", 0, "orders", [b"one"])
    core.kill()
    core.wait(7 * SECOND_NS)
    assert core.transactions.state("t") is S.SILENT
    assert [transaction.checks for transaction in core.transactions.take_due("g")] == [1]


def test_rolled_back_messages_stay_out_of_those_added_anew_after_a_power_cut() -> None:
    """A power cut takes the rollback and the new beginning, and leaves what was added then."""
    core = Core(segment_bytes=1 << 16)
    core.transactions.begin("t")
    core.transactions.add("t", "b", 0, "orders", [b"rolled back"])
    core.flush()
    before = core.broker.log.position
    core.clock.advance(1)
    core.transactions.rollback("t")
    core.transactions.begin("t")
    lost_bytes = core.broker.log.position - before
    core.transactions.add("t", "b", 0, "orders", [b"added anew"])
    segment = core.broker.log.find(before)
    assert segment is not None
    segment.write(bytes(lost_bytes), before - segment.base)
    core.kill()
    core.transactions.commit("t", {"b": 1})
    assert core.stored("orders") == [b"added anew"]
