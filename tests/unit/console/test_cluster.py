"""The sums of all brokers, and what is missing of them."""

from __future__ import annotations

from typing import Any

from martlet.client.admin import (
    AdminError,
    AdminNotFound,
    Answers,
    ChannelCounts,
    ChannelStats,
    NodeStats,
    TopicStats,
)
from martlet.console.cluster import LOST_KEPT_S, ChannelTotals, ClusterView, merge, without_answers

A, B = "http://a:4151", "http://b:4151"


def node(depth: int, *, paused: bool = False, age_ms: int | None = None, **more: Any) -> NodeStats:
    """A broker with the topic orders, and the channel work of that depth."""
    channel = ChannelStats(
        topic="orders",
        channel="work",
        depth=depth,
        message_count=depth,
        is_paused=paused,
        client_count=1,
        requeue_count=2,
        timeout_count=3,
        oldest_message_age_ms=age_ms,
    )
    topic = TopicStats(
        topic="orders",
        depth=1,
        backend_depth=1,
        message_count=10,
        is_paused=False,
        channels=(channel,),
    )
    return NodeStats(version="1.3.0", health="OK", started_at_s=5, topics=(topic,), **more)


def both(**more: Any) -> ClusterView:
    return merge(Answers({B: node(4), A: node(2, **more)}), ClusterView(), 100.0)


def test_two_brokers_of_one_id_are_copies_once_two_looks_saw_both() -> None:
    """One that was started again between two answers may be seen as two processes."""

    def look(before: ClusterView, run_of_b: str) -> ClusterView:
        nodes = {A: node(1, broker="one", run="x"), B: node(1, broker="one", run=run_of_b)}
        return merge(Answers(nodes), before, 100.0)

    first = look(ClusterView(), "y")
    assert not first.copies
    (copies,) = look(first, "y").copies
    assert copies == ("one", ("a:4151", "b:4151"))
    for run in ("z", "x", ""):
        assert not look(first, run).copies, run
    assert not merge(Answers({A: node(1)}, {B: AdminError(B, "away")}), first, 101.0).copies


def test_counts_of_brokers_are_added() -> None:
    view = both(paused=True, age_ms=1500)
    topic = view.topics["orders"]
    assert list(view.brokers) == [A, B]
    assert (topic.depth, topic.total_depth, topic.message_count) == (2, 8, 20)
    assert (topic.client_count, topic.failed_count, view.depth) == (2, 10, 8)
    channel = view.channel("orders", "work")
    assert channel is not None
    assert channel.counts.depth == 6
    assert channel.is_paused
    assert not topic.is_paused
    assert topic.oldest_age_s == 1.5
    assert both().topics["orders"].oldest_age_s is None
    assert view.channel("orders", "none") is None
    assert view.channel("none", "work") is None


def test_a_broker_that_does_not_answer_keeps_what_it_said() -> None:
    before = both()
    failed = Answers({A: node(3)}, {B: AdminError(B, "connection refused")})
    view = merge(failed, before, 110.0)
    (missing,) = view.missing
    assert (missing.address, missing.error, missing.missing_since_s) == (
        *("b:4151", "connection refused"), 110.0,
    )  # fmt: skip
    assert missing.stats is before.brokers[B].stats
    assert not missing.is_healthy
    assert view.topics["orders"].total_depth == 4
    later = merge(failed, view, 120.0)
    assert later.missing[0].missing_since_s == 110.0
    assert merge(Answers({A: node(3), B: node(4)}), later, 130.0).missing == []


def test_a_broker_that_lookup_daemons_forgot_is_shown_for_a_time() -> None:
    left = Answers({A: node(3)})
    view = merge(left, both(), 110.0)
    (missing,) = view.missing
    assert missing.address == "b:4151"
    assert "no lookup daemon names it any more" in missing.error
    view = merge(left, view, 110.0 + LOST_KEPT_S - 1)
    assert len(view.missing) == 1
    assert list(merge(left, view, 110.0 + LOST_KEPT_S).brokers) == [A]


def test_all_brokers_are_away() -> None:
    errors = {A: AdminError(A, "timeout"), B: AdminError(B, "refused")}
    view = without_answers(AdminError(A, "timeout", errors=errors), both(), 110.0)
    assert [broker.error for broker in view.missing] == ["timeout", "refused"]
    assert view.error == f"{A}: timeout"
    assert view.topics == {}


def test_a_lookup_daemon_that_is_away_is_not_the_brokers_fault() -> None:
    view = without_answers(AdminError("http://l:4161", "refused"), both(), 110.0)
    assert [broker.error for broker in view.missing] == ["not asked: http://l:4161: refused"] * 2


def test_the_last_broker_is_forgotten_by_lookup_daemons() -> None:
    view = without_answers(AdminNotFound("http://l:4161", "no broker", 404), both(), 110.0)
    assert all("no lookup daemon names it" in broker.error for broker in view.missing)
    assert len(view.missing) == 2


def test_the_time_until_a_channel_is_empty() -> None:
    counts = ChannelCounts(depth=100)
    assert ChannelTotals("t", "c", counts, in_per_s=5, out_per_s=15).drain_s == 10
    assert ChannelTotals("t", "c", counts, in_per_s=15, out_per_s=15).drain_s is None
    assert ChannelTotals("t", "c", ChannelCounts(), out_per_s=15).drain_s is None


def test_a_broker_is_healthy_if_it_says_so() -> None:
    view = both()
    assert view.brokers[A].is_healthy
    sick = NodeStats(health="NOK - disk full", topics=())
    assert not merge(Answers({A: sick}), view, 1.0).brokers[A].is_healthy


def test_only_a_broker_that_answers_lacks_a_topic() -> None:
    other = "http://c:4151"

    def view(stats: NodeStats | AdminError) -> ClusterView:
        nodes = {A: node(2)}
        if isinstance(stats, AdminError):
            return merge(Answers(nodes, {other: stats}), ClusterView(), 1.0)
        return merge(Answers({**nodes, other: stats}), ClusterView(), 1.0)

    empty = view(NodeStats(topics=(), martlet_version="1.0", broker="c"))
    assert empty.lacking("orders") == {other}
    assert empty.lacking("orders", "work") == {other}
    assert empty.lacking("nowhere") == empty.lacking("orders", "nowhere") == set()
    assert view(NodeStats(topics=(), version="1.3.0")).lacking("orders") == {other}  # nsqd
    standby = NodeStats(topics=(), fields={"replication": {"role": "standby"}})
    assert view(standby).lacking("orders") == set()
    assert view(AdminError(other, "timeout")).lacking("orders") == set()
