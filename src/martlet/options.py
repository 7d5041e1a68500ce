"""The options of a broker: one field each, named as NSQ names its flags.

Every flag of nsqd 1.3 is here under its name, so that a command line or a config file written for
nsqd starts a Martlet broker.  What has no meaning here is accepted, and its help says what happens
instead.  What would be unsafe to ignore and is not there yet is refused.

Durations are nanoseconds and end in ``_ns``.  A ``BrokerOptions`` that exists is valid::

    BrokerOptions(tcp_address="127.0.0.1:0", msg_timeout_ns=parse_duration("30s"))
"""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Self

from martlet.duration import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from martlet.flag import Flag, Kind, OptionError, option

__all__ = ["BrokerOptions", "LogLevel", "OptionError", "TlsRequired", "TlsVersion", "flags"]

MIB = 1024 * 1024


class LogLevel(IntEnum):
    """How much is logged; the numbers are nsqd's."""

    DEBUG = 1
    INFO = 2
    WARN = 3
    ERROR = 4
    FATAL = 5


class TlsRequired(IntEnum):
    """Whether clients must use TLS; the numbers are nsqd's."""

    NO = 0
    EXCEPT_HTTP = 1
    YES = 2


class TlsVersion(IntEnum):
    """A version of TLS, by its number on the wire."""

    TLS1_0 = 0x0301
    TLS1_1 = 0x0302
    TLS1_2 = 0x0303
    TLS1_3 = 0x0304


_LOG_LEVELS = tuple((level.name.lower(), level) for level in LogLevel)
_TLS_REQUIRED = tuple(
    (text, value)
    for value, texts in (
        (TlsRequired.NO, "false 0 f"),
        (TlsRequired.YES, "true 1 t"),
        (TlsRequired.EXCEPT_HTTP, "tcp-https"),
    )
    for text in texts.split()
)
_TLS_VERSIONS = (
    ("tls1.0", TlsVersion.TLS1_0),
    ("tls1.1", TlsVersion.TLS1_1),
    ("tls1.2", TlsVersion.TLS1_2),
    ("tls1.3", TlsVersion.TLS1_3),
    ("", TlsVersion.TLS1_0),
)
_NO_TLS = "this version has no TLS of its own: put a TLS proxy before the TCP address"
_NO_AUTH = "this version cannot ask an auth server, and would let everybody in"
_NO_BUFFER = "messages are sent at once; a client's wish is answered and not needed"
_NO_SCAN = "nothing is scanned: timeouts fire from exact timers"


def default_node_id(hostname: str) -> int:
    """The node id that nsqd takes on a host of that name."""
    return zlib.crc32(hashlib.md5(hostname.encode(), usedforsecurity=False).digest()) % 1024


@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """What a broker is started with.

    Raises:
        OptionError: a value is out of its limits, or two do not go together.
    """

    tcp_address: str = option(
        "tcp-address",
        Kind.STRING,
        "0.0.0.0:4150",
        "<addr>:<port> for NSQ's TCP clients, or the <path> of a Unix socket",
        section="addresses",
    )
    http_address: str = option(
        "http-address",
        Kind.STRING,
        "0.0.0.0:4151",
        "<addr>:<port> for HTTP, or the <path> of a Unix socket; empty for no HTTP",
    )
    https_address: str = option(
        "https-address",
        Kind.STRING,
        "0.0.0.0:4152",
        "<addr>:<port> for HTTPS, which is served only with a certificate",
    )
    broadcast_address: str = option(
        "broadcast-address",
        Kind.STRING,
        socket.gethostname,
        "the name under which clients reach this broker (default: the host's name)",
    )
    broadcast_tcp_port: int = option(
        "broadcast-tcp-port",
        Kind.INT,
        0,
        "the TCP port under which clients reach this broker (default: the one it listens on)",
        limits=(0, 65535),
    )
    broadcast_http_port: int = option(
        "broadcast-http-port",
        Kind.INT,
        0,
        "the HTTP port under which clients reach this broker (default: the one it listens on)",
        limits=(0, 65535),
    )
    lookupd_tcp_addresses: tuple[str, ...] = option(
        "lookupd-tcp-address",
        Kind.STRINGS,
        (),
        "<addr>:<port> of an nsqlookupd; may be given several times",
        config_key="nsqlookupd_tcp_addresses",
        instead="this version does not register itself: give clients the broker's own address",
    )
    http_client_connect_timeout_ns: int = option(
        "http-client-connect-timeout",
        Kind.DURATION,
        2 * SECOND_NS,
        "how long a connection to another server over HTTP may take to open",
        limits=(1, None),
    )
    http_client_request_timeout_ns: int = option(
        "http-client-request-timeout",
        Kind.DURATION,
        5 * SECOND_NS,
        "how long a request to another server over HTTP may take",
        limits=(1, None),
    )
    topology_region: str = option(
        "topology-region", Kind.STRING, "", "the region that this broker runs in, told in /info"
    )
    topology_zone: str = option(
        "topology-zone", Kind.STRING, "", "the zone that this broker runs in, told in /info"
    )
    max_connections: int = option(
        "max-connections",
        Kind.INT,
        0,
        "the most TCP connections at a time (0: as many as the system allows)",
        limits=(0, None),
    )

    data_path: str = option(
        "data-path",
        Kind.STRING,
        "",
        "the folder that the log is kept in (default: the current folder)",
        section="storage",
    )
    flush: str = option(
        "flush",
        Kind.CHOICE,
        "async",
        "when OK is said: 'async' once a batch is in the page cache, which survives a killed"
        " broker; 'sync' once it is on the disk, which survives a power cut",
        choices=(("async", "async"), ("sync", "sync")),
    )
    sync_every: int = option(
        "sync-every",
        Kind.INT,
        2500,
        "with --flush=async, flush to the disk after this many messages",
        limits=(1, None),
    )
    sync_timeout_ns: int = option(
        "sync-timeout",
        Kind.DURATION,
        2 * SECOND_NS,
        "with --flush=async, flush to the disk at least this often",
        limits=(MILLISECOND_NS, None),
    )
    max_bytes_per_file: int = option(
        "max-bytes-per-file",
        Kind.SIZE,
        100 * MIB,
        "the size of a segment of the log",
        limits=(4096, 2**40),
    )
    segment_spare: int = option(
        "segment-spare",
        Kind.INT,
        1,
        "how many used segments are kept to be written again",
        limits=(0, 1000),
    )
    min_free_bytes: int = option(
        "min-free-bytes",
        Kind.SIZE,
        64 * MIB,
        "refuse to publish while the disk has less than this free",
        limits=(0, None),
    )
    journal_interval_ns: int = option(
        "journal-interval",
        Kind.DURATION,
        SECOND_NS,
        "how often what was finished is written down; finished later than that before a crash,"
        " a message comes again",
        limits=(MILLISECOND_NS, None),
    )
    checkpoint_interval_ns: int = option(
        "checkpoint-interval",
        Kind.DURATION,
        10 * SECOND_NS,
        "how often the broker's state is saved whole, so that little is read again at a start",
        limits=(MILLISECOND_NS, None),
    )
    mem_queue_size: int = option(
        "mem-queue-size",
        Kind.INT,
        10000,
        "messages to keep in memory",
        limits=(0, None),
        instead="every message goes to the log, and none is in memory alone",
    )
    queue_scan_selection_count: int = option(
        "queue-scan-selection-count",
        Kind.INT,
        20,
        "channels to look at in each scan for timeouts",
        instead=_NO_SCAN,
    )
    queue_scan_worker_pool_max: int = option(
        "queue-scan-worker-pool-max",
        Kind.INT,
        4,
        "workers that scan for timeouts",
        instead=_NO_SCAN,
    )

    msg_timeout_ns: int = option(
        "msg-timeout",
        Kind.DURATION,
        MINUTE_NS,
        "how long a consumer has for a message, unless it asked for another time",
        limits=(MILLISECOND_NS, None),
        section="messages",
    )
    max_msg_timeout_ns: int = option(
        "max-msg-timeout",
        Kind.DURATION,
        15 * MINUTE_NS,
        "the longest that a consumer may have a message, touching it included",
        limits=(MILLISECOND_NS, None),
    )
    max_req_timeout_ns: int = option(
        "max-req-timeout",
        Kind.DURATION,
        HOUR_NS,
        "the longest delay for a message, requeued or published",
        limits=(0, None),
    )
    max_msg_size: int = option(
        "max-msg-size", Kind.SIZE, MIB, "the most bytes of one message", limits=(1, 2**30)
    )
    max_body_size: int = option(
        "max-body-size", Kind.SIZE, 5 * MIB, "the most bytes of one command", limits=(1, 2**30)
    )

    client_timeout_ns: int = MINUTE_NS
    """A client that does not ask for heartbeats of its own gets one each half of this."""
    max_heartbeat_interval_ns: int = option(
        "max-heartbeat-interval",
        Kind.DURATION,
        MINUTE_NS,
        "the longest time between heartbeats that a client may ask for",
        limits=(MILLISECOND_NS, None),
        section="clients",
    )
    max_rdy_count: int = option(
        "max-rdy-count", Kind.INT, 2500, "the highest RDY of a consumer", limits=(1, 2**31 - 1)
    )
    max_channel_consumers: int = option(
        "max-channel-consumers",
        Kind.INT,
        0,
        "the most consumers of one channel (0: no limit)",
        limits=(0, None),
    )
    max_output_buffer_size: int = option(
        "max-output-buffer-size",
        Kind.SIZE,
        64 * 1024,
        "the largest output buffer that a client may ask for",
        limits=(64, None),
        instead=_NO_BUFFER,
    )
    max_output_buffer_timeout_ns: int = option(
        "max-output-buffer-timeout",
        Kind.DURATION,
        30 * SECOND_NS,
        "the longest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    min_output_buffer_timeout_ns: int = option(
        "min-output-buffer-timeout",
        Kind.DURATION,
        25 * MILLISECOND_NS,
        "the shortest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    output_buffer_timeout_ns: int = option(
        "output-buffer-timeout",
        Kind.DURATION,
        250 * MILLISECOND_NS,
        "the time between writes to a client that asks for none",
        instead=_NO_BUFFER,
    )
    deflate: bool = option("deflate", Kind.BOOL, True, "let clients ask for deflate")
    max_deflate_level: int = option(
        "max-deflate-level",
        Kind.INT,
        6,
        "the highest level of deflate that a client may ask for",
        limits=(1, 9),
    )
    snappy: bool = option("snappy", Kind.BOOL, True, "let clients ask for snappy")

    tls_cert: str = option(
        "tls-cert", Kind.STRING, "", "the file of the certificate", missing=_NO_TLS, section="TLS"
    )
    tls_key: str = option(
        "tls-key", Kind.STRING, "", "the file of the certificate's key", missing=_NO_TLS
    )
    tls_root_ca_file: str = option(
        "tls-root-ca-file",
        Kind.STRING,
        "",
        "the file of the authority that clients' certificates are checked with",
        missing=_NO_TLS,
    )
    tls_client_auth_policy: str = option(
        "tls-client-auth-policy",
        Kind.STRING,
        "",
        "what is asked of clients' certificates: 'require' or 'require-verify'",
        missing=_NO_TLS,
    )
    tls_required: TlsRequired = option(
        "tls-required",
        Kind.CHOICE,
        TlsRequired.NO,
        "whether clients must use TLS: true, false, or tcp-https, which leaves HTTP open",
        choices=_TLS_REQUIRED,
        missing=_NO_TLS,
    )
    tls_min_version: TlsVersion = option(
        "tls-min-version",
        Kind.CHOICE,
        TlsVersion.TLS1_0,
        "the oldest TLS to speak: tls1.0, tls1.1, tls1.2 or tls1.3",
        choices=_TLS_VERSIONS,
        missing=_NO_TLS,
    )
    auth_http_addresses: tuple[str, ...] = option(
        "auth-http-address",
        Kind.STRINGS,
        (),
        "<addr>:<port> or URL of an auth server; may be given several times",
        config_key="auth_http_addresses",
        missing=_NO_AUTH,
        section="authorization",
    )
    auth_http_request_method: str = option(
        "auth-http-request-method",
        Kind.CHOICE,
        "get",
        "how the auth server is asked: get or post",
        choices=(("get", "get"), ("post", "post")),
    )

    log_level: LogLevel = option(
        "log-level",
        Kind.CHOICE,
        LogLevel.INFO,
        "how much to log: debug, info, warn, error or fatal",
        choices=_LOG_LEVELS,
        section="log lines and metrics",
    )
    log_prefix: str = option(
        "log-prefix", Kind.STRING, "[martlet] ", "what each log line begins with"
    )
    node_id: int = option(
        "node-id",
        Kind.INT,
        lambda: default_node_id(socket.gethostname()),
        "a number for this broker, from 0 to 1023 (default: made from the host's name)",
        config_key="id",
        limits=(0, 1023),
        instead="message ids begin at a random number for each queue; this one is only logged",
    )
    statsd_address: str = option(
        "statsd-address",
        Kind.STRING,
        "",
        "<addr>:<port> of a statsd server",
        instead="this version sends no metrics to statsd: read /stats",
    )
    statsd_prefix: str = option(
        "statsd-prefix", Kind.STRING, "nsq.%s", "the prefix of statsd keys, %s being the host"
    )
    statsd_interval_ns: int = option(
        "statsd-interval",
        Kind.DURATION,
        MINUTE_NS,
        "how often metrics go to statsd",
        limits=(MILLISECOND_NS, None),
    )
    statsd_mem_stats: bool = option(
        "statsd-mem-stats", Kind.BOOL, True, "whether statsd gets metrics of memory"
    )
    statsd_udp_packet_size: int = option(
        "statsd-udp-packet-size",
        Kind.INT,
        508,
        "the most bytes of a packet to statsd",
        limits=(64, 65507),
    )
    statsd_exclude_ephemeral: bool = option(
        "statsd-exclude-ephemeral",
        Kind.BOOL,
        False,
        "leave ephemeral topics and channels out of what statsd gets",
    )
    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        "e2e-processing-latency-percentile",
        Kind.FLOATS,
        (),
        "percentiles of the time from publish to finish, as 1.0,0.99,0.95",
        config_key="e2e_processing_latency_percentiles",
        instead="this version does not measure it",
    )
    e2e_processing_latency_window_time_ns: int = option(
        "e2e-processing-latency-window-time",
        Kind.DURATION,
        10 * MINUTE_NS,
        "over how long those percentiles are taken",
        limits=(MILLISECOND_NS, None),
    )
    experiments: tuple[str, ...] = option(
        "enable-experiment",
        Kind.STRINGS,
        (),
        "an experiment of nsqd, such as topology-aware-consumption",
        config_key="enable_experiment",
        instead="there are none here",
    )

    def __post_init__(self) -> None:
        for flag in flags().values():
            value = getattr(self, flag.field)
            flag.check(value)
            if flag.missing and value != default_value(flag):
                raise OptionError(f"--{flag.name} cannot be used: {flag.missing}")
        for level in self.e2e_processing_latency_percentiles:
            if not 0 < level <= 1:
                raise OptionError(
                    f"--e2e-processing-latency-percentile is {level}; it must be over 0, at most 1"
                )

    @property
    def segment_bytes(self) -> int:
        """The size of a segment: as asked, but no less than the largest command fills.

        A command of messages of one byte grows most when stored: from 5 bytes each to 39.
        """
        return max(self.max_bytes_per_file, 8 * max(self.max_body_size, self.max_msg_size) + MIB)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """The flags that are set to another value than the default, and do nothing here."""
        return [
            (flag, getattr(self, flag.field))
            for flag in flags().values()
            if flag.instead and getattr(self, flag.field) != default_value(flag)
        ]

    def replace(self, **changes: object) -> Self:
        """The same options but for those named, checked again."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> dict[str, Any]:
        """What a parsed config file sets, as keyword arguments.  Keys that are unknown are left.

        Raises:
            OptionError: a value cannot be what its key stands for.
        """
        return {
            flag.field: flag.coerce(config[flag.config_key])
            for flag in flags().values()
            if flag.config_key in config
        }


@cache
def flags() -> dict[str, Flag]:
    """Every flag of a broker by its name on the command line, in the order of the help."""
    return {
        entry.metadata["flag"].name: dataclasses.replace(entry.metadata["flag"], field=entry.name)
        for entry in dataclasses.fields(BrokerOptions)
        if "flag" in entry.metadata
    }


@cache
def default_value(flag: Flag) -> object:
    """What a flag's option is when nobody sets it."""
    for entry in dataclasses.fields(BrokerOptions):
        if entry.name == flag.field:
            if entry.default_factory is not dataclasses.MISSING:
                return entry.default_factory()
            return entry.default
    raise KeyError(flag.name)
