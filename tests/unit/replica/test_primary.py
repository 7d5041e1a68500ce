"""A primary: whom it counts, while the set changes and otherwise."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from tests.property.log.feed import flushed

from martlet.log.commit_log import CommitLog, WritesRefused
from martlet.log.epochs import EpochRange
from martlet.log.record import RecordKind
from martlet.replica.frames import Frame, FrameKind, FrameRefused, ReplicaGreeting
from martlet.replica.primary import SECOND_NS, Primary, ReplicaSettings, SwapState
from martlet.replica.replica_set import ReplicaSet, Seen
from martlet.testing import SimulatedStorage

ADDRESSES = dict.fromkeys("abc", "10.0.0.1:4153")


class FakeLink:
    """A connection that remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.is_closed = False
        self.is_full = False

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def close(self) -> None:
        self.is_closed = True

    @property
    def kinds(self) -> list[FrameKind]:
        return [frame.kind for frame in self.sent]


class Host:
    """A process that remembers what it was asked for."""

    def __init__(
        self,
        names: str,
        in_sync: str,
        min_in_sync: int,
        settings: ReplicaSettings = ReplicaSettings(),  # noqa: B008, it is frozen
    ) -> None:
        self.swaps: list[tuple[ReplicaSet, int]] = []
        self.confirmed_position = 0
        storage = SimulatedStorage(Random(1))
        self.log = CommitLog(storage, [], 0, 5, 4096)
        self.append()
        replicas = {name: ADDRESSES[name] for name in names}
        replica_set = ReplicaSet.first("a", replicas, broker="id", epoch=4, min_in_sync=min_in_sync)
        replica_set = replica_set.elected("a").with_in_sync(frozenset(in_sync))
        self.now_ns = 0
        self.primary = Primary(
            "a", "id", 5, self.log, [EpochRange(4, 0, 0)], 0, replica_set, 7, settings, self, 0, 0
        )
        self.links: dict[str, FakeLink] = {}

    def append(self) -> int:
        self.log.append_journal(RecordKind.EPOCH, b"", topic=0, stored_at_ns=0)
        return self.log.position

    def swap(self, replica_set: ReplicaSet, version: int) -> None:
        self.swaps.append((replica_set, version))

    def confirmed(self, position: int) -> None:
        self.confirmed_position = position

    def join(self, *names: str) -> None:
        for name in names:
            link = self.links[name] = FakeLink()
            self.primary.greeted(link, ReplicaGreeting("id", name, [], []), self.now_ns)
            base = (1 << 64) - 1
            self.primary.received(link, Frame(FrameKind.FETCH, 5, 0, base), self.now_ns)
        self.primary.send(self.now_ns)

    def polled(self, replica_set: ReplicaSet, version: int) -> None:
        self.primary.polled(Seen(replica_set, version, {}), self.now_ns, self.now_ns)

    def swapped(self) -> ReplicaSet:
        """The document of the only swap so far."""
        ((replica_set, _),) = self.swaps
        return replica_set

    def catch_up(self, *names: str) -> None:
        """Standbys connect, and acknowledge all of the log."""
        self.join(*names)
        for name in names:
            self.acknowledge(name, self.log.position)

    def flush(self) -> None:
        flushed(self.log)
        self.primary.flushed(self.now_ns)

    def acknowledge(
        self, name: str, position: int, *, durable: int = 0, is_whole: bool = True
    ) -> None:
        frame = Frame(FrameKind.ACK, 5, position, durable, is_whole=is_whole)
        self.primary.received(self.links[name], frame, self.now_ns)

    def wait(self, seconds: float) -> None:
        """Let time pass for a process that runs."""
        self.now_ns += int(seconds * SECOND_NS)
        self.primary.alive_ns = self.now_ns
        self.primary.send(self.now_ns)
        self.primary.tick(self.now_ns)


def test_both_sets_count_until_the_swaps_outcome_is_known() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    assert host.confirmed_position == 0
    host.wait(0)
    host.wait(3)
    ((swapped, version),) = host.swaps
    assert (swapped.in_sync, swapped.copies, version) == (frozenset("a"), 1, 7)
    host.primary.send(host.now_ns)
    assert host.confirmed_position == 0
    host.primary.swapped(swapped, 8, host.now_ns)
    assert host.confirmed_position == host.log.position


def test_a_larger_set_counts_from_before_its_swap() -> None:
    """It may be in force already, and then another primary needs no answer of this one."""
    host = Host("ab", "a", min_in_sync=1)
    host.join("b")
    end = host.log.position
    host.acknowledge("b", end)
    host.wait(0)
    swapped = host.swapped()
    assert (swapped.in_sync, swapped.copies) == (frozenset("ab"), 2)
    more = host.append()
    host.primary.send(host.now_ns)
    assert host.confirmed_position == end
    host.acknowledge("b", more)
    assert host.confirmed_position == more


def test_an_unclear_swap_counts_until_another_settles_it() -> None:
    host = Host("ab", "a", min_in_sync=1)
    before = host.confirmed_position
    assert before == host.log.position
    host.join("b")
    host.acknowledge("b", before)
    host.wait(0)
    swapped = host.swapped()
    assert swapped.in_sync == frozenset("ab")
    host.primary.swap_unclear(swapped)
    host.append()
    host.primary.send(host.now_ns)
    assert host.confirmed_position == before
    # Nothing has changed yet, but it may: so the version that the swap named is used up.
    host.polled(host.primary.replica_set, 7)
    touched, version = host.swaps[-1]
    assert (touched.touch, touched.in_sync, version) == (1, frozenset("a"), 7)
    host.primary.swap_unclear(touched)
    assert host.confirmed_position == before
    # One of the two was applied.
    host.polled(swapped, 8)
    assert host.primary.swap_state is SwapState.SETTLED
    assert host.primary.replica_set == swapped
    assert host.confirmed_position == before
    host.acknowledge("b", host.log.position)
    assert host.confirmed_position == host.log.position


def test_a_poll_from_before_a_swap_changes_nothing() -> None:
    host = Host("ab", "a", min_in_sync=1)
    host.catch_up("b")
    host.wait(0)
    swapped = host.swapped()
    old = host.primary.replica_set
    host.polled(old, 7)
    host.primary.swapped(swapped, 8, host.now_ns)
    host.polled(old, 7)
    assert host.primary.replica_set == swapped
    assert len(host.swaps) == 1


def test_a_swap_that_came_second_is_polled_for() -> None:
    host = Host("ab", "a", min_in_sync=1)
    host.catch_up("b")
    host.wait(0)
    swapped = host.swapped()
    host.primary.swapped(swapped, None, host.now_ns)
    assert host.primary.is_unclear
    other = host.primary.replica_set.touched()
    host.polled(other, 9)
    assert (host.primary.replica_set, host.primary.version) == (other, 9)


def test_a_replica_that_may_lack_records_does_not_count() -> None:
    host = Host("ab", "ab", min_in_sync=2)
    host.join("b")
    host.acknowledge("b", host.log.position, is_whole=False)
    assert host.confirmed_position == 0
    host.acknowledge("b", host.log.position)
    assert host.confirmed_position == host.log.position


@pytest.mark.parametrize("flush_sync", [False, True])
def test_a_welcome_says_whether_a_replica_lacks_what_it_acknowledged(flush_sync: bool) -> None:
    """Its folder was restored from a backup: it believes that it is whole."""
    host = Host("ab", "ab", min_in_sync=2, settings=ReplicaSettings(flush_sync=flush_sync))
    host.join("b")
    end = host.log.position
    host.acknowledge("b", end, durable=end)

    def is_whole(end: int) -> bool:
        link = FakeLink()
        hello = ReplicaGreeting("id", "b", [EpochRange(5, 0, end)], [])
        host.primary.greeted(link, hello, host.now_ns)
        (welcome,) = link.sent
        assert welcome.kind == FrameKind.WELCOME
        return welcome.is_whole

    assert [is_whole(end), is_whole(end - 8), is_whole(0)] == [True, False, False]
    unflushed = host.append()
    host.join("b")
    host.acknowledge("b", unflushed, durable=end)
    assert is_whole(end) is flush_sync, "a power cut may take only what was not flushed"


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    """RocketMQ counted any number (#1155, #3015)."""
    host = Host("ab", "ab", min_in_sync=2)
    host.join("b")
    with pytest.raises(FrameRefused, match="b acknowledges 4000, which it was not sent"):
        host.acknowledge("b", 4000)
    host.acknowledge("b", host.log.position)
    with pytest.raises(FrameRefused, match="b takes back what it acknowledged"):
        host.acknowledge("b", 0)
    with pytest.raises(FrameRefused, match="of a replica that was not welcomed"):
        host.primary.received(FakeLink(), Frame(FrameKind.ACK, 5), 0)


def c_has_left(host: Host) -> None:
    """Its leaving was asked for, alone, and succeeds."""
    swapped = host.swapped()
    assert swapped.in_sync == frozenset("ab")
    host.primary.swapped(swapped, 8, host.now_ns)


def c_comes_back(host: Host) -> None:
    """It is in sync again once it has the log, and not before."""
    assert len(host.swaps) == 1
    end = host.log.position
    host.acknowledge("c", end, durable=end)
    host.wait(0)
    assert host.swaps[-1][0].in_sync == frozenset("abc")


def test_a_silent_standby_leaves_the_set_and_comes_back() -> None:
    host = Host("abc", "abc", min_in_sync=2)
    host.join("b", "c")
    for _ in range(5):
        host.acknowledge("b", host.log.position)
        host.wait(0.5)
    c_has_left(host)
    c_comes_back(host)


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_standby_that_comes_and_goes_and_gets_no_further_leaves_the_set(is_whole: bool) -> None:
    """One whose disk is full, or that cannot repair its log, greets again each second."""
    host = Host("abc", "abc", min_in_sync=1)
    host.join("b", "c")
    host.acknowledge("c", host.log.position, is_whole=is_whole)
    for _ in range(4):
        host.append()
        host.primary.send(host.now_ns)
        host.acknowledge("b", host.log.position)
        host.wait(0.8)
        host.primary.disconnected(host.links["c"], host.now_ns)
        host.join("c")
        host.acknowledge("c", 0, is_whole=is_whole)
    c_has_left(host)
    c_comes_back(host)


@pytest.mark.parametrize("flush_sync", [True, False])
def test_a_standby_that_gets_no_further_is_not_taken_into_the_set_again(flush_sync: bool) -> None:
    """Its disk is full, or hangs: then it has written all, and flushed nothing."""
    host = Host("abc", "abc", min_in_sync=1, settings=ReplicaSettings(flush_sync))
    host.flush()
    host.join("b", "c")
    stuck_at = host.log.position
    host.acknowledge("c", stuck_at, durable=stuck_at)

    def go_on(seconds: float) -> None:
        for _ in range(int(seconds / 0.2)):
            host.append()
            host.flush()
            host.primary.send(host.now_ns)
            end = host.log.position
            host.acknowledge("b", end, durable=end)
            host.acknowledge("c", end if flush_sync else stuck_at, durable=stuck_at)
            host.wait(0.2)

    go_on(3)
    c_has_left(host)
    go_on(1)
    host.join("c")
    go_on(3)
    c_comes_back(host)


def test_the_set_is_not_made_smaller_than_its_minimum() -> None:
    host = Host("ab", "ab", min_in_sync=2)
    host.wait(10)
    host.wait(10)
    assert host.swaps == []
    assert host.primary.yields(host.now_ns)


def test_a_standby_gets_only_so_much_unacknowledged() -> None:
    host = Host("ab", "a", min_in_sync=1)
    host.primary.settings = ReplicaSettings(max_unacknowledged_bytes=200)
    for _ in range(10):
        host.append()
    host.join("b")
    host.primary.send(0)

    def sent() -> int:
        return sum(len(f.body) for f in host.links["b"].sent if f.kind == FrameKind.DATA)

    assert sent() == 200
    host.acknowledge("b", 160)
    host.primary.send(0)
    assert sent() == 200
    host.primary.received(host.links["b"], Frame(FrameKind.ACK, 5, 200), 0)
    host.primary.send(0)
    assert sent() == 400


def test_a_hand_over_waits_for_the_whole_log() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    host.join("b")
    host.acknowledge("b", 0)
    host.primary.hand_over("b", host.now_ns)
    host.wait(0)
    assert host.swaps == []
    host.acknowledge("b", host.log.position)
    host.wait(0)
    swapped = host.swapped()
    assert (swapped.primary, swapped.epoch) == ("b", 6)
    host.primary.swapped(swapped, 8, host.now_ns)
    host.wait(0)
    assert len(host.swaps) == 1, "its epoch is over"


def test_a_hand_over_to_one_that_is_gone_is_given_up() -> None:
    host = Host("abc", "abc", min_in_sync=2)
    host.join("b", "c")
    host.acknowledge("b", 0)
    host.acknowledge("c", host.log.position)
    host.primary.hand_over("b", host.now_ns)
    host.primary.disconnected(host.links["b"], 0)
    host.wait(0)
    for _ in range(5):
        host.acknowledge("c", host.log.position)
        host.wait(1)
    assert host.primary.handing_over_to is None
    assert host.swaps[-1][0].in_sync == frozenset("ac")


def test_messages_are_taken_again_once_a_hand_over_is_given_up() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    host.join("b")
    host.primary.hand_over("b", host.now_ns)
    host.wait(0)
    with pytest.raises(WritesRefused, match="b becomes primary"):
        host.append()
    host.wait(2.5)
    host.append()


@pytest.mark.parametrize("is_unclear", [True, False])
def test_messages_are_taken_again_while_the_outcome_of_a_hand_over_is_unknown(
    is_unclear: bool,
) -> None:
    """The metadata store may be away for hours."""
    host = Host("ab", "ab", min_in_sync=1)
    host.catch_up("b")
    host.primary.hand_over("b", host.now_ns)
    host.wait(0)
    swapped = host.swapped()
    if is_unclear:
        host.primary.swap_unclear(swapped)
    host.wait(1)
    with pytest.raises(WritesRefused, match="b becomes primary"):
        host.append()
    host.wait(1.5)
    host.append()
    # It was applied: the epoch is over.
    host.primary.swap_state = SwapState.SENT
    host.primary.swapped(swapped, 8, host.now_ns)
    host.wait(10)
    assert len(host.swaps) == 1


def test_a_hand_over_is_given_its_time_where_the_store_was_slow_before() -> None:
    host = Host("abc", "abc", min_in_sync=1)
    host.join("b", "c")
    host.acknowledge("b", host.log.position)
    host.wait(0)
    for _ in range(4):
        host.acknowledge("b", host.log.position)
        host.wait(1)
    assert host.swapped().in_sync == frozenset("ab")
    host.primary.hand_over("b", host.now_ns)
    host.wait(1)
    with pytest.raises(WritesRefused, match="b becomes primary"):
        host.append()
    host.primary.swapped(host.swapped(), 8, host.now_ns)
    host.wait(0)
    assert host.swaps[-1][0].primary == "b"


def test_an_order_whose_outcome_was_unknown_for_too_long_is_taken_back() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    host.catch_up("b")
    ordered = host.primary.replica_set.with_hand_over("b")
    host.polled(ordered, 8)
    host.wait(0)
    swapped = host.swapped()
    host.primary.swap_unclear(swapped)
    host.wait(3)
    host.append()
    host.polled(ordered, 8)
    host.primary.swapped(host.swaps[-1][0], 9, host.now_ns)
    host.wait(0)
    assert (host.swaps[-1][0].primary, host.swaps[-1][0].hand_over_to) == ("a", None)
    host.append()


def test_an_operator_asks_for_another_primary() -> None:
    host = Host("abc", "abc", min_in_sync=1)
    host.catch_up("b", "c")
    ordered = host.primary.replica_set.with_hand_over("c")
    host.polled(ordered, 8)
    host.wait(0)
    swapped = host.swapped()
    assert (swapped.primary, swapped.hand_over_to) == ("c", None)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_primary_says_no_to_a_hand_over_that_cannot_be(name: str) -> None:
    host = Host("abc", "ac", min_in_sync=1)
    host.catch_up("c")
    host.polled(host.primary.replica_set.with_hand_over(name), 8)
    host.wait(0)
    swapped = host.swapped()
    assert (swapped.primary, swapped.epoch, swapped.hand_over_to) == ("a", 5, None)


def test_a_replica_that_is_to_leave_does_even_below_the_minimum() -> None:
    host = Host("ab", "ab", min_in_sync=2)
    host.catch_up("b")
    host.polled(host.primary.replica_set.with_leaving("b"), 8)
    host.wait(0)
    swapped = host.swapped()
    assert swapped.in_sync == {"a"}
    host.primary.swapped(swapped, 9, host.now_ns)
    host.wait(0)
    assert len(host.swaps) == 1, "it does not come back"
    host.polled(swapped.without_replica("b"), 10)
    assert not host.primary.standbys
    assert host.links["b"].is_closed
    position = host.append()
    host.primary.send(host.now_ns)
    assert host.confirmed_position == position


def test_a_replica_that_is_to_leave_stays_until_enough_others_are_in_sync() -> None:
    """With one copy in memory left, a power cut lost what `min_in_sync` was to keep."""
    host = Host("abc", "ac", min_in_sync=2)
    host.join("b", "c")
    host.acknowledge("c", host.log.position)
    host.polled(host.primary.replica_set.with_leaving("c"), 8)
    host.wait(0)
    assert not host.swaps, "b lacks messages"
    host.acknowledge("b", host.log.position)
    host.wait(0)
    ((joined, _),) = host.swaps
    assert joined.in_sync == frozenset("abc")
    host.primary.swapped(joined, 9, host.now_ns)
    host.wait(0)
    assert host.swaps[-1][0].in_sync == frozenset("ab")


def test_more_copies_are_made_where_an_operator_wants_them() -> None:
    host = Host("abc", "abc", min_in_sync=1)
    host.catch_up("b", "c")
    ordered = replace(host.primary.replica_set, wanted_copies=3)
    host.polled(ordered, 8)
    host.wait(0)
    swapped = host.swapped()
    assert (swapped.in_sync, swapped.copies) == (frozenset("abc"), 3)


def test_a_replica_may_fetch_only_from_where_the_logs_are_the_same() -> None:
    host = Host("ab", "ab", min_in_sync=2)
    link = FakeLink()
    host.primary.greeted(link, ReplicaGreeting("id", "b", [], []), 0)
    with pytest.raises(FrameRefused, match="b asks for 80, and its log is this one's up to 0"):
        host.primary.received(link, Frame(FrameKind.FETCH, 5, 80, 0), 0)


def test_a_primary_whose_disk_failed_hands_over() -> None:
    host = Host("ab", "ab", min_in_sync=1)
    host.catch_up("b")
    host.log.flush_failed(OSError("Input/output error"))
    assert host.primary.yields(0)
    host.wait(0)
    assert host.swaps[0][0].primary == "b"
