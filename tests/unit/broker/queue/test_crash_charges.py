"""Charges when a member of a group is lost, on a simulated clock and disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.core import SECOND_NS, Core, group_of

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import WritesRefused
from martlet.broker.groups.group_queue import GroupQueue
from martlet.broker.groups.membership import GroupConsumer
from martlet.broker.journal import cursors as journal
from martlet.broker.retry import MAX_CHARGES, StartedRange
from martlet.broker.topic.offset_reset import reset_group

DELAYS_MS = (100, 1000)


class Group:
    """A group at one queue, with a retry policy."""

    def __init__(self, **policy: int) -> None:
        self.core = Core(segment_bytes=1 << 20)
        settings: dict[str, Any] = {"retry_delays_ms": DELAYS_MS, "max_attempts": 3} | policy
        self.core.configure(channel="g", kind="offsets", **settings)
        self.core.publish("t", *(b"%d" % n for n in range(100)))

    @property
    def channel(self) -> Channel:
        return self.core.topic().channels["g"]

    @property
    def queue(self) -> GroupQueue:
        return group_of(self.channel)

    def join(self, lease_s: int = 60) -> GroupConsumer:
        members = self.queue.members
        topic = self.core.topic()
        members.resize(replace(members.allocated, count=len(topic.at_queues)))
        return members.join("m", lease_ns=lease_s * SECOND_NS)

    def lose(self, *runs: tuple[int, int], alone: bool = False) -> None:
        """Have a member that has started these go without a word."""
        member = self.join()
        member.started[0] = StartedRange(runs, alone)
        self.queue.members.lose(member)

    @property
    def failures(self) -> dict[int, int]:
        charges = self.channel.cursor.charges
        return {o: c.failures for o, c in charges.by_offset.items()} if charges else {}

    def as_rows(self) -> list[tuple[int, int, int, bool]]:
        return self.queue.charges_between(0, 100)


@pytest.fixture
def group() -> Group:
    return Group()


def test_started_and_uncommitted_messages_of_a_lost_member_are_charged(group: Group) -> None:
    group.queue.commit(4)
    group.lose((2, 3), (3, 6), (9, 10), (98, 200))
    assert group.failures == {4: 1, 5: 1, 9: 1, 98: 1, 99: 1}


def test_a_member_that_leaves_or_releases_a_queue_is_charged_nothing(group: Group) -> None:
    member = group.join()
    member.started[0] = StartedRange(((0, 3),), False)
    group.queue.members.release(member, [0])
    assert member.started == {}
    member.started[0] = StartedRange(((0, 3),), False)
    group.queue.members.leave(member)
    group.queue.members.lose(member)
    assert group.failures == {}


def test_a_lease_that_is_over_is_a_loss(group: Group) -> None:
    group.join(lease_s=2).started[0] = StartedRange(((7, 8),), False)
    group.core.clock.advance(3 * SECOND_NS)
    group.core.broker.run()
    assert group.failures == {7: 1}


def test_without_a_retry_policy_nothing_is_charged(group: Group) -> None:
    group.core.configure(channel="g", kind="offsets")
    group.lose((0, 1))
    assert group.failures == {}
    assert group.channel.cursor.charges is None


def test_only_a_message_started_alone_is_given_up(group: Group) -> None:
    for _ in range(5):
        group.lose((0, 3))
    assert [row[3] for row in group.as_rows()] == [False] * 3
    group.lose((1, 2), alone=True)
    assert [(row[0], row[3]) for row in group.as_rows()] == [(0, False), (1, True), (2, False)]


def test_the_first_failure_delays_nothing_and_later_ones_by_the_policy(group: Group) -> None:
    waits = []
    for _ in range(3):
        group.lose((5, 6), alone=True)
        waits.append(group.as_rows()[0][2])
    assert waits == [0, 1000, 1000]
    group.core.clock.advance(SECOND_NS // 2)
    assert group.as_rows() == [(5, 3, 500, True)]


def test_without_a_limit_nothing_is_given_up() -> None:
    group = Group(max_attempts=-1)
    for _ in range(50):
        group.lose((5, 6), alone=True)
    assert group.as_rows()[0][1] == 50
    assert not group.as_rows()[0][3]


@pytest.mark.parametrize("end", ["kill", "power", "stop"])
def test_charges_outlive_the_broker(group: Group, end: str) -> None:
    group.lose((5, 8))
    group.lose((6, 7), alone=True)
    failures = group.failures
    assert failures == {5: 1, 6: 2, 7: 1}
    group.core.start_again(end)
    assert group.failures == failures
    wait_ms = group.as_rows()[1][2]
    assert 0 < wait_ms <= 1000
    group.queue.commit(6)
    group.core.kill(journaled=True)
    assert group.failures == {6: 2, 7: 1}
    group.queue.commit(50)
    group.core.kill(journaled=True)
    assert group.failures == {}


def test_an_entry_of_an_earlier_version_knows_of_no_charges(group: Group) -> None:
    """It has no such flag; its other fields are read as before."""
    group.queue.commit(3)
    cursor = group.channel.cursor
    assert cursor.charges is None
    before = journal.encode_cursor(group.channel.id, cursor, 100, full=True)
    group.lose((5, 6))
    after = journal.encode_cursor(group.channel.id, group.channel.cursor, 100, full=True)
    assert int.from_bytes(before[4:8], "little") == 1
    assert int.from_bytes(after[4:8], "little") == 3
    state = journal.CursorState(0, 0)
    assert state.apply(after)
    assert state.charges.keys() == {5}
    assert state.apply(before)
    assert (state.next, state.charges) == (3, {})


def test_a_reset_of_the_group_clears_its_charges(group: Group) -> None:
    group.lose((5, 6))
    topic = group.core.topic()
    reset_group(topic, group.channel, [0], "first", 0, 0)
    assert group.failures == {}
    group.core.kill()
    assert group.failures == {}


def test_a_reset_that_is_refused_leaves_the_group_as_it_was(group: Group) -> None:
    group.queue.commit(4)
    group.lose((5, 6))
    group.core.broker.log.failed = "the disk is gone"
    with pytest.raises(WritesRefused):
        reset_group(group.core.topic(), group.channel, [0], "first", 0, 0)
    assert group.channel.cursor.next == 4
    assert group.failures == {5: 1}


def test_a_member_that_goes_back_does_not_make_failures_undone(group: Group) -> None:
    group.queue.commit(10)
    group.lose((15, 16))
    group.queue.go_back(3, group.join())
    assert group.failures == {15: 1}


def test_charges_have_a_limit(group: Group) -> None:
    group.core.publish("t", *[b""] * (MAX_CHARGES + 10))
    group.lose((0, MAX_CHARGES + 50))
    assert len(group.failures) == MAX_CHARGES
    assert max(group.failures) == MAX_CHARGES - 1
