"""A large transaction is committed in steps: readers see all of it at once, after any crash."""

from __future__ import annotations

from random import Random

import pytest
from tests.property.log.feed import feed
from tests.unit.broker.core import Core, bodies_of

from martlet.broker.recovery.restore import BrokerRecovery
from martlet.broker.transactions.state import (
    CommitSequence,
    StillCommitting,
    TransactionLimits,
    TransactionState,
    TransitionRefused,
)
from martlet.log.copy import open_copy
from martlet.properties.model import Properties
from martlet.testing import SimulatedStorage

LIMITS = TransactionLimits(bundle_bytes=400)
TOPICS = "orders", "bills"
BATCHES = 12
STEP_NS = 10_000_000
S = TransactionState


@pytest.fixture
def core() -> Core:
    return Core(transactions=LIMITS)


def stage(core: Core, id: str = "t", sequence: CommitSequence | None = None) -> None:
    """Stage a transaction that takes several bundles, for two topics in turns."""
    core.transactions.begin(id, sequence=sequence, is_disposable=sequence is not None)
    for number in range(BATCHES):
        bodies = [b"%d.%d " % (number, i) + b"x" * 20 for i in range(3)]
        core.transactions.add(id, "b", number, TOPICS[number % 2], bodies)


def staged(topic: str) -> list[bytes]:
    """The bodies that `stage` has staged for a topic."""
    numbers = range(TOPICS.index(topic), BATCHES, 2)
    return [b"%d.%d " % (number, i) + b"x" * 20 for number in numbers for i in range(3)]


def is_under_way(core: Core) -> bool:
    return core.transactions.large_commit is not None


def begin_commit(core: Core, id: str = "t") -> None:
    with pytest.raises(StillCommitting) as flush:
        core.transactions.commit(id)
    assert flush.value.needs_flush
    core.flush()
    with pytest.raises(StillCommitting, match="is being committed") as under_way:
        core.transactions.commit(id)
    assert not under_way.value.needs_flush


def end_commit(core: Core) -> int:
    """Let the commit end. Returns the number of steps."""
    steps = 0
    while is_under_way(core):
        core.flush()
        core.wait(STEP_NS)
        steps += 1
        assert steps < 1000
    return steps


def visible(core: Core, topic: str) -> list[bytes]:
    """The bodies that readers see of a topic."""
    queue_topic = core.broker.topics.get(topic)
    if queue_topic is None:
        return []
    queue = queue_topic.queue
    return bodies_of(core.broker, queue_topic)[: max(0, queue.visible_end - queue.start_offset)]


def all_visible(core: Core) -> dict[str, list[bytes]]:
    return {topic: visible(core, topic) for topic in TOPICS}


NONE: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
ALL = {topic: staged(topic) for topic in TOPICS}


def test_readers_see_nothing_of_it_before_all(core: Core) -> None:
    stage(core)
    client = core.client("orders").ready(100)
    begin_commit(core)
    steps = 0
    while is_under_way(core):
        assert all_visible(core) == NONE
        assert client.got == []
        assert core.transactions.state("t") is S.COMMITTING
        core.flush()
        core.wait(STEP_NS)
        steps += 1
    assert steps >= 3
    assert all_visible(core) == ALL
    assert client.bodies == ALL["orders"]
    assert core.transactions.commit("t").state is S.COMMITTED
    assert not core.transactions.half.held  # type: ignore[union-attr]


def test_messages_that_arrive_meanwhile_come_behind_it_or_between_and_are_shown_with_it(
    core: Core,
) -> None:
    stage(core)
    core.publish("orders", b"before")
    client = core.client("orders").ready(100)
    begin_commit(core)
    core.publish("orders", b"staged")
    core.broker.append(core.topic("orders"), b"lone")
    core.publish("elsewhere", b"at once")
    assert visible(core, "orders") == [b"before"]
    assert visible(core, "elsewhere") == [b"at once"]
    end_commit(core)
    later = visible(core, "orders")
    assert later[0] == b"before"
    assert sorted(later[1:]) == sorted([*ALL["orders"], b"staged", b"lone"])
    assert [body for body in later if body.endswith(b"x")] == ALL["orders"]
    assert client.bodies == later


def test_its_messages_are_on_the_disk_before_it_is_decided_and_all_but_the_last_before_its_end(
    core: Core,
) -> None:
    stage(core)
    begin_commit(core)
    flushes: list[None] = []
    core.transactions.on_unflushed = lambda: flushes.append(None)
    for _ in range(100):
        core.wait(STEP_NS)
    assert flushes
    assert is_under_way(core)
    core.flush()
    core.wait(STEP_NS)
    assert not is_under_way(core)
    assert all_visible(core) == ALL


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_a_restart_goes_on_with_it(core: Core, steps: int, power: bool) -> None:
    stage(core)
    begin_commit(core)
    for _ in range(steps):
        core.wait(STEP_NS)
    core.flush()
    core.kill(power=power)
    if is_under_way(core):
        assert all_visible(core) == NONE
    client = core.client("orders").ready(100)
    end_commit(core)
    assert all_visible(core) == ALL
    assert client.bodies == ALL["orders"]
    core.kill()
    assert core.transactions.commit("t").state is S.COMMITTED
    assert all_visible(core) == ALL


@pytest.mark.parametrize("seed", range(60))
def test_power_cuts_at_any_moment_leave_all_of_it_or_nothing(seed: int) -> None:
    random = Random(seed)
    core = Core(transactions=LIMITS, segment_bytes=random.choice([2048, 4096, 1 << 16]))
    core.storage.random.seed(seed)
    for topic in TOPICS:
        core.channel(topic)
    stage(core)
    core.flush()
    with pytest.raises(StillCommitting):
        core.transactions.commit("t")
    for _ in range(3):
        for _ in range(random.randrange(8)):
            core.wait(STEP_NS)
            core.publish("filling", b"y" * random.randrange(1, 1500))
            if random.random() < 0.3:
                core.flush()
        core.kill(power=True)
        if core.transactions.state("t") is S.COMMITTED:
            break
        assert all_visible(core) == NONE
        core.flush()
        with pytest.raises(StillCommitting):
            core.transactions.commit("t")
    end_commit(core)
    # Channels get what is stored before a gap, which a lost bundle leaves, and readers do not.
    clients = {topic: core.client(topic).ready(1000) for topic in TOPICS}
    bodies = {topic: sorted(client.bodies) for topic, client in clients.items()}
    assert bodies == {topic: sorted(bodies) for topic, bodies in ALL.items()}


def test_nothing_undoes_it_or_adds_to_it(core: Core) -> None:
    stage(core)
    begin_commit(core)
    assert core.transactions.begin("t") is S.COMMITTING
    for refused in (
        lambda: core.transactions.rollback("t"),
        lambda: core.transactions.prepare("t"),
        lambda: core.transactions.add("t", "b", BATCHES, "orders", [b"late"]),
    ):
        with pytest.raises(TransitionRefused, match="'t' is committing, and cannot be"):
            refused()
    core.wait(400 * 24 * 3600 * 10**9)
    end_commit(core)
    assert all_visible(core) == ALL


def test_a_repeated_batch_of_its_series_is_committed_and_others_wait(core: Core) -> None:
    stage(core, sequence=CommitSequence("job", 7))
    begin_commit(core)
    assert core.transactions.begin("again", sequence=CommitSequence("job", 7)) is S.COMMITTED
    with pytest.raises(StillCommitting):
        core.transactions.commit("unknown", sequence=CommitSequence("job", 7))
    assert core.transactions.begin("next", sequence=CommitSequence("job", 8)) is S.OPEN
    with pytest.raises(StillCommitting):
        core.transactions.commit("next")
    stage(core, "u")
    core.flush()
    with pytest.raises(StillCommitting, match="'t'"):
        core.transactions.commit("u")
    end_commit(core)
    repeated = core.transactions.commit("unknown", sequence=CommitSequence("job", 7))
    assert repeated.is_repeated
    assert core.transactions.commit("next").state is S.COMMITTED
    core.transactions.rollback("u")
    assert all_visible(core) == ALL


def test_a_full_disk_stops_it_until_there_is_space(core: Core) -> None:
    stage(core)
    begin_commit(core)
    core.fill_disk()
    for _ in range(BATCHES):
        core.flush()
        core.wait(2 * 10**9)
    with pytest.raises(StillCommitting, match="goes on when that has ended"):
        core.transactions.commit("t")
    assert all_visible(core) == NONE
    core.storage.capacity_bytes = 1 << 40
    core.wait(2 * 10**9)
    end_commit(core)
    assert all_visible(core) == ALL


def test_messages_that_were_lost_before_the_decision_refuse_it(core: Core) -> None:
    stage(core)
    core.flush()
    half = core.transactions.half
    assert half is not None
    core.damage(half.queue.index.row(half.queue.index.first_row).position)
    core.kill()
    with pytest.raises(TransitionRefused, match="roll it back"):
        core.transactions.commit("t")
    assert not is_under_way(core)
    assert all_visible(core) == NONE
    core.publish("orders", b"shown")
    assert visible(core, "orders") == [b"shown"]


def test_branches_that_it_does_not_name_are_left_out(core: Core) -> None:
    stage(core)
    core.transactions.add("t", "in vain", 0, "orders", [b"no"])
    core.flush()
    with pytest.raises(TransitionRefused, match="and the commit says"):
        core.transactions.commit("t", {"b": 1})
    with pytest.raises(StillCommitting):
        core.transactions.commit("t", {"b": 3 * BATCHES, "none": 0})
    core.kill()
    end_commit(core)
    assert all_visible(core) == ALL


def test_properties_and_delayed_messages_come_too(core: Core) -> None:
    core.transactions.begin("t")
    due_ns = core.clock.wall() + 10 * 10**9
    for number in range(6):
        entries = [(0, Properties(tag=f"tag{number}").pack())]
        core.transactions.add("t", "b", number, "orders", [b"x" * 150], entries)
    core.transactions.add("t", "b", 6, "orders", [b"y" * 150], times=[(due_ns, 1)])
    core.flush()
    with pytest.raises(StillCommitting):
        core.transactions.commit("t")
    client = core.client("orders").ready(100)
    end_commit(core)
    assert client.bodies == [b"x" * 150] * 6
    cursor = client.channel.cursor
    tags = [Properties.unpack(cursor.properties(offset)).tag for offset in range(6)]
    assert tags == [f"tag{number}" for number in range(6)]
    core.wait(11 * 10**9)
    assert client.bodies[6:] == [b"y" * 150]


def test_with_replicas_it_is_shown_once_its_end_is_confirmed(core: Core) -> None:
    core.broker.topic("orders")
    core.broker.await_confirmation(core.broker.log.position)
    stage(core)
    core.broker.confirm(core.broker.log.position)
    core.flush()
    with pytest.raises(StillCommitting):
        core.transactions.commit("t")
    confirmed: list[int] = []
    while is_under_way(core):
        confirmed.append(core.broker.log.position)
        core.flush()
        core.wait(STEP_NS)
    stage(core, "u")
    core.flush()
    with pytest.raises(StillCommitting, match="waits until replicas"):
        core.transactions.commit("u")
    for position in confirmed:
        core.broker.confirm(position)
        assert all_visible(core) == NONE
    core.broker.confirm(core.broker.log.position)
    assert all_visible(core) == ALL
    with pytest.raises(StillCommitting, match="is being committed"):
        core.transactions.commit("u")
    assert all_visible(core) == ALL


def test_readers_of_a_standby_see_nothing_of_it_before_all(core: Core) -> None:
    stage(core)
    begin_commit(core)
    copy, _ = open_copy(SimulatedStorage(Random(1)))
    recovery = BrokerRecovery(copy.storage, copy.segments, core.segment_bytes, copy=copy)
    ends: list[int] = []
    while True:
        feed(core.broker.log, copy, Random(1))
        recovery.follow(copy.end_position)
        ends.append(recovery.find_topic("orders").queue.visible_end)
        if not is_under_way(core):
            break
        core.flush()
        core.wait(STEP_NS)
    assert ends == [0] * (len(ends) - 1) + [len(ALL["orders"])]
