"""Transactions of the core: visibility, checks of producers, and recovery at a start."""

from __future__ import annotations

from random import Random

import pytest
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.errors import LimitReached, NotFound, WritesRefused
from martlet.broker.retention.eviction import Eviction
from martlet.broker.transactions.state import (
    TABLE,
    BadTransaction,
    TransactionEvent,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
    UnknownTransaction,
)
from martlet.properties.model import Properties

S = TransactionState


def add(core: Core, id: str, topic: str, *bodies: bytes) -> None:
    """Add a batch, numbered as the next one of branch b, to a transaction that may be new."""
    if id not in core.transactions.open:
        core.transactions.begin(id)
    branch = core.transactions.open[id].branches.get("b")
    number = 0 if branch is None else len(branch.batches)
    core.transactions.add(id, "b", number, topic, list(bodies))


def test_no_message_is_delivered_before_all_are_there(core: Core) -> None:
    seen = []

    class Watching(Client):
        def send_messages(self, frames: object) -> None:
            seen.append(core.topic("b").queue.end_offset)

    Watching(core.channel("a"), SECOND_NS).ready(1)
    add(core, "t", "a", b"first")
    add(core, "t", "b", b"last")
    core.transactions.commit("t")
    assert seen == [1]


def test_each_call_may_be_repeated(core: Core) -> None:
    core.transactions.begin("t")
    assert core.transactions.begin("t") is S.OPEN
    core.transactions.add("t", "b", 0, "orders", [b"one"])
    core.transactions.add("t", "b", 0, "orders", [b"one"])
    core.transactions.prepare("t", {"b": 1})
    core.transactions.prepare("t", {"b": 1})
    assert core.transactions.begin("t") is S.PREPARED
    first = core.transactions.commit("t")
    assert core.transactions.commit("t") == first
    assert core.transactions.begin("t") is S.COMMITTED
    assert core.stored("orders") == [b"one"]
    with pytest.raises(TransitionRefused, match="is committed, and cannot be rolled back"):
        core.transactions.rollback("t")
    core.transactions.begin("u")
    assert core.transactions.rollback("u") == core.transactions.rollback("u")
    with pytest.raises(TransitionRefused, match="is rolled-back, and cannot be committed"):
        core.transactions.commit("u")


def test_a_commit_takes_the_branches_that_it_names(core: Core) -> None:
    core.transactions.begin("t")
    core.transactions.add("t", "task 1", 0, "orders", [b"a", b"b"])
    core.transactions.add("t", "task 1, tried in vain", 0, "orders", [b"a"])
    core.transactions.add("t", "task 2", 0, "orders", [b"c"])
    with pytest.raises(TransitionRefused, match="has 2 messages, and the commit says 3") as refused:
        core.transactions.commit("t", {"task 1": 3, "task 2": 1})
    assert refused.value.is_incomplete
    core.transactions.commit("t", {"task 1": 2, "task 2": 1, "task 3": 0})
    assert core.stored("orders") == [b"a", b"b", b"c"]
    assert not core.transactions.half.held  # type: ignore[union-attr]


def test_a_batch_that_is_missing_is_an_error(core: Core) -> None:
    core.transactions.begin("t")
    with pytest.raises(TransitionRefused, match="has 0 batches, and batch 1 is added"):
        core.transactions.add("t", "b", 1, "orders", [b"one"])


def test_unknown_ones_and_bad_names(core: Core) -> None:
    for call in (core.transactions.commit, core.transactions.rollback, core.transactions.prepare):
        with pytest.raises(UnknownTransaction, match="there is no transaction 'x'"):
            call("x")
    with pytest.raises(NotFound):
        core.transactions.add("x", "b", 0, "orders", [b"one"])
    for id in ("", "x" * 256, "a\nb"):
        with pytest.raises(BadTransaction, match="printable"):
            core.transactions.begin(id)
    with pytest.raises(BadTransaction, match="group"):
        core.transactions.begin("x", "g" * 256)
    core.transactions.begin("x")
    with pytest.raises(BadTransaction, match="branch"):
        core.transactions.add("x", "b" * 65, 0, "orders", [b"one"])


def test_limits_are_named_and_lose_nothing() -> None:
    limits = TransactionLimits(max_open=1, max_bytes=1000, max_batches=2)
    core = Core(transactions=limits)
    core.transactions.begin("t")
    with pytest.raises(LimitReached, match="--max-transactions is 1"):
        core.transactions.begin("u")
    add(core, "t", "orders", b"one")
    with pytest.raises(BadTransaction, match="--max-transaction-bytes is 1000"):
        core.transactions.add("t", "b", 1, "orders", [b"x" * 1000])
    add(core, "t", "orders", b"two")
    with pytest.raises(BadTransaction, match="--max-transaction-sends is 2"):
        add(core, "t", "orders", b"three")
    core.transactions.commit("t")
    assert core.stored("orders") == [b"one", b"two"]
    core.transactions.begin("u")


def test_the_size_of_a_segment_head_is_limited() -> None:
    core = Core(segment_bytes=1 << 20)
    core.transactions.begin("t")
    for _ in range(1024):
        add(core, "t", "orders", b"one")
    with pytest.raises(LimitReached, match="what 1024 sends have added"):
        add(core, "t", "orders", b"one")
    core.transactions.commit("t")
    assert core.stored("orders") == [b"one"] * 1024


def test_properties_go_with_the_messages(core: Core) -> None:
    core.transactions.begin("t")
    some = Properties(tag="red", keys=("k",)).pack()
    core.transactions.add("t", "b", 0, "orders", [b"one", b"two", b"three"], [(1, some)])
    core.transactions.add("t", "b", 1, "orders", [b"four"], [(0, some)])
    core.transactions.commit("t")
    channel = core.broker.topic("orders").channel("c")
    properties = [channel.cursor.properties(offset) for offset in range(4)]
    assert properties == [b"", some, b"", some]


def test_large_ones_become_several_batches() -> None:
    core = Core(segment_bytes=1 << 20)
    core.transactions.begin("t")
    bodies = [b"%d" % n * 90_000 for n in range(10)]
    bodies += [b"small %d" % n for n in range(70_000)]
    for number, body in enumerate(bodies[:20]):
        core.transactions.add("t", "b", number, "orders", [body])
    core.transactions.add("t", "b", 20, "orders", bodies[20:])
    core.transactions.commit("t")
    index = core.topic("orders").queue.index
    assert index.end_row == 2
    assert core.broker.log.segments[-1].capacity > 1 << 21
    core.kill()
    assert core.stored("orders") == bodies
    core.checkpoint()
    core.kill()
    assert core.stored("orders") == bodies


# who is asked


def test_producers_are_asked_after_6_s_and_then_every_30_s_and_then_a_person(core: Core) -> None:
    groups: list[str] = []
    core.transactions.check_back.on_due = groups.append
    aside: list[str] = []
    core.transactions.on_set_aside = lambda transaction, why: aside.append(why)
    start_ns = core.clock.now_ns
    core.transactions.begin("t", "billing")
    add(core, "t", "orders", b"one")
    times = []
    for _ in range(2000):
        due_ns = core.broker.run()
        if due_ns is None:
            break
        core.wait(max(0, due_ns - core.clock.now_ns))
        if core.transactions.take_due("billing"):
            times.append((core.clock.now_ns - start_ns) // SECOND_NS)
        if core.transactions.state("t") is S.SET_ASIDE:
            break
    assert times == [6 + 30 * n for n in range(15)]
    assert groups == ["billing"] * 15
    assert core.transactions.state("t") is S.SET_ASIDE
    assert (core.clock.now_ns - start_ns) // SECOND_NS == 6 + 30 * 15
    assert aside == ["its producers were asked 15 times, and did not answer"]
    assert core.stored("transactions-set-aside") == [b"one"]
    assert core.stored("orders") == []
    # It is a person's now, and its producer's still.
    core.kill(power=False)
    assert core.transactions.state("t") is S.SET_ASIDE
    assert core.broker.run() is None
    core.transactions.commit("t")
    assert core.stored("orders") == [b"one"]


def test_a_producer_that_is_heard_of_is_not_asked(core: Core) -> None:
    core.transactions.begin("t", "billing")
    for _ in range(5):
        core.wait(5 * SECOND_NS)
        add(core, "t", "orders", b"one")
        assert core.transactions.take_due("billing") == []
    core.wait(6 * SECOND_NS)
    assert core.transactions.state("t") is S.SILENT
    add(core, "t", "orders", b"late")
    assert core.transactions.state("t") is S.OPEN
    assert core.transactions.take_due("billing") == []
    core.transactions.prepare("t")
    core.wait(6 * SECOND_NS)
    assert core.transactions.state("t") is S.IN_DOUBT
    assert [transaction.id for transaction in core.transactions.take_due("billing")] == ["t"]
    with pytest.raises(TransitionRefused, match="is in-doubt, and cannot be added to"):
        add(core, "t", "orders", b"more")
    core.transactions.commit("t")


def test_a_transaction_has_its_own_time(core: Core) -> None:
    core.transactions.begin("slow", "billing", check_after_ns=60 * SECOND_NS)
    core.wait(59 * SECOND_NS)
    assert core.transactions.take_due("billing") == []
    core.wait(SECOND_NS)
    assert len(core.transactions.take_due("billing")) == 1


def test_nothing_is_counted_while_the_group_is_empty(core: Core) -> None:
    core.transactions.begin("t", "billing")
    core.wait(3600 * SECOND_NS)
    assert core.transactions.state("t") is S.SILENT
    taken = core.transactions.take_due("billing")
    assert [transaction.checks for transaction in taken] == [1]
    assert core.transactions.take_due("billing") == []
    assert core.transactions.take_due("other") == []
    core.wait(71 * 3600 * SECOND_NS)
    assert core.transactions.state("t") is S.SET_ASIDE


def test_without_a_group_a_person_is_asked(core: Core) -> None:
    core.transactions.begin("t")
    core.wait(6 * SECOND_NS)
    assert core.transactions.state("t") is S.SILENT
    core.wait(15 * 30 * SECOND_NS)
    assert core.transactions.state("t") is S.SET_ASIDE


def test_a_transaction_is_moved_aside_when_there_is_space() -> None:
    core = Core(transactions=TransactionLimits(check_every_ns=SECOND_NS, max_checks=1))
    add(core, "t", "orders", b"one")
    core.broker.settings.max_topics = 1
    core.broker.topic("other")
    core.wait(10 * SECOND_NS)
    assert core.transactions.state("t") is S.SILENT
    core.broker.settings.max_topics = 0
    core.wait(SECOND_NS)
    assert core.transactions.state("t") is S.SET_ASIDE


# storage


def test_outcomes_are_remembered_for_a_time_and_up_to_a_number() -> None:
    limits = TransactionLimits(max_outcomes=3, remembered_ns=100 * SECOND_NS)
    core = Core(transactions=limits)
    for number in range(5):
        core.transactions.begin(f"t{number}")
        core.transactions.commit(f"t{number}")
    assert core.transactions.state("t2") is S.COMMITTED
    with pytest.raises(UnknownTransaction, match="ended too long ago"):
        core.transactions.state("t1")
    core.clock.advance(101 * SECOND_NS)
    core.transactions.begin("later")
    core.transactions.commit("later")
    with pytest.raises(UnknownTransaction):
        core.transactions.state("t4")


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_start_finds_each_where_it_was(core: Core, checkpoint: bool) -> None:
    for id in ("open", "prepared", "committed", "rolled back", "empty"):
        core.transactions.begin(id, "billing")
        if id != "empty":
            add(core, id, "orders", b"of %b" % id.encode())
    core.transactions.prepare("prepared", {"b": 1})
    core.transactions.commit("committed")
    core.transactions.rollback("rolled back")
    if checkpoint:
        core.checkpoint()
    core.kill(power=False)
    assert {id: core.transactions.state(id) for id in ("open", "prepared", "empty")} == {
        "open": S.OPEN,
        "prepared": S.PREPARED,
        "empty": S.OPEN,
    }
    assert core.transactions.state("committed") is S.COMMITTED
    assert core.transactions.state("rolled back") is S.ROLLED_BACK
    assert core.stored("orders") == [b"of committed"]
    assert core.transactions.commit("committed").state is S.COMMITTED
    core.wait(5 * SECOND_NS)
    assert core.transactions.take_due("billing") == []
    core.wait(SECOND_NS)
    assert {transaction.id for transaction in core.transactions.take_due("billing")} == {
        "open",
        "prepared",
        "empty",
    }
    add(core, "open", "orders", b"more")
    core.transactions.commit("open", {"b": 2})
    core.transactions.commit("prepared")
    assert core.stored("orders") == [
        b"of committed",
        b"of open",
        b"more",
        b"of prepared",
    ]


def test_half_messages_keep_their_own_segments_and_no_others(core: Core) -> None:
    consumer = core.client("orders", "a").ready(1000)
    core.transactions.begin("forgotten")
    add(core, "forgotten", "orders", b"still here")
    for round in range(30):
        core.transactions.begin(f"t{round}")
        core.transactions.add(f"t{round}", "b", 0, "orders", [b"x" * 500] * 4)
        (core.transactions.rollback if round % 2 else core.transactions.commit)(f"t{round}")
        consumer.finish()
        consumer.got.clear()
        core.broker.write_journal()
        core.checkpoint()
    assert len(core.broker.log.segments) < 8
    core.kill(power=False)
    core.transactions.commit("forgotten")
    assert core.stored("orders")[-1:] == [b"still here"]


def test_a_full_disk_refuses_and_leaves_all_as_it_was(core: Core) -> None:
    core.broker.topic("orders").channel("kept")
    add(core, "t", "orders", b"x" * 3000)
    core.storage.capacity_bytes = core.storage.used_bytes + 100
    with pytest.raises(WritesRefused, match="disk is full"):
        core.transactions.commit("t", {"b": 1})
    assert core.transactions.state("t") is S.OPEN
    core.storage.capacity_bytes = None
    core.transactions.commit("t", {"b": 1})
    assert core.stored("orders") == [b"x" * 3000]


def test_one_that_is_committed_at_once_is_stored_once(core: Core) -> None:
    orders = core.client("orders", "c").ready(10)
    some = Properties(tag="red").pack()
    core.transactions.commit_at_once("t", "orders", [b"one", b"two"], [(1, some)])
    assert orders.bodies == [b"one", b"two"]
    assert core.transactions.half is None
    assert core.transactions.state("t") is S.COMMITTED
    with pytest.raises(TransitionRefused, match="cannot be rolled back"):
        core.transactions.rollback("t")
    core.kill(power=False)
    core.transactions.commit_at_once("t", "orders", [b"one", b"two"])
    assert core.stored("orders") == [b"one", b"two"]
    channel = core.broker.topic("orders").channel("c")
    assert [channel.cursor.properties(offset) for offset in (0, 1)] == [b"", some]


def test_commits_describe_a_topic_until_a_description_is_durable(core: Core) -> None:
    """One behind the flush under way put it off, and under load there was always one."""
    log = core.broker.log
    core.transactions.commit_at_once("t", "orders", [b"one"])
    job = log.flush_job()
    core.transactions.commit_at_once("u", "orders", [b"two"])
    topics = [core.topic("orders")]
    assert core.transactions.messages.undescribed(topics)
    job.run()
    log.flushed(job)
    assert core.transactions.messages.undescribed(topics) == ()


def test_what_cannot_be_committed_at_once(core: Core) -> None:
    core.transactions.begin("t")
    with pytest.raises(TransitionRefused, match="was begun before, and is open"):
        core.transactions.commit_at_once("t", "orders", [b"one"])
    core.transactions.rollback("t")
    with pytest.raises(BadTransaction, match="printable"):
        core.transactions.commit_at_once("", "orders", [b"one"])
    core.storage.capacity_bytes = core.storage.used_bytes + 100
    with pytest.raises(WritesRefused, match="disk is full"):
        core.transactions.commit_at_once("t", "orders", [b"x" * 3000])
    core.storage.capacity_bytes = None
    assert core.transactions.state("t") is S.ROLLED_BACK
    core.transactions.commit_at_once("t", "orders", [b"x" * 3000])
    assert core.stored("orders") == [b"x" * 3000]


def test_delayed_messages_of_one_committed_at_once_wait(core: Core) -> None:
    at_ns = core.clock() + SECOND_NS
    bodies = [b"now", b"later"]
    core.transactions.commit_at_once("t", "orders", bodies, times=[(0, 1), (at_ns, 1)])
    assert core.stored("orders") == [b"now"]
    core.wait(2 * SECOND_NS)
    assert core.stored("orders") == [b"now", b"later"]


def test_a_topic_that_was_deleted_is_made_again(core: Core) -> None:
    core.transactions.begin("t")
    core.broker.topic("orders")
    add(core, "t", "orders", b"one")
    core.broker.delete_topic("orders")
    core.transactions.commit("t")
    assert core.stored("orders") == [b"one"]


def test_several_queues_get_their_messages(core: Core) -> None:
    core.broker.set_queues("orders", 3)
    core.transactions.begin("t")
    for number, queue in enumerate((2, 0, 2)):
        core.transactions.add("t", "b", number, "orders", [b"q%d" % queue], queue=queue)
    core.transactions.commit("t")
    core.kill(power=False)
    ends = [part.queue.end_offset for part in core.topic("orders").at_queues]
    assert ends == [1, 0, 2]


# the table


def test_nothing_but_commit_and_nothing_after_it() -> None:
    assert set(TABLE) == set(TransactionState)
    for state, row in TABLE.items():
        for event, then in row.items():
            assert (then is S.COMMITTED) == (
                event is TransactionEvent.COMMIT or state is S.COMMITTED
            )
    assert set(TABLE[S.COMMITTING].values()) == {S.COMMITTING, S.COMMITTED}
    assert set(TABLE[S.COMMITTED].values()) == {S.COMMITTED}
    reachable, ahead = set(), {S.OPEN}
    while ahead:
        reachable |= ahead
        ahead = {then for state in ahead for then in TABLE[state].values()} - reachable
    # A large commit is under way once its first messages are stored: no event leads there.
    assert reachable == set(TransactionState) - {S.COMMITTING}
    for state in reachable - {S.COMMITTED, S.ROLLED_BACK}:
        assert {TransactionEvent.COMMIT, TransactionEvent.ROLLBACK} <= set(TABLE[state])
    # A transaction that is asked about can be rolled back.
    assert {s for s in reachable if TransactionEvent.CHECK in TABLE[s]} == {
        s for s in reachable if TransactionEvent.GIVE_UP in TABLE[s]
    }


# power cuts


@pytest.mark.parametrize("seed", range(60))
def test_commits_at_once_have_their_topic_or_are_gone_after_a_power_cut(seed: int) -> None:
    core = Core()
    core.storage.random = random = Random(seed)
    log = core.broker.log
    count, durable = 8, 0
    for number in range(count):
        job = log.flush_job() if random.random() < 0.5 else None
        core.transactions.commit_at_once(
            f"t{number}", f"topic{random.randrange(3)}", [b"%d" % number] * 2
        )
        if job is not None:
            job.run()
            log.flushed(job)
            durable = number
    core.kill(power=True)
    seen = [body for n in range(3) for body in core.stored(f"topic{n}")]
    for number in range(count):
        is_committed = core.transactions.committed(f"t{number}") is not None
        assert seen.count(b"%d" % number) == 2 * is_committed
        assert is_committed or number >= durable


def test_a_commit_holds_though_its_segment_was_freed_before_a_checkpoint(
    core: Core,
) -> None:
    Eviction(core.broker, core.flush_now)
    add(core, "t", "orders", b"one")
    core.checkpoint()
    core.transactions.commit("t", {"b": 1})
    committed_at = core.broker.log.position
    core.storage.capacity_bytes = core.storage.used_bytes + 3 * core.segment_bytes
    core.fill("filling", 14)
    assert core.broker.log.find(committed_at) is None
    assert core.broker.log.checkpointed_position < committed_at
    core.kill()
    assert core.transactions.state("t") is S.COMMITTED
    assert core.transactions.commit("t", {"b": 1}).state is S.COMMITTED
    core.kill(power=True)
    assert core.transactions.state("t") is S.COMMITTED


def test_a_full_disk_that_drops_the_oldest_drops_no_part_of_a_transaction(core: Core) -> None:
    Eviction(core.broker, core.flush_now)
    add(core, "t", "orders", b"x" * 1000)
    core.storage.capacity_bytes = core.storage.used_bytes + 4 * core.segment_bytes
    core.fill("filling", 12)
    add(core, "t", "orders", b"y")
    with pytest.raises(TransitionRefused, match="messages of transaction 't' are lost") as refused:
        core.transactions.commit("t")
    assert refused.value.is_incomplete
    core.kill()
    with pytest.raises(TransitionRefused, match="lost"):
        core.transactions.commit("t")
    core.transactions.rollback("t")
    assert core.stored("orders") == []


def test_a_beginning_that_a_batch_describes_survives_without_an_entry(core: Core) -> None:
    position = core.broker.log.position
    assert core.transactions.begin("t", "g", 9 * SECOND_NS, is_recorded=False) is S.OPEN
    assert core.broker.log.position == position
    add(core, "t", "orders", b"one")
    core.kill()
    transaction = core.transactions.find("t")
    assert (transaction.group, transaction.check_after_ns, transaction.state) == (
        "g",
        9 * SECOND_NS,
        S.OPEN,
    )
    assert core.transactions.commit("t", {"b": 1}).state is S.COMMITTED
    assert core.stored("orders") == [b"one"]


def test_a_beginning_is_recorded_where_nothing_could_be_added(core: Core) -> None:
    core.transactions.begin("t", is_recorded=False)
    with pytest.raises(TransitionRefused):
        core.transactions.add("t", "b", 1, "orders", [b"one"])
    core.transactions.record("t")
    core.kill()
    assert core.transactions.state("t") is S.OPEN
    assert core.transactions.rollback("t").state is S.ROLLED_BACK


def test_a_beginning_that_cannot_be_recorded_is_none(core: Core) -> None:
    core.transactions.begin("t", is_recorded=False)
    core.broker.log.failed = "the disk is gone"
    with pytest.raises(WritesRefused):
        core.transactions.record("t")
    with pytest.raises(UnknownTransaction):
        core.transactions.state("t")
    assert not core.transactions.open
