"""The membership of a group beside a model that knows which member has which queue since when."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from martlet.allocation import STRATEGIES
from martlet.broker.errors import Conflict, NotAMember
from martlet.broker.groups.membership import AllocatedTopic, GroupConsumer, Membership
from martlet.broker.schedule import Schedule
from martlet.testing import SimulatedClock

SECOND_NS = 10**9
WHOLE = ("sticky", "averagely", "averagely-by-circle", "consistent-hash", "machine-room-nearby")
"""Strategies that assign every queue."""


class Client:
    """A member as its client sees it: its last answer, and whether that still holds."""

    def __init__(self, member: GroupConsumer, owner: object) -> None:
        self.member = member
        self.owner = owner
        self.generation = 0
        self.queues: set[int] = set()
        """Those it works on."""
        self.notified_count = 0
        self.heard_ns = member.since_ns
        self.revoked_ns: dict[int, int] = {}
        self.let_go: set[int] = set()
        self.has_left = False
        member.watchers[self._report] = None

    def _report(self) -> None:
        self.notified_count += 1


class MembershipBesideModel(RuleBasedStateMachine):
    """Members come, go, fall silent and let go of queues, in any order."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.clock = SimulatedClock()
        self.schedule = Schedule()
        self.membership = Membership("t", self.clock, self.schedule)
        self.strategy = ""
        self.there: list[Client] = []
        self.last_generation = self.membership.generation
        self.holders: dict[int, GroupConsumer] = {}
        """As they were before the last step."""

    @initialize(strategy=st.sampled_from(list(STRATEGIES)), count=st.integers(1, 6))
    def begin(self, strategy: str, count: int) -> None:
        self.strategy = strategy
        self.membership.resize(AllocatedTopic("t", "b", "here", count))

    @rule(
        target=clients,
        name=st.sampled_from("abc"),
        room=st.sampled_from(["here", "there", ""]),
        queues=st.lists(st.integers(0, 7), max_size=4),
        lease_s=st.integers(1, 9),
    )
    def join(self, name: str, room: str, queues: list[int], lease_s: int) -> Client:
        owner = object()
        member = self.membership.join(
            name,
            lease_ns=lease_s * SECOND_NS,
            strategy=self.strategy,
            room=room,
            queues=queues,
            owner=owner,
        )
        client = Client(member, owner)
        self.there.append(client)
        self._learn(client)
        return client

    @precondition(lambda self: self.membership.members)
    @rule(strategy=st.sampled_from(list(STRATEGIES)))
    def join_by_another_strategy(self, strategy: str) -> None:
        if strategy != self.strategy:
            with pytest.raises(Conflict):
                self.membership.join("d", lease_ns=SECOND_NS, strategy=strategy)

    def _learn(self, client: Client) -> None:
        """The answer to an assignment."""
        client.generation = self.membership.generation
        client.queues = set(client.member.held)
        client.notified_count = 0
        client.heard_ns = self.clock()

    @rule(client=clients)
    def ask(self, client: Client) -> None:
        try:
            member = self.membership.find(client.member.id, client.owner)
        except NotAMember:
            assert client.member.is_gone
            assert client.notified_count
            return
        assert member is client.member
        if set(member.held) != client.queues:
            assert client.notified_count, "it had to look to find out"
            assert member.changed > client.generation
        self._learn(client)

    @rule(client=clients, number=st.integers(0, 7))
    def release(self, client: Client, number: int) -> None:
        if client.member.is_gone:
            return
        revoked = client.member.revoked
        chosen = revoked[: number + 1] if number < 6 else [number]
        for queue in chosen:
            client.queues.discard(queue)
            client.let_go.add(queue)
        self.membership.release(client.member, chosen)

    @rule(client=clients, name=st.sampled_from("xyz"), brokers=st.integers(0, 2))
    def volunteer(self, client: Client, name: str, brokers: int) -> None:
        if not client.member.is_gone:
            self.membership.volunteer(client.member, name, brokers)

    @rule(holders=st.lists(st.integers(0, 5), max_size=8), is_late=st.booleans())
    def plan(self, holders: list[int], is_late: bool) -> None:
        """Each queue for whichever member; some for those who are not there, or for none."""
        members = self.membership
        if members.leader is not None:
            ids = [*members.members, "gone"]
            queues: dict[str, list[int]] = {}
            for queue, at in enumerate(holders[: members.allocated.count]):
                if at < len(ids):
                    queues.setdefault(ids[at], []).append(queue)
            members.plan(members.leader, members.roster - is_late, len(holders), queues)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        self.membership.leave(client.member)
        client.has_left = True
        assert client.member.is_gone
        assert not client.member.held

    @rule(more=st.integers(1, 3))
    def grow(self, more: int) -> None:
        topic = self.membership.allocated
        count = min(8, topic.count + more)
        self.membership.resize(AllocatedTopic(topic.topic, topic.broker, topic.room, count))

    @rule()
    def dismiss(self) -> None:
        self.membership.dismiss()
        for client in self.there:
            client.has_left = True
        assert not self.membership.holders
        assert not len(self.membership)

    @rule(seconds=st.integers(1, 10))
    def pass_time(self, seconds: int) -> None:
        until = self.clock() + seconds * SECOND_NS
        while (due := self.schedule.next_ns()) is not None and due <= until:
            self.clock.advance(max(0, due - self.clock()))
            self.schedule.run(self.clock())
        self.clock.advance(until - self.clock())

    @invariant()
    def each_queue_is_with_one_member_at_most_who_knows_it(self) -> None:
        members = self.membership.members
        held = [(queue, m) for m in members.values() for queue in m.held]
        assert len(held) == len({queue for queue, _ in held})
        assert {q: h.member for q, h in self.membership.holders.items()} == dict(held)
        for queue, member in held:
            assert 0 <= queue < self.membership.allocated.count
            assert member.held[queue] is self.membership.holders[queue]

    @invariant()
    def queues_change_hands_only_when_they_were_let_go_of(self) -> None:
        now_ns = self.clock()
        holders = {queue: one.member for queue, one in self.membership.holders.items()}
        for queue, before in self.holders.items():
            if holders.get(queue) is not before:
                client = next(c for c in self.there if c.member is before)
                lease_ns = before.lease_ns
                assert (
                    queue in client.let_go
                    or client.has_left
                    or now_ns >= client.heard_ns + lease_ns
                    or now_ns >= client.revoked_ns.get(queue, now_ns) + lease_ns
                )
        for client in self.there:
            client.let_go.clear()
            revoked = client.member.revoked
            client.revoked_ns = {q: client.revoked_ns.get(q, now_ns) for q in revoked}
        self.holders = holders

    @invariant()
    def who_lost_a_queue_may_not_commit_there_by_what_it_knows(self) -> None:
        for queue in range(self.membership.allocated.count):
            able = [
                client
                for client in self.there
                if self.membership.holds(client.member, queue, client.generation)
            ]
            assert len(able) <= 1
            for client in able:
                assert self.holders[queue] is client.member
                assert queue in client.queues, "it was not notified, or has let go"

    @invariant()
    def nobody_is_there_beyond_his_lease(self) -> None:
        now_ns = self.clock()
        due_ns = self.schedule.next_ns()
        for member in self.membership.members.values():
            assert due_ns is not None, "nobody looks when its time is over"
            assert due_ns <= member.lease_until_ns or member.lease_until_ns > now_ns
        for holding in self.membership.holders.values():
            if holding.until_ns is not None:
                assert due_ns is not None
                assert due_ns <= holding.until_ns
        for until_ns in (self.membership._plan_due_ns, self.membership._orphans_due_ns):
            assert until_ns is None or (due_ns is not None and due_ns <= until_ns)

    @invariant()
    def all_queues_are_held_or_on_their_way(self) -> None:
        members = self.membership
        if members.members and members.strategy in WHOLE:
            missing = set(range(members.allocated.count)) - set(members.holders)
            if members._plan is not None:
                # The leader wants it so, or it waits for the leader's next word.
                missing -= {queue for queue, one in members._plan.items() if one is None}
                assert not missing or members._orphans_due_ns is not None
            else:
                assert not missing

    @invariant()
    def the_leader_knows_all_members(self) -> None:
        members = self.membership
        volunteers = [m for m in members.members.values() if m.brokers]
        assert (members.leader in volunteers) if volunteers else members.leader is None
        if members.leader is not None:
            assert members.leader.changed >= members.roster
        else:
            assert members._plan is None

    @invariant()
    def generations_rise(self) -> None:
        assert self.membership.generation >= self.last_generation
        self.last_generation = self.membership.generation

    def teardown(self) -> None:
        """Those who are there let go of what they are to let go of: the strategy has its will."""
        members = self.membership.members
        for client in self.there:
            if not client.member.is_gone:
                self.membership.release(client.member, client.member.revoked)
        assert not any(member.revoked for member in members.values())
        if members and self.membership.strategy == "sticky" and self.membership._plan is None:
            counts = [len(member.held) for member in members.values()]
            assert max(counts) - min(counts) <= 1


TestMembership = MembershipBesideModel.TestCase
TestMembership.settings = settings(max_examples=30, stateful_step_count=25)


def test_a_member_that_loses_a_queue_when_another_leaves_is_notified() -> None:
    clock, schedule = SimulatedClock(), Schedule()
    membership = Membership("t", clock, schedule)
    membership.resize(AllocatedTopic("t", "", "", 2))

    def join(id: str, queue: int) -> GroupConsumer:
        return membership.join(
            id, lease_ns=10 * SECOND_NS, strategy="by-config", queues=(queue,), owner=id
        )

    holder, silent = join("m", 0), join("n", 1)
    # This one comes before the holder, and is to have its queue.
    newcomer = join("a", 0)
    assert holder.revoked == [0]
    notified: list[str] = []
    holder.watchers[lambda: notified.append("holder")] = None
    clock.advance(9 * SECOND_NS)
    membership.renew(holder)
    membership.renew(newcomer)
    # Both leases end unnoticed.
    clock.advance(2 * SECOND_NS)
    schedule.run(clock())
    assert silent.is_gone
    assert list(newcomer.held) == [0]
    assert notified == ["holder"]


def test_a_leader_that_does_not_plan_is_passed_over() -> None:
    clock, schedule = SimulatedClock(), Schedule()
    membership = Membership("t", clock, schedule)
    membership.resize(AllocatedTopic("t", "", "", 4))
    one, two, three = (membership.join(name, lease_ns=100 * SECOND_NS) for name in "abc")

    def pass_time(seconds: int) -> None:
        clock.advance(seconds * SECOND_NS)
        schedule.run(clock())

    def leader() -> GroupConsumer | None:
        return membership.leader

    membership.volunteer(two, "x", 2)
    membership.volunteer(three, "y", 2)
    assert leader() is two
    membership.plan(two, membership.roster, 4, {"a": [0, 1, 2, 3]})
    pass_time(11)
    assert leader() is two, "it has planned"
    membership.leave(one)
    pass_time(2)
    assert sorted(membership.targets) == [0, 1, 2, 3], "they wait for a second at most"
    pass_time(9)
    assert leader() is three
    pass_time(11)
    assert leader() is None
    assert [len(member.held) for member in (two, three)] == [2, 2], "the broker's own allocation"
    membership.volunteer(two, "x", 2)
    assert leader() is two, "it is there again"
