"""Counts of topics, channels and clients, field for field as nsqd's ``/stats`` tells them.

One difference is of meaning: every message that waits is in the log, so ``backend_depth``, what
lies on the disk, is the whole depth.  What is not measured (latency, without a flag for it) says
so, as nsqd's does where it is not used.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

from martlet.broker.latency import quantiles
from martlet.duration import SECOND_NS
from martlet.protocol.nsq_v2 import NSQD_VERSION
from martlet.server.tls import suite_name, version_name

if TYPE_CHECKING:
    from martlet.broker.channel import Channel
    from martlet.broker.consumer import Consumer
    from martlet.broker.topic import Topic
    from martlet.server.connection import Connection
    from martlet.server.server import Server

Report = dict[str, Any]
"""What ``/stats?format=json`` answers."""


def collect(
    server: Server, topic: str, channel: str, *, include_clients: bool, include_memory: bool
) -> Report:
    """Count everything, or only the topic and the channels of these names."""
    topics = topic_reports(server, topic, channel, include_clients=include_clients)
    return {
        **head(server),
        "topics": None if topics is None else list(topics),
        **tail(server, topic, include_clients=include_clients, include_memory=include_memory),
    }


def head(server: Server) -> Report:
    """What stands before the topics."""
    return {
        "version": NSQD_VERSION,
        "health": server.broker.health,
        "start_time": server.broker.started_at_ns // SECOND_NS,
    }


def tail(server: Server, topic: str, *, include_clients: bool, include_memory: bool) -> Report:
    """What stands behind the topics."""
    producers = (_producers(server, topic) or None) if include_clients else None
    return ({"memory": pauses.memory()} if include_memory else {}) | {"producers": producers}


def topic_reports(
    server: Server, topic: str, channel: str, *, include_clients: bool
) -> Iterator[Report] | None:
    """The topics one by one, so that others may have their turn between them; None where the one
    that is named is not there.
    """
    topics = server.broker.topics
    if topic and topic not in topics:
        return None
    levels = server.options.e2e_processing_latency_percentiles
    chosen: list[Topic] = [topics[topic]] if topic else _by_name(topics)
    return (
        _topic(each, channel, include_clients, topic, levels)
        for each in chosen
        if topics.get(each.name) is each and (not channel or channel in each.channels)
    )


def _by_name(named: Mapping[str, Any]) -> list[Any]:
    return [named[name] for name in sorted(named)]


def _topic(
    topic: Topic, channel: str, include_clients: bool, published: str, levels: Sequence[float]
) -> Report:
    depth = topic.depth
    chosen = [topic.channels[channel]] if channel else _by_name(topic.channels)
    return {
        "topic_name": topic.name,
        "channels": [_channel(each, include_clients, published, levels) for each in chosen],
        "depth": depth,
        "backend_depth": depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": _latency(topic.channels.values(), levels),
    }


def _channel(
    channel: Channel, include_clients: bool, published: str, levels: Sequence[float]
) -> Report:
    depth = channel.depth
    return {
        "channel_name": channel.name,
        "depth": depth,
        "backend_depth": depth,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": (
            [_client(consumer.client, consumer, published) for consumer in channel.consumers]
            if include_clients
            else None
        ),
        "paused": channel.paused,
        "e2e_processing_latency": _latency([channel], levels),
    }


def _latency(channels: Iterable[Channel], levels: Sequence[float]) -> Report:
    """The latency percentiles of some channels together; null where there is none to measure."""
    measured = [channel.latency for channel in channels if channel.latency is not None]
    if not measured:
        return {"count": 0, "percentiles": None}
    count, values = quantiles(measured, levels)
    percentiles = [
        {"quantile": level, "value": value} for level, value in zip(levels, values, strict=True)
    ]
    return {"count": count, "percentiles": percentiles}


def _client(connection: object, consumer: Consumer | None, published: str) -> Report:
    """One client; of what it has published only the named topic, if one is named."""
    client = cast("Connection", connection)
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
    if client.guard is not None and client.guard.authed and client.guard.given is not None:
        given = client.guard.given
        told = {"auth_identity": given.identity, "auth_identity_url": given.identity_url}
        report["authed"] = True
        report |= {name: text for name, text in told.items() if text}
    counts = [
        {"topic": name, "count": count}
        for name, count in client.message_counters.items()
        if published in ("", name)
    ]
    if counts:
        report["pub_counts"] = counts
    tls = client.tls
    return report | {
        "tls": tls is not None,
        "tls_cipher_suite": suite_name(tls.context, tls.cipher) if tls else "",
        "tls_version": version_name(tls.version) if tls else "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": tls is not None,
    }


def _producers(server: Server, topic: str) -> list[Report]:
    return [
        _client(connection, connection.consumer, topic)
        for connection in server.connections
        if connection.message_counters
    ]


class Pauses:
    """How long the garbage collector stopped the broker, the last times."""

    def __init__(self, most: int = 256) -> None:
        self._lengths_ns: deque[int] = deque(maxlen=most)
        self._began_ns = 0

    def watch(self) -> None:
        """Measure from now on. Does nothing the second time."""
        if self._measure not in gc.callbacks:
            gc.callbacks.append(self._measure)

    def _measure(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_ns = perf_counter_ns()
        else:
            self._lengths_ns.append(perf_counter_ns() - self._began_ns)

    def memory(self) -> Report:
        """The memory of this process under the names that nsqd has for Go's."""
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
"""Of this process; a collection stops all that runs in it."""
