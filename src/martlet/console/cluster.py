"""What the page shows of all brokers together: sums by topic and channel, and what is missing."""

from __future__ import annotations

import math
from asyncio import Future
from collections.abc import Hashable
from dataclasses import dataclass, field
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
from martlet.client.copied_folder import Copies, Process, confirmed

LOST_KEPT_S = 600.0
"""How long a broker is shown that lookup daemons have forgotten."""
_LOST = "no lookup daemon names it any more: it stopped, or lost its connections"


@dataclass
class ChannelTotals:
    """A channel of all brokers."""

    topic: str
    channel: str
    counts: ChannelCounts = field(default_factory=ChannelCounts)
    """The sums over the brokers."""
    is_paused: bool = False
    """Whether its delivery is paused, at any broker."""
    kind: str = "shared"
    """``shared``, ``offsets`` of a group, or ``follower``."""
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    """Messages a second that came in, and that were finished."""
    nodes: dict[str, ChannelStats] = field(default_factory=dict)
    """The channel of each broker, by URL."""
    oldest_age_s: float | None = None
    """How long the oldest waiting message waits; None where no broker says."""

    @property
    def key(self) -> tuple[str, str]:
        """The key of its history."""
        return self.topic, self.channel

    @property
    def failed_count(self) -> int:
        """Requeued and timed-out deliveries."""
        return self.counts.requeue_count + self.counts.timeout_count

    @property
    def drain_s(self) -> float | None:
        """How long until the channel is empty at the present rates; None for never."""
        surplus = self.out_per_s - self.in_per_s
        return self.counts.depth / surplus if surplus > 0 and self.counts.depth else None


@dataclass
class TopicTotals:
    """A topic of all brokers.

    Attributes:
        depth: messages that no channel has received.
        is_paused: whether it is paused, at any broker.
        in_per_s, out_per_s: messages a second published, and finished by all channels.
        nodes: the topic of each broker, by URL.
    """

    topic: str
    depth: int = 0
    message_count: int = 0
    is_paused: bool = False
    in_per_s: float = 0.0
    channels: dict[str, ChannelTotals] = field(default_factory=dict)
    nodes: dict[str, TopicStats] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """The key of its history."""
        return self.topic, ""

    @property
    def total_depth(self) -> int:
        """Messages that wait in the topic and in all its channels."""
        return self.depth + sum(channel.counts.depth for channel in self.channels.values())

    @property
    def queue_count(self) -> int:
        """The greatest number of queues at a broker."""
        return max((node.queue_count for node in self.nodes.values()), default=1)

    @property
    def out_per_s(self) -> float:
        """Messages a second that its channels finished."""
        return sum(channel.out_per_s for channel in self.channels.values())

    @property
    def client_count(self) -> int:
        """The consumers of all channels."""
        return sum(channel.counts.client_count for channel in self.channels.values())

    @property
    def failed_count(self) -> int:
        """Requeued and timed-out deliveries of all channels."""
        return sum(channel.failed_count for channel in self.channels.values())

    @property
    def oldest_age_s(self) -> float | None:
        """How long the oldest waiting message of any channel waits."""
        ages_s = (channel.oldest_age_s for channel in self.channels.values())
        return max((age_s for age_s in ages_s if age_s is not None), default=None)


@dataclass
class BrokerView:
    """A broker."""

    url: str
    stats: NodeStats | None = None
    """Its counts; of the last answer, where it does not answer now."""
    error: str = ""
    """Why it does not answer; empty while it does."""
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    missing_since_s: float = 0.0
    """When it was first seen not to answer, by the monotonic clock; 0 while it does."""

    @property
    def address(self) -> str:
        """Its ``host:port``."""
        return self.url.partition("://")[2]

    @property
    def software(self) -> str:
        """What it runs, such as ``Martlet 0.2.0``."""
        if self.stats is None:
            return ""
        own = self.stats.martlet_version
        return f"Martlet {own}" if own else f"nsqd {self.stats.version}"

    @property
    def is_healthy(self) -> bool:
        """Whether it answers, and says that it is well."""
        return not self.error and self.stats is not None and self.stats.health == "OK"


@dataclass
class ClusterView:
    """All brokers at a time."""

    at_s: float = -math.inf
    """When they were asked, by the monotonic clock."""
    brokers: dict[str, BrokerView] = field(default_factory=dict)
    topics: dict[str, TopicTotals] = field(default_factory=dict)
    error: str = ""
    """Why no broker is known at all; empty while one is."""
    took_s: float = 0.0
    """How long the answers took."""
    answers: dict[Hashable, Future[Any]] = field(default_factory=dict)
    """What pages asked brokers beyond the counts, so that all tabs share the answers."""
    copies: list[Copies] = field(default_factory=list)
    """The brokers that have one id, by this poll and the one before."""

    @property
    def missing(self) -> list[BrokerView]:
        """The brokers that do not answer."""
        return [broker for broker in self.brokers.values() if broker.error]

    @property
    def in_per_s(self) -> float:
        """Messages a second published."""
        return sum(broker.in_per_s for broker in self.brokers.values())

    @property
    def out_per_s(self) -> float:
        """Messages a second finished."""
        return sum(broker.out_per_s for broker in self.brokers.values())

    @property
    def depth(self) -> int:
        """Messages that wait."""
        return sum(topic.total_depth for topic in self.topics.values())

    def depths(self) -> dict[str, int]:
        """Return the messages that wait at each broker, by URL."""
        depths = dict.fromkeys(self.brokers, 0)
        for topic in self.topics.values():
            for broker, stats in topic.nodes.items():
                depths[broker] += stats.depth + sum(channel.depth for channel in stats.channels)
        return depths

    def channel(self, topic: str, channel: str) -> ChannelTotals | None:
        """Return a channel; None if there is none."""
        totals = self.topics.get(topic)
        return totals.channels.get(channel) if totals else None

    def lacking(self, topic: str, channel: str = "") -> set[str]:
        """Return the brokers that lack what another has: a topic, or a channel of it.

        A broker that does not answer may have it, and a standby acts for its primary.
        """
        having = self.channel(topic, channel) if channel else self.topics.get(topic)
        if having is None:
            return set()
        return {
            url
            for url, broker in self.brokers.items()
            if url not in having.nodes
            and not broker.error
            and broker.stats is not None
            and (broker.stats.broker or "replication" not in broker.stats.fields)
        }


def merge(answers: Answers[NodeStats], before: ClusterView, at_s: float) -> ClusterView:
    """Add up the brokers' counts; rates are left to the caller."""
    view = ClusterView(at_s)
    for url, stats in answers.values.items():
        view.brokers[url] = BrokerView(url, stats)
        for topic in stats.topics:
            _add_topic(view, url, topic)
    for url, error in answers.errors.items():
        view.brokers[url] = _missing(url, error.why, before, at_s)
    _keep_lost(view, before)
    view.brokers = dict(sorted(view.brokers.items()))
    view.copies = confirmed(_processes(before), _processes(view))
    return view


def _processes(view: ClusterView) -> dict[str, Process]:
    return {
        broker.address: Process(broker.stats.broker, broker.stats.run)
        for broker in view.brokers.values()
        if broker.stats is not None and not broker.error
    }


def without_answers(error: AdminError, before: ClusterView, at_s: float) -> ClusterView:
    """Return the view when no broker answers."""
    view = ClusterView(at_s, error=str(error))
    for url, failure in error.errors.items():
        view.brokers[url] = _missing(url, failure.why, before, at_s)
    if not error.errors and not isinstance(error, AdminNotFound):
        for url in before.brokers:
            view.brokers[url] = _missing(url, f"not asked: {error}", before, at_s)
    _keep_lost(view, before)
    view.brokers = dict(sorted(view.brokers.items()))
    return view


def _missing(url: str, why: str, before: ClusterView, at_s: float) -> BrokerView:
    last = before.brokers.get(url)
    since_s = last.missing_since_s if last else 0.0
    stats = last.stats if last else None
    return BrokerView(url, stats, why or "no answer", missing_since_s=since_s or at_s)


def _keep_lost(view: ClusterView, before: ClusterView) -> None:
    """Show brokers for a time after lookup daemons stopped naming them, such as killed ones."""
    for url, last in before.brokers.items():
        since_s = last.missing_since_s or view.at_s
        if url not in view.brokers and view.at_s - since_s < LOST_KEPT_S:
            view.brokers[url] = BrokerView(url, last.stats, _LOST, missing_since_s=since_s)


def _add_topic(view: ClusterView, url: str, stats: TopicStats) -> None:
    topic = view.topics.get(stats.topic)
    if topic is None:
        topic = view.topics[stats.topic] = TopicTotals(stats.topic)
    topic.nodes[url] = stats
    topic.depth += stats.depth
    topic.message_count += stats.message_count
    topic.is_paused |= stats.is_paused
    for counts in stats.channels:
        channel = topic.channels.get(counts.channel)
        if channel is None:
            channel = ChannelTotals(stats.topic, counts.channel, counts)
            topic.channels[counts.channel] = channel
        else:
            channel.counts += counts
        channel.nodes[url] = counts
        channel.is_paused |= counts.is_paused
        channel.kind = counts.kind
        if counts.oldest_message_age_ms:
            age_s = counts.oldest_message_age_ms / 1000
            channel.oldest_age_s = max(channel.oldest_age_s or 0.0, age_s)
