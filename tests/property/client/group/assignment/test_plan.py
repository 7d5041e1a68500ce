"""Groups over several brokers: members, brokers and connections come and go; it ends even."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from martlet.allocation import GroupMember, TopicQueue
from martlet.broker.errors import Conflict
from martlet.broker.groups.membership import AllocatedTopic, GroupConsumer, Membership
from martlet.broker.schedule import Schedule
from martlet.client.group.assignment.plan import AllocationChoice, GroupView, plan, share_out
from martlet.testing import SimulatedClock

SECOND_NS = 10**9
LEASE_NS = 3600 * SECOND_NS
EVEN = ("sticky", "averagely", "averagely-by-circle")
NAMES = "abcde"
BROKERS = "xyz"


def by_turns(
    member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue]
) -> Sequence[TopicQueue]:
    """A strategy of one's own that leaves the last queue out."""
    return queues[: len(queues) - 1][members.index(member) :: len(members)]


CHOICES = [
    *(AllocationChoice(name) for name in EVEN),
    AllocationChoice("consistent-hash"),
    AllocationChoice("custom:x", by_turns),
]


def as_json(member: str, name: str, client_id: str) -> dict[str, str]:
    """Return a member as ``group.describe`` has it."""
    return {"member": member, "name": name, "room": "", "client_id": client_id, "address": ""}


class Broker:
    """A broker's membership of the group."""

    def __init__(self, name: str, count: int, clock: SimulatedClock, schedule: Schedule) -> None:
        self.membership = Membership("t", clock, schedule)
        self.membership.resize(AllocatedTopic("t", name, "", count))

    @property
    def name(self) -> str:
        return self.membership.allocated.broker

    def as_json(self) -> dict[str, Any]:
        """Return the answer of ``group.describe``."""
        members = self.membership
        return {
            "place": {"broker": self.name, "room": ""},
            "roster": members.roster,
            "members": [as_json(m.id, m.name, m.client_id) for m in members.members.values()],
            "queues": [
                {"queue": q, "target": members.targets[q].id if q in members.targets else None}
                for q in range(members.allocated.count)
            ],
        }


class Client:
    """A consumer: its memberships, and the last state that each broker reported."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[Broker, GroupConsumer] = {}
        self.pictures: dict[Broker, dict[str, Any]] = {}


class SeveralBrokers(RuleBasedStateMachine):
    """Runs of the planner in any order, with outdated states of the brokers."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SimulatedClock()
        self.schedule = Schedule()
        self.brokers: list[Broker] = []
        self.clients: dict[str, Client] = {}
        self.choice = CHOICES[0]
        self.holders: dict[tuple[Broker, int], GroupConsumer] = {}
        self.let_go: set[tuple[Broker, int]] = set()

    @initialize(
        choice=st.sampled_from(CHOICES), counts=st.lists(st.integers(0, 4), min_size=2, max_size=3)
    )
    def begin(self, choice: AllocationChoice, counts: list[int]) -> None:
        self.choice = choice
        self.brokers = [
            Broker(name, count, self.clock, self.schedule)
            for name, count in zip(BROKERS, counts, strict=False)
        ]

    # what happens

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 2))
    def join(self, name: str, number: int) -> None:
        client = self.clients.setdefault(name, Client(name))
        broker = self.brokers[number % len(self.brokers)]
        if broker not in client.members:
            client.members[broker] = broker.membership.join(
                f"id-{name}", lease_ns=LEASE_NS, strategy=self.choice.name
            )

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 2))
    def leave(self, name: str, number: int) -> None:
        client, broker = self.clients.get(name), self.brokers[number % len(self.brokers)]
        if client is not None and broker in client.members:
            broker.membership.leave(client.members.pop(broker))

    @rule(name=st.sampled_from(NAMES))
    def die(self, name: str) -> None:
        for number in range(len(self.brokers)):
            self.leave(name, number)

    @rule(number=st.integers(0, 2))
    def restart(self, number: int) -> None:
        broker = self.brokers[number % len(self.brokers)]
        broker.membership.dismiss()
        for client in self.clients.values():
            client.members.pop(broker, None)

    @rule(number=st.integers(0, 2))
    def grow(self, number: int) -> None:
        broker = self.brokers[number % len(self.brokers)]
        count = min(6, broker.membership.allocated.count + 1)
        broker.membership.resize(AllocatedTopic("t", broker.name, "", count))

    @rule(seconds=st.sampled_from([1, 2, 11]))
    def pass_time(self, seconds: int) -> None:
        """Leaders that did not plan are passed over."""
        until = self.clock() + seconds * SECOND_NS
        while (due := self.schedule.next_ns()) is not None and due <= until:
            self.clock.advance(max(0, due - self.clock()))
            self.schedule.run(self.clock())
        self.clock.advance(until - self.clock())

    # what clients do

    @rule(name=st.sampled_from(NAMES))
    def volunteer(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None:
            count = len(client.members)
            for broker, member in client.members.items():
                broker.membership.volunteer(
                    member, f"name-{name}", count if count > 1 or self.choice.is_own else 0
                )

    @rule(name=st.sampled_from(NAMES), number=st.integers(0, 2))
    def poll(self, name: str, number: int) -> None:
        client, broker = self.clients.get(name), self.brokers[number % len(self.brokers)]
        if client is not None and broker in client.members:
            client.pictures[broker] = broker.as_json()

    @rule(name=st.sampled_from(NAMES))
    def plan(self, name: str) -> None:
        """By what it saw last of each broker."""
        client = self.clients.get(name)
        if client is None:
            return
        taken: set[str] = set()
        live = {
            broker: GroupView.of(client.pictures[broker], broker.name, taken)
            for broker in self.brokers
            if broker in client.pictures and broker in client.members
        }
        absent = [
            GroupView.of(state, broker.name, taken)
            for broker, state in client.pictures.items()
            if broker not in live
        ]
        led = {
            broker.name: broker
            for broker in live
            if broker.membership.leader is client.members[broker]
        }
        parts = plan("t", self.choice, list(live.values()), absent, led.keys())
        for at, broker in led.items():
            picture = live[broker]
            broker.membership.plan(
                client.members[broker], picture.roster, len(picture.queues), parts[at]
            )

    @rule(name=st.sampled_from(NAMES))
    def release(self, name: str) -> None:
        client = self.clients.get(name)
        if client is not None:
            for broker, member in client.members.items():
                self.let_go |= {(broker, queue) for queue in member.revoked}
                broker.membership.release(member, member.revoked)

    # what holds

    @invariant()
    def queues_change_hands_only_when_they_were_let_go_of(self) -> None:
        holders = {
            (broker, queue): holding.member
            for broker in self.brokers
            for queue, holding in broker.membership.holders.items()
        }
        for at, before in self.holders.items():
            assert holders.get(at) is before or before.is_gone or at in self.let_go
        held = [
            (broker, queue)
            for broker in self.brokers
            for member in broker.membership.members.values()
            for queue in member.held
        ]
        assert len(held) == len(holders)
        assert set(held) == holders.keys()
        self.holders = holders
        self.let_go.clear()

    @invariant()
    def a_queue_that_waits_for_a_plan_waits_for_a_second_at_most(self) -> None:
        for broker in self.brokers:
            members = broker.membership
            if members.members and len(members.holders) < members.allocated.count:
                due_ns = members._orphans_due_ns
                assert due_ns is not None
                assert self.clock() < due_ns <= self.clock() + SECOND_NS

    def teardown(self) -> None:
        """When nothing comes or goes any more, a few rounds settle it, and it stays."""
        for _ in range(4):
            self._round()
        before = dict(self.holders)
        self._round()
        assert self.holders == before, "it does not settle"
        for broker in self.brokers:
            members = broker.membership
            assert not any(member.revoked for member in members.members.values())
            assert not members.members or len(members.holders) == members.allocated.count
        everywhere = [c for c in self.clients.values() if len(c.members) == len(self.brokers)]
        if self.choice.name in EVEN and everywhere == [
            c for c in self.clients.values() if c.members
        ]:
            counts = [sum(len(m.held) for m in c.members.values()) for c in everywhere]
            assert max(counts, default=0) - min(counts, default=0) <= 1

    def _round(self) -> None:
        self.pass_time(1)
        for name in NAMES:
            self.volunteer(name)
        for name in NAMES:
            for number in range(len(self.brokers)):
                self.poll(name, number)
            self.plan(name)
        for name in NAMES:
            self.release(name)
        self.queues_change_hands_only_when_they_were_let_go_of()


TestSeveralBrokers = SeveralBrokers.TestCase
TestSeveralBrokers.settings = settings(max_examples=60, stateful_step_count=30)

everything = st.dictionaries(st.sampled_from("vwxyz"), st.integers(0, 9), min_size=1)
groups = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


def pictures(
    counts: dict[str, int], ids: Sequence[str], held: dict[str, list[TopicQueue]] | None = None
) -> list[GroupView]:
    holders = {queue: id for id, queues in (held or {}).items() for queue in queues}
    return [
        GroupView.of(
            {
                "place": {"broker": broker, "room": ""},
                "roster": 1,
                "members": [as_json(f"{id} there", id, id) for id in ids],
                "queues": [
                    {
                        "queue": n,
                        "target": f"{holders[TopicQueue(broker, n)]} there"
                        if holders.get(TopicQueue(broker, n)) in ids
                        else None,
                    }
                    for n in range(count)
                ],
            },
            broker,
            set(),
        )
        for broker, count in counts.items()
    ]


@given(everything, everything, groups, groups, st.sampled_from(EVEN))
def test_shares_are_even_over_all_brokers_and_sticky_moves_the_fewest(
    counts: dict[str, int], then: dict[str, int], ids: list[str], others: list[str], name: str
) -> None:
    """Brokers, queues and members come and go."""
    first = share_out("t", AllocationChoice(name), pictures(counts, ids), [], counts.keys())
    after = share_out("t", AllocationChoice(name), pictures(then, others, first), [], then.keys())
    every = [TopicQueue(broker, n) for broker, count in then.items() for n in range(count)]
    assert sorted(queue for queues in after.values() for queue in queues) == sorted(every)
    sizes = sorted((len(after[id]) for id in others), reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    if name == "sticky":
        had = {id: len(set(first.get(id, [])) & set(every)) for id in others}
        size, rest = divmod(len(every), len(others))
        ranked = sorted(had.values(), reverse=True)
        max_kept = sum(min(h, size + (at < rest)) for at, h in enumerate(ranked))
        assert sum(len(set(after[id]) & set(first.get(id, []))) for id in others) == max_kept


@given(everything, groups, st.data())
def test_a_member_that_does_not_reach_a_broker_has_none_of_its_queues(
    counts: dict[str, int], ids: list[str], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([*EVEN, "consistent-hash", "machine-room-nearby"]))
    reached = {broker: data.draw(groups) for broker in counts}
    seen = [one for broker, n in counts.items() for one in pictures({broker: n}, reached[broker])]
    assignment = share_out("t", AllocationChoice(name), seen, [], counts.keys())
    for id, queues in assignment.items():
        assert all(id in reached[queue.broker] for queue in queues)
    got = Counter(queue for queues in assignment.values() for queue in queues)
    assert got == Counter(q for picture in seen for q in picture.queues)
    if name in EVEN:
        # None of them could give one to another that has two less.
        for id, queues in assignment.items():
            for queue in queues:
                assert min(len(assignment[o]) for o in reached[queue.broker]) >= len(queues) - 1, id


def test_brokers_of_one_name_get_different_names() -> None:
    taken: set[str] = set()
    state = Broker("same:1", 1, SimulatedClock(), Schedule()).as_json()
    names = [GroupView.of(state, address, taken).broker for address in ("p:1", "q:2")]
    assert names == ["same:1", "same:1 at q:2"]


def test_a_plan_of_a_member_that_does_not_lead_is_refused() -> None:
    broker = Broker("x", 2, SimulatedClock(), Schedule())
    members = broker.membership
    one, two = (members.join(name, lease_ns=LEASE_NS) for name in ("one", "two"))
    with pytest.raises(Conflict, match="'two' does not lead the group, no member does"):
        members.plan(two, members.roster, 2, {})
    members.volunteer(one, "1", 2)
    with pytest.raises(Conflict, match="'two' does not lead the group, 'one' does"):
        members.plan(two, members.roster, 2, {})
    for twice in ({"one": [0, 1], "two": [1]}, {"one": [2]}):
        with pytest.raises(Conflict, match="planned twice, or is not there"):
            members.plan(one, members.roster, 2, twice)
    members.plan(one, members.roster, 2, {"two": [0, 1]})
    assert set(members.targets.values()) == {two}
    members.volunteer(two, "2", 3)
    assert members.leader is two, "it sees more brokers"


@pytest.mark.parametrize(("there", "shares"), [(2, (1, 3)), (3, (1, 3)), (9, (0, 4))])
def test_queues_held_at_brokers_with_another_leader_count_and_stay(
    there: int, shares: tuple[int, int]
) -> None:
    counts = {"x": there, "y": 4}
    held = {"a": [TopicQueue("x", n) for n in range(there)]}
    assignment = share_out(
        "t", AllocationChoice("sticky"), pictures(counts, ["a", "b"], held), [], {"y"}
    )
    assert {queue.broker for queues in assignment.values() for queue in queues} == {"y"}
    assert (len(assignment["a"]), len(assignment["b"])) == shares


def test_the_rooms_of_a_resolver_count() -> None:
    class Rooms:
        def room_of_queue(self, queue: TopicQueue) -> str:
            return queue.broker

        def room_of_member(self, member: GroupMember) -> str:
            return {"a": "x", "b": "y", "c": "y"}[member.client_id]

    choice = AllocationChoice("by-machine-room", rooms=Rooms())
    assignment = plan(
        "t", choice, pictures({"x": 2, "y": 2, "z": 2}, ["a", "b", "c"]), [], {"x", "y", "z"}
    )
    there = {"a there": [0, 1]}, {"b there": [0], "c there": [1]}
    assert assignment == {"x": there[0], "y": there[1], "z": {}}


def test_queues_from_a_custom_strategy_are_matched_by_equality() -> None:
    def plain(
        member: GroupMember, members: Sequence[GroupMember], queues: Sequence[TopicQueue]
    ) -> Any:
        unknown = TopicQueue("x", 7)
        return [(q.broker, float(q.number), q.room) for q in (*queues, *queues, unknown)]

    assignment = plan(
        "t", AllocationChoice("custom:x", plain), pictures({"x": 3}, ["a", "b"]), [], {"x"}
    )
    assert assignment == {"x": {"a there": [0, 1, 2]}}
    assert all(type(number) is int for number in assignment["x"]["a there"])
