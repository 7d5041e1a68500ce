"""Options of reports: log lines and metrics."""

from __future__ import annotations

import hashlib
import socket
import zlib
from dataclasses import dataclass

from martlet.options.flag import option
from martlet.options.options import LogOptions
from martlet.text import MILLISECOND_NS, MINUTE_NS


def default_node_id(hostname: str) -> int:
    """The node id that nsqd takes on a host of that name."""
    return zlib.crc32(hashlib.md5(hostname.encode(), usedforsecurity=False).digest()) % 1024


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReportOptions(LogOptions):
    """Options of logs and metrics."""

    node_id: int = option(
        lambda: default_node_id(socket.gethostname()),
        "a number for this broker, from 0 to 1023 (default: made from the host's name)",
        config_key="id",
        limits=(0, 1023),
        instead="message ids begin at a random number for each queue; this one is only logged",
        section="metrics",
    )
    statsd_address: str = option("", "<addr>:<port> of a statsd server")
    statsd_prefix: str = option("nsq.%s", "the prefix of statsd keys, %s being the host")
    statsd_interval_ns: int = option(
        MINUTE_NS, "the interval of metrics sent to statsd", limits=(MILLISECOND_NS, None)
    )
    statsd_mem_stats: bool = option(True, "send metrics of memory to statsd")
    statsd_udp_packet_size: int = option(
        508, "maximum bytes of a packet to statsd", limits=(64, 65507)
    )
    statsd_exclude_ephemeral: bool = option(
        False, "send no metrics of ephemeral topics and channels to statsd"
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (),
        "percentiles of the time from publish to finish, as 1.0,0.99,0.95",
        name="e2e-processing-latency-percentile",
        config_key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time_ns: int = option(
        10 * MINUTE_NS, "the time window of those percentiles", limits=(MILLISECOND_NS, None)
    )
    metrics_max_channels: int = option(
        1000,
        "maximum topics, and maximum channels, that /metrics lists one by one, the oldest first;"
        " the others are summed under the topic (other)",
        limits=(0, None),
    )
    experiments: tuple[str, ...] = option(
        (),
        "'topology-aware-consumption': prefer consumers in the broker's zone, then its region;"
        " other experiments of nsqd are accepted and ignored; may be given several times",
        name="enable-experiment",
        config_key="enable_experiment",
    )
