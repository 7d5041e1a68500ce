"""Groups over several brokers: the queues of all of them are shared out together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.interop.client.group.test_pull import (
    call,
    member,
    members_of,
    post_of,
    put,
    with_queues,
)
from tests.interop.cutting_proxy import CuttingProxy
from tests.polling import until
from tests.unit.client.consumer.consuming import running

from martlet.addresses import Address
from martlet.allocation import STRATEGIES
from martlet.broker.groups.membership import CUSTOM
from martlet.cli.operations.groups import describe_lines
from martlet.client import (
    GroupMember,
    Identity,
    PullConsumer,
    PulledMessage,
    QueueId,
    TopicQueue,
)
from martlet.client.group.assignment import planner
from martlet.client.transport.connection import Connection
from martlet.schema.groups import GroupDescription
from martlet.schema.read import read_answer
from martlet.testing import Broker, BrokerProcess
from martlet.testing.ports import free_port


@pytest.fixture(autouse=True)
def _short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SETTLE_S", 0.02)


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Broker()) for _ in range(2)]


class Holders:
    """The queues of each consumer, as its hooks report them."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.moves: list[str] = []
        self.wrongs: list[str] = []

    def member(self, name: str, addresses: Sequence[str], **settings: Any) -> PullConsumer:
        def assigned(places: Sequence[QueueId]) -> None:
            for place in places:
                if (holder := self.of.get(str(place))) is not None:
                    self.wrongs.append(f"{place} goes to {name} while {holder} has it")
                self.of[str(place)] = name
                self.moves.append(str(place))

        def revoked(places: Sequence[QueueId]) -> None:
            for place in places:
                if (holder := self.of.pop(str(place), None)) != name:
                    self.wrongs.append(f"{place} goes from {name}, and {holder} has it")

        identity = Identity(client_id=name)
        hooks = {"on_assigned": assigned, "on_revoked": revoked}
        return member(addresses, identity=identity, **hooks, **settings)


@pytest.fixture
def holders() -> Iterator[Holders]:
    holders = Holders()
    yield holders
    assert not holders.wrongs


def of(brokers: Iterable[Broker | BrokerProcess]) -> list[str]:
    return [broker.tcp_address for broker in brokers]


def counts(consumers: Iterable[PullConsumer]) -> list[int]:
    return sorted(len(consumer.assignment) for consumer in consumers)


def at_one(consumer: PullConsumer) -> bool:
    """Whether all that it has is at one broker."""
    return len({place.broker for place in consumer.assignment}) == 1


def all_at(consumers: Iterable[PullConsumer], brokers: Iterable[Broker]) -> bool:
    """Whether each has the two queues of one broker, in turn."""
    return all(
        set(consumer.assignment) == {QueueId(address, 0), QueueId(address, 1)}
        for consumer, address in zip(consumers, of(brokers), strict=True)
    )


async def settled(broker: Broker) -> None:
    """Wait until the plan is for those who are there, and queues are where it says."""

    def is_settled() -> bool:
        members = members_of(broker)
        holders = {queue: holding.member for queue, holding in members.holders.items()}
        return members._plan_due_ns is None and holders == members.targets

    await until(is_settled)


@pytest.mark.parametrize("strategy", ["sticky", "averagely", "averagely-by-circle"])
async def test_members_that_come_and_go_leave_it_even(
    holders: Holders, brokers: list[Broker], strategy: str
) -> None:
    async with Broker() as third:
        every = [*brokers, third]
        for broker, count in zip(every, (4, 1, 3), strict=True):
            with_queues(broker, count)
        async with AsyncExitStack() as stack:
            consumers: list[PullConsumer] = []
            for number, shares in enumerate(([8], [4, 4], [2, 3, 3], [2, 2, 2, 2])):
                consumer = holders.member(f"m{number}", of(every), strategy=strategy)
                consumers.append(await stack.enter_async_context(consumer))
                await until(lambda shares=shares: counts(consumers) == shares)  # type: ignore[misc]
            await consumers.pop(1).close()
            await until(lambda: counts(consumers) == [2, 3, 3])
            # New queues are shared out too.
            every[1].server.broker.set_queues("t", 2)
            await until(lambda: counts(consumers) == [3, 3, 3])
            for consumer in consumers[1:]:
                await consumer.close()
            await until(lambda: counts(consumers[:1]) == [9])


async def test_a_broker_that_is_started_again_moves_no_queue_of_another(
    holders: Holders, tmp_path: Path
) -> None:
    at = {"tcp_address": f"127.0.0.1:{free_port()}"}
    async with Broker() as stays, AsyncExitStack() as stack:
        with_queues(stays, 4)
        consumers: list[PullConsumer] = []
        moves: list[str] = []
        for is_again in (False, True):
            async with Broker(tmp_path, **at) as broker:
                if not is_again:
                    with_queues(broker, 4)
                    for name in ("one", "two"):
                        consumer = holders.member(name, of([stays, broker]), strategy="averagely")
                        consumers.append(await stack.enter_async_context(consumer))
                # By the plan each has all that one broker has.
                await until(lambda: counts(consumers) == [4, 4] and all(map(at_one, consumers)))
                if is_again:
                    assert [place for place in holders.moves if stays.tcp_address in place] == moves
                moves = [place for place in holders.moves if stays.tcp_address in place]
            await until(lambda: counts(consumers) == [0, 4])


async def test_a_broker_that_stays_away_is_not_counted(
    holders: Holders, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "ABSENT_S", 0.05)
    monkeypatch.setattr(planner, "POLL_S", 0.1)
    with_queues(brokers[0], 4)
    async with AsyncExitStack() as stack:
        consumers: list[PullConsumer] = []
        async with Broker() as gone:
            with_queues(gone, 4)
            for name in ("one", "two"):
                consumer = holders.member(name, of([brokers[0], gone]), strategy="averagely")
                consumers.append(await stack.enter_async_context(consumer))
            await until(lambda: counts(consumers) == [4, 4])
            # Each has all that one broker has.
            await until(lambda: all(map(at_one, consumers)))
        await until(lambda: counts(consumers) == [2, 2])


async def test_a_member_that_cannot_reach_a_broker_leaves_that_to_the_others(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "ABSENT_S", 0.05)
    monkeypatch.setattr(planner, "POLL_S", 0.1)
    for broker in brokers:
        with_queues(broker, 2)
    holders = Holders()  # Unchecked: a connection's end is seen by one side before the other.
    async with CuttingProxy(brokers[1].tcp_address) as proxy:
        far = [brokers[0].tcp_address, proxy.address]
        async with (
            holders.member("a", far, strategy="averagely") as cut_off,
            holders.member("b", of(brokers), strategy="averagely") as complete,
        ):
            await until(lambda: counts([cut_off, complete]) == [2, 2])
            proxy.refuses = True
            proxy.cut()
            await until(lambda: all_at([cut_off, complete], brokers))
            proxy.refuses = False
            await until(lambda: cut_off.connected_count == 2)
            await until(lambda: counts([cut_off, complete]) == [2, 2])


async def test_a_custom_strategy(holders: Holders, brokers: list[Broker]) -> None:
    """Each member has a broker of its own; the other queues are assigned all the same."""
    seen: list[tuple[list[str], list[TopicQueue]]] = []

    def a_broker_each(
        member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue]
    ) -> list[TopicQueue]:
        seen.append(([other.client_id for other in members], list(queues)))
        names = sorted({queue.broker for queue in queues})
        mine = dict(zip([other.id for other in members], names, strict=False)).get(member.id)
        return [queue for queue in queues if queue.broker == mine]

    for broker in brokers:
        with_queues(broker, 3)
    async with holders.member("one", of(brokers), strategy=a_broker_each) as one:
        # It leaves half of them unassigned.
        await until(lambda: counts([one]) == [6])
        async with holders.member("two", of(brokers), strategy=a_broker_each) as two:
            await until(lambda: counts([one, two]) == [3, 3])
            assert at_one(one)
            assert at_one(two)
            description = await call(brokers[0], "group.describe", topic="t", group="g")
            assert description["strategy"] == "custom:a_broker_each"
        await until(lambda: counts([one]) == [6])
    names, queues = seen[-1]
    assert names == ["one"]
    assert queues == sorted(queues)
    assert len(queues) == 6


async def test_a_custom_strategy_at_a_single_broker(
    holders: Holders, brokers: list[Broker]
) -> None:
    with_queues(brokers[0], 4)

    def all_for_one(
        member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue]
    ) -> Sequence[TopicQueue]:
        return queues if member is members[-1] else ()

    where = of(brokers[:1])
    async with (
        holders.member("one", where, strategy=all_for_one) as one,
        holders.member("two", where, strategy=all_for_one) as two,
    ):
        await until(lambda: (len(one.assignment), len(two.assignment)) == (0, 4))


async def test_a_strategy_that_fails_is_logged_and_replaced_by_sticky(
    holders: Holders, brokers: list[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(
        member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue]
    ) -> Sequence[TopicQueue]:
        raise RuntimeError("of its own")

    for broker in brokers:
        put(broker, [b"one"])
    async with (
        holders.member("one", of(brokers), strategy=broken) as one,
        holders.member("two", of(brokers), strategy=broken) as two,
    ):
        await until(lambda: counts([one, two]) == [1, 1])
    assert "custom:broken failed: the queues are assigned by sticky" in caplog.text


class Rooms:
    """The first broker, and members whose names begin with it, are in the east."""

    def __init__(self, east: Broker) -> None:
        self._port = east.tcp_address.rpartition(":")[2]

    def room_of_queue(self, queue: TopicQueue) -> str:
        return "east" if queue.broker.endswith(f":{self._port}") else "west"

    def room_of_member(self, member: GroupMember) -> str:
        return member.client_id.partition("-")[0]


async def test_a_custom_room_resolver(holders: Holders, brokers: list[Broker]) -> None:
    for broker in brokers:
        with_queues(broker, 2)
    settings: dict[str, Any] = {"strategy": "machine-room-nearby", "rooms": Rooms(brokers[0])}
    async with (
        holders.member("east-1", of(brokers), **settings) as east,
        holders.member("west-1", of(brokers), **settings) as west,
    ):
        await until(lambda: all_at([east, west], brokers))
        await west.close()
        await until(lambda: counts([east]) == [4])


async def test_members_of_an_older_version_have_their_share(
    holders: Holders, brokers: list[Broker]
) -> None:
    """They send no name, and never volunteer."""
    for broker in brokers:
        with_queues(broker, 2)
    async with holders.member("new", of(brokers)) as new, AsyncExitStack() as stack:
        older = []
        for address in of(brokers):
            connection = await Connection.open(Address.parse(address), Identity())
            stack.push_async_callback(connection.wait_lost)
            stack.callback(connection.close)
            answer = await connection.call("group.join", topic="t", group="g", client_id="old")
            older.append((connection, answer.fields["member"]))
        await until(lambda: counts([new]) == [2])
        for connection, id in older:
            answer = await connection.call(
                "group.assignment", topic="t", group="g", member=id, generation=0, wait_ms=0
            )
            assert "roster" not in answer.fields


async def test_brokers_of_an_older_version_share_their_own_queues_out(
    holders: Holders,
    brokers: list[Broker],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for broker in brokers:
        methods = dict(broker.server.calls.methods)
        del methods["group.volunteer"], methods["group.plan"]
        monkeypatch.setitem(broker.server.calls.__dict__, "methods", methods)
        with_queues(broker, 2)
    async with (
        holders.member("one", of(brokers)) as one,
        holders.member("two", of(brokers)) as two,
    ):
        await until(lambda: counts([one, two]) == [2, 2])
        await until(lambda: caplog.text.count("is of an older version") == 4)


async def test_a_single_broker_gets_no_roster(holders: Holders, brokers: list[Broker]) -> None:
    """So that brokers of an older version are asked nothing that they do not know."""
    with_queues(brokers[0], 2)
    async with holders.member("one", of(brokers[:1])) as one:
        await one._planner._volunteer([post_of(one)], is_again=True)
        description = await call(brokers[0], "group.describe", topic="t", group="g")
        assert [listed["name"] for listed in description["members"]] == [""]
        assert description["leader"] is None


async def test_describe_says_which_member_leads(holders: Holders, brokers: list[Broker]) -> None:
    for broker in brokers:
        with_queues(broker, 1)
    async with (
        holders.member("one", of(brokers)) as one,
        holders.member("two", of(brokers)) as two,
    ):
        await until(lambda: counts([one, two]) == [1, 1])
        held = []
        for broker in brokers:
            await settled(broker)
            description = await call(broker, "group.describe", topic="t", group="g")
            (head, *_) = describe_lines("", read_answer(GroupDescription, description), 0)
            assert head.endswith("2 members, sticky over all brokers, led by one")
            held += [(queue["member"], queue["target"]) for queue in description["queues"]]
        assert sorted(held) == [("one", "one"), ("two", "two")]


async def live(
    name: str,
    holders: Holders,
    where: Sequence[str],
    handle: Callable[[PulledMessage], Awaitable[None]],
    chance: random.Random,
    stop: asyncio.Event,
) -> None:
    """A consumer that comes and goes."""
    while not stop.is_set():
        async with holders.member(name, where, max_attempts=0) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=chance.choice([1, 3])))
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.random() * 0.8):
                    await stop.wait()
        await running


@pytest.mark.slow
async def test_members_and_brokers_that_come_and_go_at_random_miss_nothing(
    holders: Holders, tmp_path: Path
) -> None:
    chance = random.Random(11)
    seen: set[bytes] = set()
    published: set[bytes] = set()

    async def handle(message: PulledMessage) -> None:
        await asyncio.sleep(chance.random() * 0.004)
        seen.add(message.body)

    async with AsyncExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        brokers: list[Broker] = []
        for port in ports:
            broker = Broker(tmp_path / str(port), tcp_address=f"127.0.0.1:{port}")
            brokers.append(await stack.enter_async_context(broker))
            with_queues(broker, 3)
        where = of(brokers)
        stop = asyncio.Event()
        lives = [
            asyncio.create_task(live(f"m{n}", holders, where, handle, chance, stop))
            for n in range(4)
        ]
        for number in range(15):
            for at, broker in enumerate(brokers):
                bodies = [b"%d %d" % (at, n) for n in range(number * 10, number * 10 + 10)]
                put(broker, bodies, chance.randrange(3))
                published |= set(bodies)
            await asyncio.sleep(0.1)
            if number % 5 == 2:
                broker = chance.choice(brokers)
                await broker.server.stop()
                await broker.__aenter__()
        stop.set()
        await asyncio.gather(*lives)
        async with (
            holders.member("last", where) as consumer,
            running(consumer, handle, concurrency=8),
        ):
            await until(lambda: seen >= published)
            assert counts([consumer]) == [9]


def test_no_strategy_of_the_brokers_is_named_like_a_custom_one() -> None:
    assert not any(name.startswith(CUSTOM) for name in STRATEGIES)
