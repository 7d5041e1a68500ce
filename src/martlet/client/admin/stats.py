"""The counts of ``/stats``: of a broker, its topics, channels and clients."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from martlet.client.admin.decode import Described, named
from martlet.client.admin.http import AdminHttp
from martlet.client.names import check_name
from martlet.properties.model import NORMAL_PRIORITY
from martlet.schema.counts import ChannelCounts, TopicCounts


@dataclass(frozen=True, kw_only=True)
class ClientStats(Described):
    """A consumer of a channel.

    Attributes:
        client_id, hostname, remote_address, user_agent: identify it.
        ready_count: how many messages it takes at once, RDY.
        in_flight_count: messages that it has.
        message_count, finish_count, requeue_count: messages that it got, finished and requeued.
        connected_at_s: when it connected, in seconds since 1970.
        is_tls: whether its connection is encrypted.
    """

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connected_at_s: int = named("connect_ts", default=0)
    is_tls: bool = named("tls", default=False)


@dataclass(frozen=True, kw_only=True)
class FinishLatency(Described):
    """How long messages took from their publishing to their finish, since the broker's start.

    Attributes:
        bounds_ms: the greatest latency of each bucket, rising.
        counts: the messages of each bucket; the last one, without a bound, is for longer times.
    """

    bounds_ms: tuple[float, ...]
    counts: tuple[int, ...]

    def __add__(self, other: FinishLatency) -> FinishLatency:
        if self.bounds_ms != other.bounds_ms:
            raise ValueError("brokers of different versions measure in other buckets")
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return FinishLatency(bounds_ms=self.bounds_ms, counts=counts)

    def quantile_ms(self, level: float) -> float | None:
        """Return a bound that this share of the messages kept; None without one.

        Args:
            level: over 0 and at most 1.
        """
        rank, reached = level * sum(self.counts), 0
        for bound_ms, count in zip(self.bounds_ms, self.counts, strict=False):
            reached += count
            if 0 < rank <= reached:
                return bound_ms
        return None


@dataclass(frozen=True, kw_only=True)
class LogStats(Described):
    """The log of a Martlet broker, and its disk.

    Attributes:
        disk_bytes: the size of all files of the log.
        disk_free_bytes: free space on their disk.
        min_free_bytes: the free space below which publishing is refused.
        max_disk_bytes: the size of the log above which publishing is refused; 0 for none.
        position, durable_position: where the log ends, and up to where it survives a power cut.
        flush_p50_ms, flush_p99_ms, checkpoint_p50_ms, checkpoint_p99_ms: a bound that half and 99 %
            of all flushes and checkpoints since the start kept; None where there is none.
    """

    disk_bytes: int
    disk_free_bytes: int
    min_free_bytes: int = 0
    max_disk_bytes: int = 0
    position: int = 0
    durable_position: int = 0
    flush_p50_ms: float | None = None
    flush_p99_ms: float | None = None
    checkpoint_p50_ms: float | None = None
    checkpoint_p99_ms: float | None = None

    @property
    def is_low(self) -> bool:
        """Whether its disk has little space left, as the alert MartletDiskLow says."""
        return self.disk_free_bytes < 2 * self.min_free_bytes


@dataclass(frozen=True, kw_only=True)
class ChannelStats(Described, ChannelCounts):
    """A channel of one broker.

    Attributes:
        is_paused: whether its delivery is paused.
        kind: ``shared`` by consumers, ``offsets`` of a group, ``follower`` of an external reader.
        oldest_message_age_ms: how long its oldest waiting message waits, 0 where none waits; None
            at an nsqd, which does not say.
        rate_per_s: the limit of its rate by its policy; 0 for none.
        clients: its consumers, if they were asked for.
        finish_latency: of a channel that was named; None at an nsqd.
    """

    topic: str
    channel: str = named("channel_name")
    is_paused: bool = named("paused")
    kind: str = "shared"
    oldest_message_age_ms: int | None = None
    rate_per_s: int = 0
    clients: tuple[ClientStats, ...] = ()
    finish_latency: FinishLatency | None = None


@dataclass(frozen=True, kw_only=True)
class TopicQueueStats(Described):
    """A queue of a topic that has several.

    Attributes:
        priority: of its messages.
        start_offset: the first stored offset.
        end_offset: the offset of the next message.
        depth: messages that no channel has received.
    """

    queue: int
    priority: int = NORMAL_PRIORITY
    start_offset: int
    end_offset: int
    depth: int


@dataclass(frozen=True, kw_only=True)
class TopicStats(Described, TopicCounts):
    """A topic of one broker.

    Attributes:
        is_paused: whether its channels get no new messages.
        queues: its queues, if there are several.
    """

    topic: str = named("topic_name")
    is_paused: bool = named("paused")
    channels: tuple[ChannelStats, ...]
    queues: tuple[TopicQueueStats, ...] = ()

    @property
    def queue_count(self) -> int:
        """The number of queues, without those of other priorities than the normal one."""
        return max(1, sum(queue.priority == NORMAL_PRIORITY for queue in self.queues))


@dataclass(frozen=True, kw_only=True)
class NodeStats(Described):
    """A broker with its topics.

    Attributes:
        version: the version of nsqd that it implements.
        health: ``OK``, or why it is unhealthy.
        martlet_version: the version of Martlet; empty at an nsqd.
        started_at_s: when it was started, in seconds since 1970.
        connection_count: clients over TCP; None at an nsqd.
        log: its log and disk; None at an nsqd, and at a standby.
        broker: its id; empty at an nsqd, and at a standby.
        run: a random name of its process; empty of a replica. Two brokers with one id have copies
            of one data folder.
        taken_at_s: about when it was counted, by the clock of this machine, in seconds since 1970:
            in the middle between the request and the answer.
        counted_s: the same by ``time.monotonic``: for rates, as the clock may be set meanwhile.
    """

    version: str = ""
    health: str = ""
    martlet_version: str = ""
    connection_count: int | None = None
    log: LogStats | None = None
    broker: str = ""
    run: str = ""
    started_at_s: int = named("start_time", default=0)
    topics: tuple[TopicStats, ...]
    taken_at_s: float = 0.0
    counted_s: float = 0.0


async def node_stats(
    http: AdminHttp,
    url: str,
    topic: str = "",
    channel: str = "",
    *,
    include_clients: bool = False,
    of_primary: bool = False,
) -> NodeStats:
    """Get the counts of a broker, of all topics or of one. Raises AdminError.

    Args:
        of_primary: whether a standby answers those of its primary, and not that it has no topics.
    """
    arguments = {
        "format": "json",
        "include_clients": str(include_clients).lower(),
        "include_mem": "false",
    } | ({"primary": "true"} if of_primary else {})
    names = {"topic": topic, "channel": channel}
    arguments |= {name: value for name, value in names.items() if value}
    asked_s = time.monotonic()
    stats = await http.get(url, "/stats", arguments, read_stats)
    half_s = (time.monotonic() - asked_s) / 2
    return replace(stats, taken_at_s=time.time() - half_s, counted_s=asked_s + half_s)


def read_stats(answer: Any) -> NodeStats:
    """Read the answer to ``/stats``. Raises one of `UNREADABLE`."""
    stats = answer.get("data", answer)  # Older brokers wrap the answer.
    for topic in stats["topics"] or ():
        for channel in topic["channels"]:
            channel["topic"] = topic["topic_name"]
    node = NodeStats.read(stats)
    for topic_stats in node.topics:
        check_name(topic_stats.topic, "topic")
        for channel_stats in topic_stats.channels:
            check_name(channel_stats.channel, "channel")
    return node
