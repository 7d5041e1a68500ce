"""What an operator does with a replica set, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from martlet.replica.replica_set import Presence, ReplicaSet, Seen
from martlet.server.metadata.sqlite_store import SqliteStore
from martlet.server.metadata.store import SwapUnclear
from martlet.server.replication.operations import OperationRefused, Operations

ADDRESSES = {name: f"10.0.0.{number}:4153" for number, name in enumerate("abcde")}


class Operator:
    """Operations on a store whose replicas are played by the test."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.wait(30)

    def wait(self, limit_s: float) -> None:
        """Wait no longer for a replica: a test of a refusal needs not wait long."""
        self.do = Operations(self.store, limit_s)

    async def announce(self, names: str, **fields: object) -> None:
        for name in names:
            presence = Presence(address=ADDRESSES[name], role="standby", broker="id")
            await self.store.announce(name, replace(presence, **fields))  # type: ignore[arg-type]

    async def set_of(self, names: str, in_sync: str) -> ReplicaSet:
        """Make a replica set whose primary is the first one."""
        replicas = {name: ADDRESSES[name] for name in names}
        replica_set = ReplicaSet.first(names[0], replicas, broker="id").elected(names[0])
        replica_set = replica_set.with_in_sync(frozenset(in_sync))
        assert await self.store.swap(replica_set, 0)
        await self.announce(names, epoch=1)
        return replica_set

    async def create(self, names: str, copies: int | None = None) -> ReplicaSet:
        return await self.do.create(names, copies=copies, min_in_sync=None)

    async def recreate(self, names: str, min_in_sync: int | None = None) -> ReplicaSet:
        return await self.do.recreate(names, min_in_sync=min_in_sync)

    async def answer(self, change: Callable[[ReplicaSet], ReplicaSet | None]) -> None:
        """Be the primary: change the document as soon as it asks for something."""
        while True:
            seen = await self.store.read()
            assert seen.replica_set is not None
            changed = change(seen.replica_set)
            if changed is not None:
                assert await self.store.swap(changed, seen.version)
                return
            await asyncio.sleep(0.01)


async def refused(operation: Awaitable[object], why: str) -> None:
    with pytest.raises(OperationRefused, match=why):
        await operation


@pytest.fixture
async def operator(tmp_path: Path) -> AsyncIterator[Operator]:
    # Its clock stands still: on a slow machine no presence expires in the middle of a test.
    store = SqliteStore(tmp_path / "replicas.db", "martlet", clock_ns=lambda: 0)
    yield Operator(store)
    await store.close()


async def test_a_set_is_made_of_running_replicas(operator: Operator) -> None:
    await operator.announce("a", broker="id", end_position=5000, log_epoch=3)
    await operator.announce("bc", broker="")
    replica_set = await operator.do.create("abc", copies=None, min_in_sync=1)
    assert replica_set == ReplicaSet.first(
        "a", {name: ADDRESSES[name] for name in "abc"}, broker="id", epoch=3, min_in_sync=1
    )
    assert (await operator.store.read()).replica_set == replica_set
    await refused(operator.create("abc"), "there is a replica set already, of a, b, c")


async def test_a_new_set_gives_all_the_id_of_one_broker(operator: Operator) -> None:
    await operator.announce("ab", broker="")
    replica_set = await operator.create("ab")
    assert len(replica_set.broker) == 32


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"epoch": 4}, "has been in a replica set, up to epoch 4"),
        ({"broker": "other"}, "is that of another broker"),
        ({"end_position": 100}, "has messages, which the log of a would replace"),
    ],
)
async def test_no_set_is_made_at_the_cost_of_messages(
    operator: Operator, fields: dict[str, object], why: str
) -> None:
    await operator.announce("ac")
    await operator.announce("b", **fields)
    await refused(operator.create("abc"), f"b .*{why}")
    assert (await operator.store.read()).replica_set is None


async def test_a_replica_that_does_not_run_is_named(operator: Operator) -> None:
    operator.wait(0.1)
    await operator.announce("a")
    await refused(operator.create("abc"), "b, c are not running in this replica set:")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (0, "the metadata store has not answered, so nothing is known of the replicas"),
        (1, "b is not running .*the metadata store does not answer now"),
    ],
)
async def test_a_replica_is_not_called_absent_where_the_store_does_not_answer(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, answers: int, why: str
) -> None:
    operator.wait(0.5)
    await operator.announce("a")
    read = iter([await operator.store.read()] * answers)

    async def slow_read() -> Seen:
        seen = next(read, None)
        return seen if seen is not None else await asyncio.Future()

    monkeypatch.setattr(operator.store, "read", slow_read)
    await refused(operator.do.create("ab", copies=None, min_in_sync=None), why)


async def test_more_copies_than_replicas_are_refused(operator: Operator) -> None:
    await operator.announce("ab")
    await refused(operator.create("ab", copies=3), "3 copies wanted")


async def test_a_replica_is_added_and_the_majority_is_kept(operator: Operator) -> None:
    await operator.set_of("abc", "abc")
    await operator.announce("de", broker="")
    assert (await operator.do.add("d")).wanted_copies == 3
    replica_set = await operator.do.add("e")
    assert (replica_set.wanted_copies, replica_set.min_in_sync, replica_set.copies) == (3, 3, 2)
    assert replica_set.replicas == ADDRESSES
    await refused(operator.do.add("e"), "e is a replica already")


async def test_a_replica_of_another_broker_is_not_added(operator: Operator) -> None:
    await operator.set_of("ab", "ab")
    await operator.announce("c", broker="other")
    await refused(operator.do.add("c"), "data folder of c is that of another broker")


async def test_a_replica_is_removed_once_it_is_out_of_sync(operator: Operator) -> None:
    await operator.set_of("abc", "abc")

    def let_go(replica_set: ReplicaSet) -> ReplicaSet | None:
        is_asked = bool(replica_set.leaving)
        return replica_set.with_in_sync(replica_set.in_sync - {"c"}) if is_asked else None

    primary = asyncio.create_task(operator.answer(let_go))
    replica_set = await operator.do.remove("c")
    await primary
    assert (set(replica_set.replicas), replica_set.leaving) == ({"a", "b"}, frozenset())
    assert (replica_set.wanted_copies, replica_set.min_in_sync) == (2, 2)


async def test_a_replica_that_the_primary_keeps_is_not_removed(operator: Operator) -> None:
    before = await operator.set_of("abc", "abc")
    operator.wait(1)
    await refused(operator.do.remove("c"), r"did not take c out of sync.*waited 1 s")
    assert (await operator.store.read()).replica_set == before
    await refused(operator.do.remove("a"), "a is the primary: first make another")
    await refused(operator.do.remove("x"), "x is no member of the replica set")


async def test_a_removal_that_was_begun_and_not_finished_is_taken_back(operator: Operator) -> None:
    """The command that removes it was killed: its replica would never be in sync again."""
    replica_set = await operator.set_of("abc", "ab")
    assert await operator.store.swap(replica_set.with_leaving("c"), 1)
    assert await operator.do.add("c") == replica_set
    await refused(operator.do.add("c"), "c is a replica already")


async def test_the_most_complete_replica_takes_over(operator: Operator) -> None:
    await operator.set_of("abc", "abc")
    await operator.announce("b", end_position=100)
    await operator.announce("c", end_position=200)

    def hand_over(replica_set: ReplicaSet) -> ReplicaSet | None:
        return replica_set.elected(replica_set.hand_over_to) if replica_set.hand_over_to else None

    primary = asyncio.create_task(operator.answer(hand_over))
    going = asyncio.create_task(operator.do.hand_over())
    await primary
    await operator.announce("c", role="primary")
    assert (await going).primary == "c"
    await refused(operator.do.hand_over("c"), "c is the primary already")


async def test_a_hand_over_that_the_primary_refuses_has_failed(operator: Operator) -> None:
    replica_set = await operator.set_of("abc", "ab")
    assert await operator.store.swap(replica_set.with_replica("d", ADDRESSES["d"]), 1)
    await refused(operator.do.hand_over("c"), "c is not in sync, and lacks messages")
    await refused(operator.do.hand_over("d"), "d is not in sync, and is not running")

    def refuse(replica_set: ReplicaSet) -> ReplicaSet | None:
        return replica_set.with_hand_over(None) if replica_set.hand_over_to else None

    primary = asyncio.create_task(operator.answer(refuse))
    await refused(operator.do.hand_over("b"), "a is the primary: b was not ready")
    await primary


async def test_a_hand_over_of_a_dead_primary_is_taken_back(operator: Operator) -> None:
    before = await operator.set_of("ab", "ab")
    operator.wait(1)
    await refused(operator.do.hand_over("b"), "a, the primary, did not answer")
    assert (await operator.store.read()).replica_set == before


async def test_a_replica_is_forced(operator: Operator) -> None:
    await operator.set_of("abc", "ab")
    await operator.announce("c", epoch=0)
    await refused(operator.do.force("c"), "c has an empty data folder")
    await operator.announce("c", epoch=1)
    replica_set = await operator.do.force("c")
    assert (replica_set.primary, replica_set.epoch, replica_set.is_forced) == ("c", 2, True)
    assert (set(replica_set.in_sync), replica_set.copies, replica_set.min_in_sync) == ({"c"}, 1, 1)


async def test_who_is_no_member_is_not_waited_for_and_the_members_are_named(
    operator: Operator,
) -> None:
    await operator.set_of("abc", "ab")
    await operator.announce("d", epoch=1)
    for name in "dz":
        for action in (operator.do.force, operator.do.remove, operator.do.hand_over):
            why = f"^{name} is no member of the replica set: its members are a, b, c$"
            await refused(action(name), why)


async def test_a_lost_document_is_made_anew_above_all_pledges(operator: Operator) -> None:
    await operator.announce("ac", epoch=7)
    await operator.announce("b", epoch=6)
    replica_set = await operator.recreate("abc")
    assert (replica_set.epoch, replica_set.primary, replica_set.copies) == (8, None, 1)
    assert replica_set.in_sync == frozenset("abc")
    assert replica_set.quorum.answers_needed == 3, "whoever has most is among them"


async def test_a_set_that_was_made_anew_names_the_replica_that_keeps_it_from_a_primary(
    operator: Operator,
) -> None:
    """All must answer, and one that died at once was not named."""
    operator.wait(0.1)
    replicas = {name: ADDRESSES[name] for name in "abc"}
    made = ReplicaSet.recreated(replicas, broker="id", epoch=7)
    assert await operator.store.swap(made, 0)
    await operator.announce("ab", epoch=7)
    await refused(
        operator.do.until_primary(made),
        r"all of a, b, c must answer before one is elected, and c is not running: start each"
        r" again, or, .*martlet replicas force NAME --accept-loss",
    )
    await operator.announce("c", epoch=7)
    await refused(operator.do.until_primary(made), "all are running: see `martlet replicas show`")
    operator.wait(30)
    assert await operator.store.swap(made.elected("a"), 1)
    await operator.announce("a", epoch=8, role="primary")
    await operator.do.until_primary(made)


async def test_a_set_that_is_made_anew_can_be_asked_for_again(operator: Operator) -> None:
    """A replica died in the middle: the command was refused ever after."""
    await operator.announce("abc", epoch=7)
    made = await operator.recreate("abc", 1)
    assert await operator.recreate("abc", 1) == made
    # The others have tried, and it is back.
    tried = made.elected("a").elected("b")
    assert await operator.store.swap(tried, 1)
    await operator.announce("ab", epoch=10, role="candidate")
    why = r"of a, b, c, and it has no primary: .*replicas force NAME"
    await refused(operator.recreate("ab", 1), why)
    assert await operator.recreate("abc", 1) == tried
    await operator.announce("b", epoch=10, role="primary")
    await operator.do.until_primary(tried)
    await refused(operator.recreate("abc", 1), "the replica set is there, at epoch 10")


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_set_whose_swap_was_answered_late_is_not_written_again(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Its replicas went on from it: another swap would have set their epoch back."""
    swap = operator.store.swap

    async def unclear(document: ReplicaSet, version: int) -> int | None:
        assert await swap(document, version)
        assert await swap(document.elected("a"), version + 1)
        raise SwapUnclear("no answer")

    await operator.announce("abc", epoch=0 if is_new else 7)
    monkeypatch.setattr(operator.store, "swap", unclear)
    replica_set = await (operator.create if is_new else operator.recreate)("abc")
    assert replica_set.primary == "a"
    assert (await operator.store.read()).replica_set == replica_set


async def test_of_two_sets_that_are_made_at_once_the_first_one_stays(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = operator.store.swap
    replicas = {name: ADDRESSES[name] for name in "ab"}
    others = ReplicaSet.first("a", replicas, broker="id")

    async def late(document: ReplicaSet, version: int) -> int | None:
        assert await swap(others, 0)
        return await swap(document, version)

    await operator.announce("abc", log_epoch=3)
    monkeypatch.setattr(operator.store, "swap", late)
    await refused(operator.create("abc"), "there is a replica set already, of a, b")
    assert (await operator.store.read()).replica_set == others


async def test_an_old_document_is_replaced_and_a_good_one_is_not(operator: Operator) -> None:
    await operator.set_of("abc", "abc")
    await operator.announce("a", epoch=1, role="primary")
    await refused(operator.recreate("abc"), "the replica set is there, at epoch 1")
    await operator.announce("abc", epoch=5)
    assert (await operator.recreate("abc")).epoch == 6


async def test_no_replica_is_forced_beside_a_primary_that_is_alive(operator: Operator) -> None:
    await operator.set_of("abc", "abc")
    await operator.announce("a", epoch=1, role="primary")
    await refused(operator.do.force("b"), "a is the primary, and alive")


async def test_fewer_copies_may_be_wanted_than_are_made(operator: Operator) -> None:
    before = await operator.set_of("abc", "abc")
    replica_set = await operator.do.set(copies=1, min_in_sync=1)
    assert (replica_set.wanted_copies, replica_set.copies) == (1, before.copies)


async def test_a_removal_after_an_addition_is_as_before(operator: Operator) -> None:
    before = await operator.set_of("abc", "abc")
    await operator.announce("d", broker="")
    await operator.do.add("d")
    replica_set = await operator.do.remove("d")
    expected = before.wanted_copies, before.min_in_sync
    assert (replica_set.wanted_copies, replica_set.min_in_sync) == expected


async def test_settings_change(operator: Operator) -> None:
    await refused(operator.do.set(copies=1, min_in_sync=None), "there is no replica set yet")
    await operator.set_of("abc", "abc")
    replica_set = await operator.do.set(copies=3, min_in_sync=1)
    assert (replica_set.wanted_copies, replica_set.min_in_sync, replica_set.copies) == (3, 1, 2)
    await refused(operator.do.set(copies=None, min_in_sync=4), "min_in_sync is 4")
