"""Metrics: the answer of ``GET /metrics``, in Prometheus's format.

Counters begin at the broker's start, as nsqd's counts do. The oldest topics and channels, up to
``--metrics-max-channels`` of each, have lines of their own; the rest are added up under the name
``(other)``, which bounds the lines that a monitoring system must keep. Every few dozen channels the
work yields to the event loop, so the numbers of one answer may be taken some milliseconds apart.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from operator import add, attrgetter
from typing import TYPE_CHECKING, TypeVar

from martlet import __version__
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.topic.topic import PartitionedTopic
from martlet.broker.tracing.finish_ages import BOUNDS_NS
from martlet.broker.transactions.state import TransactionState
from martlet.schema.counts import CHANNEL_COUNTS, TOPIC_COUNTS, Count, kind_of
from martlet.server.observability import prometheus
from martlet.server.observability.log_stream import LogStream
from martlet.text import SECOND_NS

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.retention.eviction import HistoryReclaimer
    from martlet.broker.topic.topic import Topic
    from martlet.broker.transactions.manager import Transactions
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.flusher import Flusher
    from martlet.server.observability.histogram import LoopLag

OTHER = "(other)"
"""Stands for all topics or channels beyond the limit; no topic can have that name."""
_AT_ONCE = 50
"""The number of channels counted, or written, between two yields to the event loop."""
_Thing = TypeVar("_Thing")
_Value = TypeVar("_Value")
_LATENCY = "martlet_channel_publish_to_finish_seconds"
_AGE = "martlet_channel_oldest_message_age_seconds"
_LATENCY_BOUNDS = [f"{bound_ns / SECOND_NS:g}" for bound_ns in BOUNDS_NS]


TOPIC_METRICS = (
    *(count for count in TOPIC_COUNTS if count.metric),
    Count("Channels of the topic.", "martlet_topic_channels", path="channel_count"),
    Count("1 for a paused topic.", "martlet_topic_paused", path="paused"),
)
CHANNEL_METRICS = (
    *(count for count in CHANNEL_COUNTS if count.metric),
    Count(
        "Messages sent to consumers, redeliveries included.",
        "martlet_channel_delivered_messages_total",
        path="delivered_count",
    ),
    Count(
        "Messages that consumers have finished.",
        "martlet_channel_finished_messages_total",
        path="finishes.count",
    ),
    Count("1 for a paused channel.", "martlet_channel_paused", path="paused"),
)
NEAR_METRICS = tuple(
    Count(
        f"Messages sent to consumers {where}.", f"martlet_channel_delivered_{name}_messages_total"
    )
    for name, where in (
        ("zone_local", "in the broker's zone"),
        ("region_local", "in another zone of the broker's region"),
        ("elsewhere", "outside of both"),
    )
)
"""Reported where near consumers are preferred."""


@dataclass(frozen=True)
class BrokerMetrics:
    """The metrics of a broker."""

    broker: BrokerCore
    options: BrokerOptions
    folder: DataFolder
    flusher: Flusher
    reclaimer: HistoryReclaimer
    connections: Sized
    lag: LoopLag
    more: Callable[[], str] = str
    """Returns the lines of other parts of the server."""

    async def text(self) -> str:
        """Answer all metrics in Prometheus's text format."""
        return "".join([text async for text in self._texts()])

    async def _texts(self) -> AsyncIterator[str]:
        max_count = self.options.metrics_max_channels
        topics = [topic.all_queues for topic in self.broker.topics.values()]
        topics.sort(key=attrgetter("id"))
        channels = sorted(
            (channel for topic in topics for channel in topic.channels.values()),
            key=attrgetter("id"),
        )
        yield (
            _broker(self.broker, len(self.connections))
            + self._log()
            + ready_metric(self.broker.health == "OK")
            + process_metrics(self.lag)
            + self.more()
        )
        async for text in _table(TOPIC_METRICS, topics, _topic_labels, max_count):
            yield text
        async for text in _table(CHANNEL_METRICS, channels, _channel_labels, max_count):
            yield text
        if self.options.prefers_near:
            read = attrgetter("delivered_near_counts")
            async for text in _table(NEAR_METRICS, channels, _channel_labels, max_count, read):
                yield text
        yield await _ages(channels, max_count)
        async for text in _latencies(channels, max_count):
            yield text

    def _log(self) -> str:
        log, flusher = self.broker.log, self.flusher
        spare_sizes = self.folder.storage.spare_sizes()
        segment_bytes = sum(segment.capacity for segment in log.segments)
        free = os.statvfs(self.folder.path)
        rows: list[tuple[str, str, float]] = [
            ("martlet_log_position_bytes", "The position at which the log ends.", log.position),
            (
                "martlet_log_durable_position_bytes",
                "The position up to which the log survives a power cut.",
                log.durable_position,
            ),
            ("martlet_log_segments", "Files of the log.", len(log.segments)),
            ("martlet_log_spare_segments", "Spare files for new segments.", len(spare_sizes)),
            (
                "martlet_log_disk_bytes",
                "The size of all files of the log.",
                segment_bytes + sum(spare_sizes),
            ),
            (
                "martlet_log_disk_free_bytes",
                "Free space on their disk.",
                free.f_bavail * free.f_frsize,
            ),
            (
                "martlet_log_min_free_bytes",
                "The free space below which publishing is refused (--min-free-bytes).",
                self.options.min_free_bytes,
            ),
            (
                "martlet_log_refused_writes_total",
                "Writes that the log refused, being full or failed.",
                log.refused_count,
            ),
            (
                "martlet_log_evicted_segments_total",
                "Files with unfinished messages that were removed to free space.",
                self.reclaimer.evicted_count,
            ),
        ]
        return (
            _lone(rows)
            + flusher.flushes.lines("martlet_log_flush_duration_seconds", "Flushes of the log.")
            + flusher.checkpoints.lines(
                "martlet_log_checkpoint_duration_seconds", "Checkpoints, waiting included."
            )
        )


def _topic_labels(topic: Topic | PartitionedTopic | None) -> str:
    return prometheus.label_text({"topic": topic.name if topic else OTHER})


def _channel_labels(channel: Channel | PartitionedChannel | None) -> str:
    names = (channel.topic, channel.name) if channel else (OTHER, OTHER)
    return prometheus.label_text(dict(zip(("topic", "channel"), names, strict=True)))


async def _rows(
    things: Sequence[_Thing],
    labels: Callable[[_Thing | None], str],
    max_count: int,
    read: Callable[[_Thing], _Value],
    joined: Callable[[_Value, _Value], _Value],
) -> list[tuple[str, _Value]]:
    """Return labels and value of each topic or channel; all after the first ones are joined."""
    rows: list[tuple[str, _Value]] = []
    other: _Value | None = None
    for number, thing in enumerate(things):
        value = read(thing)
        if number < max_count:
            rows.append((labels(thing), value))
        else:
            other = value if other is None else joined(other, value)
        # The sums over many queues take as long as many channels.
        if number % _AT_ONCE == 0 or isinstance(thing, PartitionedTopic | PartitionedChannel):
            await asyncio.sleep(0)
    if other is not None:
        rows.append((labels(None), other))
    return rows


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return list(map(add, one, other))


async def _table(
    metrics: Sequence[Count],
    things: Sequence[_Thing],
    labels: Callable[[_Thing | None], str],
    max_count: int,
    read: Callable[[_Thing], Iterable[int]] | None = None,
) -> AsyncIterator[str]:
    """Yield metrics of topics or channels."""
    read_row = read or attrgetter(*[metric.path for metric in metrics])
    rows = await _rows(
        things, labels, max_count, lambda thing: list(map(int, read_row(thing))), _sums
    )
    for column, metric in enumerate(metrics):
        yield prometheus.head(metric.metric, metric.kind, metric.help)
        yield prometheus.values(metric.metric, ((label, row[column]) for label, row in rows))
        await asyncio.sleep(0)


async def _ages(channels: Sequence[Channel | PartitionedChannel], max_count: int) -> str:
    rows = await _rows(
        channels,
        _channel_labels,
        max_count,
        lambda channel: channel.oldest_age_ns / SECOND_NS,
        max,
    )
    return prometheus.head(
        _AGE,
        "gauge",
        "Age of the oldest message that waits to be delivered, since it was published or due; 0"
        " where none waits.",
    ) + prometheus.values(_AGE, rows)


async def _latencies(
    channels: Sequence[Channel | PartitionedChannel], max_count: int
) -> AsyncIterator[str]:
    rows = await _rows(
        channels,
        _channel_labels,
        max_count,
        lambda channel: [*channel.finishes.counts, channel.finishes.sum_ns],
        _sums,
    )
    yield prometheus.head(
        _LATENCY, "histogram", "Time from the publishing of a message to its finish."
    )
    for number, (labels, (*counts, sum_ns)) in enumerate(rows):
        yield prometheus.histogram(_LATENCY, labels, _LATENCY_BOUNDS, counts, sum_ns / SECOND_NS)
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


def _broker(broker: BrokerCore, connection_count: int) -> str:
    return _lone(
        [
            (
                "martlet_healthy",
                "1 while messages are accepted, 0 when /ping says why not.",
                int(broker.health == "OK"),
            ),
            ("martlet_connections", "Clients over TCP.", connection_count),
            ("martlet_topics", "Topics.", len(broker.topics)),
            (
                "martlet_delayed_messages",
                "Delayed messages that are not due yet.",
                broker.delays.pending_count,
            ),
            (
                "martlet_known_producers",
                "Producers whose last sends are known, to recognise repeated ones.",
                len(broker.producers),
            ),
            (
                "martlet_repeated_sends_total",
                "Repeated sends, which were not stored again.",
                broker.producers.repeated_count,
            ),
            *_transactions(broker.transactions),
        ]
    )


def _transactions(transactions: Transactions) -> list[tuple[str, str, int]]:
    return [
        ("martlet_transactions_open", "Transactions that have not ended.", len(transactions.open)),
        (
            "martlet_transactions_set_aside",
            "Undecided transactions that wait for an operator.",
            sum(t.state is TransactionState.SET_ASIDE for t in transactions.open.values()),
        ),
        (
            "martlet_transactions_committed_total",
            "Committed transactions.",
            transactions.committed_count,
        ),
        (
            "martlet_transactions_rolled_back_total",
            "Transactions rolled back.",
            transactions.rolled_back_count,
        ),
        (
            "martlet_transaction_series",
            "Series of numbered transactions whose last number is known.",
            len(transactions.series),
        ),
    ]


def _lone(rows: Iterable[tuple[str, str, float]]) -> str:
    """Return metrics without labels, of rows of name, help and value."""
    return prometheus.lone((name, kind_of(name), text, value) for name, text, value in rows)


def ready_metric(is_ready: bool) -> str:
    """Return the line that says what ``/health/ready`` says."""
    text = "1 while clients can publish and consume here, as /health/ready says."
    return _lone([("martlet_ready", text, int(is_ready))])


def process_metrics(lag: LoopLag) -> str:
    """Return versions, the loop's lag, and the metrics of Prometheus's client libraries."""
    build = "martlet_build_info"
    versions = {"version": __version__, "python": platform.python_version()}
    with open("/proc/self/stat", encoding="ascii") as file:
        # The second field is the program's name, in brackets, with any characters in it.
        fields = file.read().rpartition(")")[2].split()
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s += int(fields[19]) / os.sysconf("SC_CLK_TCK")
    name = "python_gc_collections_total"
    generations = [
        (prometheus.label_text({"generation": str(number)}), counts["collections"])
        for number, counts in enumerate(gc.get_stats())
    ]
    return (
        prometheus.head(build, "gauge", "The running version, and Python's.")
        + prometheus.values(build, [(prometheus.label_text(versions), 1)])
        + lag.metrics()
        + _lone(
            [
                (
                    "martlet_dropped_log_lines_total",
                    "Lines of the process's own log that were dropped, since nobody read them.",
                    LogStream.total_dropped_lines,
                )
            ]
        )
        + _process(fields, started_s)
        + prometheus.head(name, "counter", "Runs of the garbage collector.")
        + prometheus.values(name, generations)
    )


def _process(fields: Sequence[str], started_s: float) -> str:
    """Return what the system knows of the process, of the fields of its `stat` from the third."""
    return _lone(
        [
            (
                "process_cpu_seconds_total",
                "Processor time, the system's share included.",
                time.process_time(),
            ),
            (
                "process_resident_memory_bytes",
                "Memory in use, mapped files included.",
                int(fields[21]) * resource.getpagesize(),
            ),
            ("process_virtual_memory_bytes", "Addresses in use.", int(fields[20])),
            ("process_start_time_seconds", "Seconds since 1970.", round(started_s, 2)),
            ("process_open_fds", "Open files.", len(os.listdir("/proc/self/fd"))),
            (
                "process_max_fds",
                "The limit of open files.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
        ]
    )
