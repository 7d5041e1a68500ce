"""Counts of topics, channels and clients, field for field as in nsqd's ``/stats``.

One field differs in meaning: every waiting message is in the log, so ``backend_depth``, the depth
on disk, is the full depth. An unmeasured value (latency, without its flag) is reported as nsqd
reports an unused one. Martlet's own fields follow nsqd's, in each object:

- at the end of the report ``martlet_version``, ``connection_count``, ``log``, the space that the
  log takes and how long its flushes and checkpoints take, and ``replication`` of a broker with
  replicas;
- ``dropped_count``, the messages that were removed to free space, by ``--disk-full-policy``, and
  ``refused_count``, those refused at publishing for lack of space;
- of a channel ``dead_letter_count``, the messages that went to its dead-letter topic;
  ``filtered_count``, those finished without delivery, as its tags or filter reject them;
  ``oldest_message_age_ms``, since when its oldest waiting message waits; ``kind``, where members or
  a reader fetch; ``rate_per_s``, where its policy limits that; and, if it is the only one asked
  for, ``finish_latency``, the histogram of ``/metrics``, which would cost too much for thousands;
- ``queues``, of a topic that has several.

Counting thousands of channels takes long, so it is done in slices (`martlet.server.clock`),
and the numbers of one report may be taken some milliseconds apart.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast

from martlet import __version__
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.topic.topic import PartitionedTopic
from martlet.broker.tracing.finish_ages import BOUNDS_NS, Latency, Together, quantiles
from martlet.protocol.nsq.v2 import NSQD_VERSION
from martlet.schema.counts import CHANNEL_COUNTS, TOPIC_COUNTS, Count
from martlet.server.clock import TimeSlice
from martlet.server.tls import suite_name, version_name
from martlet.text import MILLISECOND_NS, SECOND_NS

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.channel.subscriber import Subscriber
    from martlet.broker.queue.consumer import ChannelConsumer
    from martlet.broker.topic.topic import Topic
    from martlet.log.commit_log import CommitLog
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.flusher import Flusher
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.observability.histogram import Histogram
    from martlet.server.observability.replication import Replication

Report = dict[str, Any]
"""The answer of ``/stats?format=json``, or a part of it."""
_Thing = TypeVar("_Thing")


def _reporter(fields: Mapping[str, str]) -> Callable[[object], Report]:
    """Return a function that reports attributes of a topic or channel by field. An attribute of
    several fields is read once, as a depth takes long.
    """
    distinct = list(dict.fromkeys(fields.values()))
    read, chosen = attrgetter(*distinct), itemgetter(*map(distinct.index, fields.values()))
    return lambda thing: dict(zip(fields, chosen(read(thing)), strict=True))


def _paths(counts: Sequence[Count], *, is_own: bool) -> dict[str, str]:
    return {count.name: count.path for count in counts if count.is_own == is_own}


_NEAR = ("zone_local_msg_count", "region_local_msg_count", "global_msg_count")
_LATER = "name"
"""The attribute of fields that get their values later; they keep nsqd's order."""
_topic_fields = _reporter(
    {
        "topic_name": "name",
        "channels": _LATER,
        **_paths(TOPIC_COUNTS, is_own=False),
        "paused": "paused",
        "e2e_processing_latency": _LATER,
        **_paths(TOPIC_COUNTS, is_own=True),
    }
)
_channel_fields = _reporter(
    {
        "channel_name": "name",
        **_paths(CHANNEL_COUNTS, is_own=False),
        "clients": _LATER,
        "paused": "paused",
        "e2e_processing_latency": _LATER,
        **_paths(CHANNEL_COUNTS, is_own=True),
    }
)


class StatsSource:
    """Counts the topics, channels and clients of a broker.

    Args:
        levels: the reported percentiles of latency.
    """

    def __init__(
        self,
        broker: BrokerCore,
        connections: Collection[ClientConnection],
        levels: Sequence[float],
        log: Callable[[], Report],
        folder: DataFolder,
        replication: Replication | None = None,
    ) -> None:
        self._broker = broker
        self._log = log
        self._connections = connections
        self._levels = levels
        self.identity = folder.identity
        self._replication = replication

    def head(self) -> Report:
        """nsqd's fields before the topics."""
        return {
            "version": NSQD_VERSION,
            "health": self._broker.health,
            "start_time": self._broker.started_at_ns // SECOND_NS,
        }

    def tail(self) -> Report:
        """Martlet's own fields of the whole report."""
        return {
            "martlet_version": __version__,
            "connection_count": len(self._connections),
            "log": self._log(),
            **self.identity,
            **({"replication": of.report()} if (of := self._replication) is not None else {}),
        }

    async def topic_reports(
        self, pace: TimeSlice, topic: str = "", channel: str = "", *, include_clients: bool
    ) -> AsyncIterator[Report]:
        """Report each topic, or a named one, which must exist, with each channel, or a named one. A
        topic deleted meanwhile is left out.
        """
        topics = self._broker.topics
        for stored in [topics[topic]] if topic else _by_name(topics):
            if topics.get(stored.name) is stored and (not channel or channel in stored.channels):
                yield await _topic(
                    stored.all_queues, channel, include_clients, topic, self._levels, pace
                )
            await pace.rest()

    async def producers(self, topic: str, pace: TimeSlice) -> list[Report]:
        """Report the clients that have published, counting only a given topic if there is one."""
        reports = []
        for connection in list(self._connections):
            if connection.message_counters:
                subscription = connection.subscription
                consumer = None if subscription is None else subscription.consumer
                reports.append(_client(connection, consumer, topic))
                await pace.rest()
        return reports


def _by_name(named: Mapping[str, _Thing]) -> list[_Thing]:
    return [named[name] for name in sorted(named)]


async def _topic(
    topic: Topic | PartitionedTopic,
    channel: str,
    include_clients: bool,
    published: str,
    levels: Sequence[float],
    pace: TimeSlice,
) -> Report:
    reports: list[Report] = []
    latencies = Together()
    for stored in _by_name(topic.channels):
        if topic.channels.get(stored.name) is not stored:
            continue
        if stored.latency is not None:
            latencies.add(stored.latency)
        if channel in ("", stored.name):
            report = await _channel(stored, include_clients, published, levels, pace)
            if channel:
                report |= _finishes(stored)
            reports.append(report)
        await pace.rest()
    report = _topic_fields(topic)
    report["channels"] = reports
    report["e2e_processing_latency"] = _latency(latencies if latencies.some else None, levels)
    if isinstance(topic, PartitionedTopic):
        report["queues"] = await _queues(topic, pace)
    return report


async def _queues(topic: PartitionedTopic, pace: TimeSlice) -> list[Report]:
    """Report the queues of a topic that has several, a field of Martlet's own."""
    reports: list[Report] = []
    for queue_topic in topic.at_queues.copy():
        reports.append(
            {
                "queue": queue_topic.number,
                "priority": queue_topic.queue.priority,
                "start_offset": queue_topic.queue.start_offset,
                "end_offset": queue_topic.queue.visible_end,
                "depth": queue_topic.depth,
                "channels": {name: channel.depth for name, channel in queue_topic.channels.items()},
            }
        )
        await pace.rest()
    return reports


async def _channel(
    channel: Channel | PartitionedChannel,
    include_clients: bool,
    published: str,
    levels: Sequence[float],
    pace: TimeSlice,
) -> Report:
    clients: list[Report] = []
    consumers: list[ChannelConsumer] | list[Subscriber] = channel.consumers
    for consumer in consumers.copy() if include_clients else ():
        clients.append(_client(cast(Any, consumer.client).connection, consumer, published))
        await pace.rest()
    report = _channel_fields(channel)
    report["clients"] = clients if include_clients else None
    report["e2e_processing_latency"] = _latency(channel.latency, levels)
    report["oldest_message_age_ms"] = channel.oldest_age_ns // MILLISECOND_NS
    policy = channel.at_queues[0].policy
    if policy.rate_per_s:
        report["rate_per_s"] = policy.rate_per_s
    if policy.kind != "shared":  # as all channels of nsqd are, by consumers
        report["kind"] = policy.kind
    if counts := channel.delivered_near_counts:  # as nsqd, without zeros
        report |= {name: count for name, count in zip(_NEAR, counts, strict=True) if count}
    return report


def _finishes(channel: Channel | PartitionedChannel) -> Report:
    """Report how long messages took from their publishing to their finish, in buckets."""
    bounds_ms = [bound_ns / MILLISECOND_NS for bound_ns in BOUNDS_NS]
    return {"finish_latency": {"bounds_ms": bounds_ms, "counts": list(channel.finishes.counts)}}


def _latency(measured: Latency | Together | None, levels: Sequence[float]) -> Report:
    """Report the latency percentiles; null if none are measured."""
    if measured is None:
        return {"count": 0, "percentiles": None}
    count, values = quantiles([measured], levels)
    percentiles = [
        {"quantile": level, "value": value} for level, value in zip(levels, values, strict=True)
    ]
    return {"count": count, "percentiles": percentiles}


def _client(
    connection: object, consumer: ChannelConsumer | Subscriber | None, published: str
) -> Report:
    """Report a client, with its publishes to all topics or only to a named one."""
    client = cast("ClientConnection", connection)
    identity = client.identity
    report: Report = {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "version": "V2",
        "remote_address": client.remote_address,
        "state": client.state,
        "ready_count": consumer.ready_count if consumer else 0,
        "in_flight_count": consumer.in_flight_count if consumer else 0,
        "message_count": consumer.message_count if consumer else 0,
        "finish_count": consumer.finish_count if consumer else 0,
        "requeue_count": consumer.requeue_count if consumer else 0,
        "connect_ts": client.connected_at_ns // SECOND_NS,
        "sample_rate": identity.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": identity.user_agent,
    }
    if client.guard is not None and client.guard.authed and client.guard.authorizations is not None:
        authorizations = client.guard.authorizations
        identities = {
            "auth_identity": authorizations.identity,
            "auth_identity_url": authorizations.identity_url,
        }
        report["authed"] = True
        report |= {name: text for name, text in identities.items() if text}
    counts = [
        {"topic": name, "count": count}
        for name, count in client.message_counters.items()
        if published in ("", name)
    ]
    if counts:
        report["pub_counts"] = counts
    tls = client.tls
    report |= {
        "tls": tls is not None,
        "tls_cipher_suite": suite_name(tls.context, tls.cipher) if tls else "",
        "tls_version": version_name(tls.version) if tls else "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }
    if identity.topology_zone or identity.topology_region:
        report["topology_zone"] = identity.topology_zone
        report["topology_region"] = identity.topology_region
    return report


def log_report(
    log: CommitLog, folder: DataFolder, flusher: Flusher, options: BrokerOptions
) -> Report:
    """Report the log's disk space, and how long its flushes and checkpoints take."""
    spare_sizes = folder.storage.spare_sizes()
    disk = os.statvfs(folder.path)
    return {
        "disk_bytes": sum(segment.capacity for segment in log.segments) + sum(spare_sizes),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "min_free_bytes": options.min_free_bytes,
        "max_disk_bytes": options.max_disk_bytes,
        "position": log.position,
        "durable_position": log.durable_position,
        **_durations("flush", flusher.flushes),
        **_durations("checkpoint", flusher.checkpoints),
    }


def _durations(name: str, durations: Histogram) -> Report:
    levels = {"p50": 0.5, "p99": 0.99}
    return {
        f"{name}_{level}_ms": None if (at_s := durations.quantile_s(share)) is None else at_s * 1000
        for level, share in levels.items()
    }


class Pauses:
    """The last pauses of the garbage collector."""

    def __init__(self, max_count: int = 256) -> None:
        self._lengths_ns: deque[int] = deque(maxlen=max_count)
        self._began_ns = 0

    def watch(self) -> None:
        """Start measuring. A second call does nothing."""
        if self._measure not in gc.callbacks:
            gc.callbacks.append(self._measure)

    def _measure(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_ns = perf_counter_ns()
        else:
            self._lengths_ns.append(perf_counter_ns() - self._began_ns)

    def memory(self) -> Report:
        """Report the memory of this process under nsqd's names for Go's."""
        with open("/proc/self/statm", encoding="ascii") as file:
            resident_pages = int(file.read().split()[1])
        generations: Iterable[Mapping[str, int]] = gc.get_stats()
        lengths_ns = sorted(self._lengths_ns) or [0]
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": 0,
            "heap_in_use_bytes": resident_pages * resource.getpagesize(),
            "heap_released_bytes": 0,
            "gc_pause_usec_100": lengths_ns[-1] // 1000,
            "gc_pause_usec_99": lengths_ns[int(0.99 * (len(lengths_ns) - 1))] // 1000,
            "gc_pause_usec_95": lengths_ns[int(0.95 * (len(lengths_ns) - 1))] // 1000,
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in generations),
        }


pauses = Pauses()
"""The pauses of this process: a collection stops all its threads."""
