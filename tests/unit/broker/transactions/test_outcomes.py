"""Series of numbered transactions: each number is committed once, whichever writer tries."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.errors import LimitReached
from martlet.broker.transactions.state import (
    BadTransaction,
    CommitSequence,
    CommitSequences,
    LastCommit,
    OpenTransaction,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
    digest_of,
    unpack_series,
)

HOUR_NS = 3600 * SECOND_NS


def stage(
    core: Core, id: str, number: int, *bodies: bytes, series: str = "job"
) -> TransactionState:
    """Begin a transaction at a number, and add to it."""
    state = core.transactions.begin(
        id, "", HOUR_NS, CommitSequence(series, number), is_disposable=True
    )
    if state is TransactionState.OPEN:
        core.transactions.add(id, "b", 0, "t", list(bodies))
    return state


def test_a_late_commit_rolls_its_transaction_back(core: Core) -> None:
    stage(core, "early", 7, b"seven")
    stage(core, "other", 7, b"other", series="another job")
    core.transactions.commit("early")
    # One at a higher number is no remainder; one of another series is none of this one's.
    stage(core, "next", 8, b"eight")
    assert list(core.transactions.open) == ["other", "next"]
    core.transactions.begin("none")
    core.transactions.rollback("none")
    assert core.transactions.commit("none", None, CommitSequence("job", 3)).is_repeated
    with pytest.raises(TransitionRefused, match="rolled-back, and cannot be committed"):
        core.transactions.commit("none", None, CommitSequence("job", 8))
    core.transactions.commit("next")
    assert core.stored() == [b"seven", b"eight"]


@pytest.mark.parametrize("power", [False, True])
def test_a_commit_sequence_is_remembered_over_restarts_and_segments(power: bool) -> None:
    core = Core(segment_bytes=1 << 16)
    stage(core, "a", 4, b"four")
    core.transactions.commit("a")
    stage(core, "b", 5, b"left open")
    core.flush()
    for _ in range(3):
        core.fill("x", 2)
        core.checkpoint()
        core.kill(power=power)
        assert stage(core, "again", 4) is TransactionState.COMMITTED
        last = core.transactions.series.last("job")
        assert last is not None
        assert last.number == 4
        left = core.transactions.open["b"]
        assert (left.sequence, left.is_disposable) == (CommitSequence("job", 5), True)
    core.transactions.commit("b", {"b": 1})
    core.stop()
    assert stage(core, "again", 5) is TransactionState.COMMITTED
    assert core.stored() == [b"four", b"left open"]


def test_a_commit_lost_in_a_power_cut_does_not_count_though_a_later_head_has_it() -> None:
    for seed in range(40):
        core = Core()
        stage(core, "a", 1, b"one")
        core.transactions.commit("a")
        core.flush()
        stage(core, "b", 2, b"two")
        core.transactions.commit("b")
        core.fill("x", 2)
        core.storage.random.seed(seed)
        core.kill(power=True)
        last = core.transactions.series.last("job")
        assert last is not None
        assert core.stored() == [b"one", b"two"][: last.number]


def test_an_uncommitted_transaction_is_rolled_back_by_its_age(core: Core) -> None:
    abandoned: list[tuple[str, str]] = []

    def note(transaction: OpenTransaction, why: str) -> None:
        abandoned.append((transaction.id, why))

    core.transactions.on_abandoned = note
    core.transactions.begin("t", "", HOUR_NS, CommitSequence("job", 1), is_disposable=True)
    core.transactions.add("t", "b", 0, "t", [b"one"])
    core.wait(HOUR_NS - 1)
    core.transactions.add("t", "b", 1, "t", [b"two"])
    core.wait(HOUR_NS - 1)
    assert "t" in core.transactions.open
    core.kill()
    core.transactions.on_abandoned = note
    core.wait(HOUR_NS + 1)
    assert abandoned == [("t", "no command came for it in 3600 s, so its producer begins it again")]
    assert not core.transactions.open
    assert core.transactions.half is not None
    assert not core.transactions.half.held
    assert core.stored() == []
    # It is no outcome for its number.
    stage(core, "u", 1, b"anew")
    core.transactions.commit("u")
    assert core.stored() == [b"anew"]


def test_a_prepared_transaction_is_not_rolled_back_by_its_age(core: Core) -> None:
    core.transactions.begin("t", "", SECOND_NS, CommitSequence("job", 1), is_disposable=True)
    core.transactions.add("t", "b", 0, "t", [b"one"])
    core.transactions.prepare("t", {"b": 1})
    for _ in range(20):
        core.wait(60 * SECOND_NS)
    assert core.transactions.state("t") is TransactionState.SET_ASIDE
    core.transactions.commit("t")
    assert core.stored() == [b"one"]


@pytest.mark.parametrize(
    ("sequence", "error_text"),
    [
        (CommitSequence("", 1), "its name must be 1 to 255 printable"),
        (CommitSequence("x" * 256, 1), "its name must be 1 to 255 printable"),
        (CommitSequence("a\nb", 1), "its name must be 1 to 255 printable"),
        (CommitSequence("x", -1), "it must be 0 to 9223372036854775807"),
        (CommitSequence("x", 1 << 63), "it must be 0 to 9223372036854775807"),
    ],
)
def test_sequences_that_no_transaction_can_have(
    core: Core, sequence: CommitSequence, error_text: str
) -> None:
    with pytest.raises(BadTransaction, match=error_text):
        core.transactions.begin("t", sequence=sequence)
    assert not core.transactions.open


def test_a_series_in_use_is_not_forgotten_for_another() -> None:
    core = Core(transactions=TransactionLimits(max_series=2, remembered_ns=10 * HOUR_NS))
    for name in ("a", "b"):
        stage(core, name, 1, b"x", series=name)
        core.transactions.commit(name)
        core.wait(HOUR_NS)
    with pytest.raises(LimitReached, match=r"2 had a commit within.*raise --transaction-series"):
        core.transactions.begin("c", sequence=CommitSequence("c", 1))
    stage(core, "a2", 2, b"x", series="a")
    core.transactions.commit("a2")
    core.wait(10 * HOUR_NS - 1)
    # The one that was not heard of for longest goes: b.
    stage(core, "c", 1, b"x", series="c")
    core.transactions.commit("c")
    remembered = {name for name in "abc" if core.transactions.series.last(name) is not None}
    assert remembered == {"a", "c"}


def test_packing() -> None:
    table = CommitSequences(10, 0)
    table.reached(CommitSequence("a", 3), 1, 2)
    table.reached(CommitSequence("b", 9), 3, 4)
    table.reached(CommitSequence("a", 5), 6, 7)
    assert list(unpack_series(table.pack())) == [
        (digest_of("b"), LastCommit(9, 3, 4)),
        (digest_of("a"), LastCommit(5, 6, 7)),
    ]


def test_delayed_messages_wait_from_the_commit_on(core: Core) -> None:
    client = core.client("t", "c").ready(10)
    now_ns = core.clock.now_ns
    core.transactions.begin("d")
    times = [(0, 1), (now_ns + 90 * SECOND_NS, 2), (now_ns + 5 * HOUR_NS, 1)]
    bodies = [b"now", b"soon", b"too", b"later"]
    core.transactions.add("d", "b", 0, "t", bodies, [(2, b"")], -1, times)
    core.wait(100 * SECOND_NS)
    assert client.bodies == []
    core.transactions.commit("d")
    # Two were due before they were committed.
    assert client.bodies == [b"now", b"soon", b"too"]
    core.kill()
    assert core.broker.delays.pending_count == 1
    client = core.client("t", "c").ready(10)
    core.wait(5 * HOUR_NS)
    core.wait(SECOND_NS)
    assert client.bodies[-1] == b"later"
    assert core.stored() == bodies


def test_delayed_messages_of_a_transaction_have_their_limits() -> None:
    core = Core(transactions=TransactionLimits(max_batches=3), max_delayed=2)
    later_ns = core.clock.now_ns + HOUR_NS
    core.transactions.begin("d")
    four = [(later_ns + n, 1) for n in range(4)]
    with pytest.raises(BadTransaction, match="--max-transaction-sends is 3"):
        core.transactions.add("d", "b", 0, "t", [b"x"] * 4, (), -1, four)
    core.transactions.add("d", "b", 0, "t", [b"x"] * 3, (), -1, four[:3])
    with pytest.raises(LimitReached, match="--max-delayed-messages is 2"):
        core.transactions.commit("d")
    assert core.transactions.state("d") is TransactionState.OPEN
    core.kill()
    with pytest.raises(BadTransaction, match="--max-transaction-sends is 3"):
        core.transactions.add("d", "b", 1, "t", [b"x"])


def test_a_silent_attempt_is_rolled_back_when_the_next_begins(core: Core) -> None:
    """A job that fails at one row is started again and again, and never comes to a commit."""
    for turn in range(5):
        stage(core, f"try {turn}", 3, b"x" * 100)
        assert list(core.transactions.open) == [f"try {turn}"]
        core.wait(60 * SECOND_NS)
    stage(core, "other", 3, b"y", series="another job")
    core.wait(30 * SECOND_NS)
    core.transactions.add("try 4", "b", 1, "t", [b"it lives"])
    core.wait(59 * SECOND_NS)
    stage(core, "try 5", 3, b"x")
    stage(core, "later", 9, b"x")
    core.transactions.begin("none of theirs", "", HOUR_NS, is_disposable=True)
    core.wait(60 * SECOND_NS)
    stage(core, "try 6", 4, b"x")
    assert list(core.transactions.open) == ["other", "later", "none of theirs", "try 6"]
    with pytest.raises(TransitionRefused, match="rolled-back"):
        core.transactions.commit("try 5", {"b": 1}, CommitSequence("job", 3))
