"""The options of a lookup daemon, named as nsqlookupd names its flags."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from martlet.options.flag import option
from martlet.options.options import LogOptions
from martlet.text import MINUTE_NS, SECOND_NS


@dataclass(frozen=True, kw_only=True)
class LookupOptions(LogOptions):
    """The options of a lookup daemon."""

    tcp_address: str = option("0.0.0.0:4160", "<addr>:<port> for brokers", section="addresses")
    http_address: str = option("0.0.0.0:4161", "<addr>:<port> for HTTP")
    broadcast_address: str = option(
        socket.gethostname, "the name under which this daemon is reached (default: the host's name)"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "a name by which browsers reach this daemon over HTTP, beside its own name and literal"
        " addresses: pages of any other name are refused what changes something; may be given"
        " several times",
        name="allowed-host",
    )
    inactive_producer_timeout_ns: int = option(
        5 * MINUTE_NS,
        "the time of silence after which a broker is no longer named",
        limits=(0, None),
        section="brokers",
    )
    tombstone_lifetime_ns: int = option(
        45 * SECOND_NS, "how long a broker stays hidden for a topic", limits=(0, None)
    )
    max_connections: int = option(
        10_000,
        "maximum connected brokers (0: limited by the system only)",
        limits=(0, None),
    )
