"""Statsd: counts pushed to a statsd server over UDP, as nsqd pushes them.

One line a count, as many whole lines a packet as fit::

    nsq.host_4151.topic.orders.message_count:17|c
    nsq.host_4151.topic.orders.depth:4|g

What only grows is a counter (``c``) and is sent as the difference from the last time, everything
else is a gauge (``g``).  The packets of one time are spread over the interval but its last second,
so that they do not overrun the receiver.

Two differences from nsqd: a topic or channel that was deleted and made again counts from nought
instead of sending a negative difference, and gauges of Go's memory that Python's has not are left
out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from martlet.duration import SECOND_NS
from martlet.name import is_ephemeral
from martlet.server.stats import Report, collect, pauses

if TYPE_CHECKING:
    from martlet.options import BrokerOptions
    from martlet.server.server import Server

log = logging.getLogger(__name__)

_OPEN_S = 1.0
"""How long it may take to find the receiver's address."""
_TOPIC_COUNTERS = ("message_count", "message_bytes")
_TOPIC_GAUGES = ("depth", "backend_depth")
_MEMORY_GAUGES = (
    "heap_objects",
    "heap_in_use_bytes",
    "gc_pause_usec_100",
    "gc_pause_usec_99",
    "gc_pause_usec_95",
)


def expand_prefix(template: str, address: str, port: int) -> str:
    """What each name begins with: the template with the host for each ``%s``, and a dot.

    Args:
        template: as ``--statsd-prefix`` gives it; nothing for names without a prefix.
        address, port: where the broker says that its HTTP is.
    """
    if not template:
        return ""
    host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    prefix = template.replace("%s", host.replace(".", "_").replace(":", "_"))
    return prefix if prefix.endswith(".") else f"{prefix}."


def packets(lines: Iterable[str], most_bytes: int) -> Iterator[bytes]:
    """The lines in packets of so many bytes at most; one that is longer goes by itself."""
    packet = bytearray()
    for line in lines:
        data = line.encode() + b"\n"
        if packet and len(packet) + len(data) > most_bytes:
            yield bytes(packet)
            packet.clear()
        packet += data
    if packet:
        yield bytes(packet)


class Statsd:
    """Makes the lines; it remembers what the counters were the last time.

    Args:
        options: the prefix with the host in place, and what to leave out.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._prefix = options.statsd_prefix
        self._exclude_ephemeral = options.statsd_exclude_ephemeral
        self._memory = options.statsd_mem_stats
        self._counted: dict[str, int] = {}

    def lines(self, report: Report) -> list[str]:
        """The lines of a report of `martlet.server.stats`."""
        before, self._counted = self._counted, {}
        lines: list[str] = []

        def counter(name: str, count: int) -> None:
            since = count - before.get(name, 0)
            self._counted[name] = count
            lines.append(f"{self._prefix}{name}:{since if since >= 0 else count}|c")

        def gauge(name: str, value: float) -> None:
            lines.append(f"{self._prefix}{name}:{int(value)}|g")

        def latencies(name: str, latency: Report) -> None:
            for item in latency["percentiles"] or ():
                percent = f"{item['quantile'] * 100:.0f}"
                gauge(f"{name}.e2e_processing_latency_{percent}", item["value"])

        for topic in self._told(report["topics"], "topic_name"):
            name = f"topic.{topic['topic_name']}"
            for field in _TOPIC_COUNTERS:
                counter(f"{name}.{field}", topic[field])
            for field in _TOPIC_GAUGES:
                gauge(f"{name}.{field}", topic[field])
            latencies(name, topic["e2e_processing_latency"])
            for channel in self._told(topic["channels"], "channel_name"):
                below = f"{name}.channel.{channel['channel_name']}"
                counter(f"{below}.message_count", channel["message_count"])
                for field in ("depth", "backend_depth", "in_flight_count", "deferred_count"):
                    gauge(f"{below}.{field}", channel[field])
                for field in ("requeue_count", "timeout_count"):
                    counter(f"{below}.{field}", channel[field])
                gauge(f"{below}.clients", channel["client_count"])
                latencies(below, channel["e2e_processing_latency"])
        if self._memory:
            for field in _MEMORY_GAUGES:
                gauge(f"mem.{field}", report["memory"][field])
            counter("mem.gc_runs", report["memory"]["gc_total_runs"])
        return lines

    def _told(self, named: list[Report], key: str) -> list[Report]:
        if not self._exclude_ephemeral:
            return named
        return [each for each in named if not is_ephemeral(each[key])]


class _Silent(asyncio.DatagramProtocol):
    """What comes back, such as that nobody listens, is of no interest: UDP promises nothing."""


async def push(server: Server) -> None:
    """Send the counts every so often, until cancelled; then what is left is sent at once."""
    options = server.options
    pauses.watch()
    statsd = Statsd(options)
    loop = server.loop
    interval_s = options.statsd_interval_ns / SECOND_NS
    due_s = loop.time()
    try:
        while True:
            due_s = max(due_s + interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            try:
                transport = await _open(options.statsd_address)
            except (OSError, ValueError) as error:
                log.error(
                    "failed to create UDP socket to statsd(%s) - %s; see --statsd-address",
                    options.statsd_address,
                    str(error) or "nobody tells its address",
                )
                continue
            log.info("STATSD: pushing stats to %s", options.statsd_address)
            memory = options.statsd_mem_stats
            report = collect(server, "", "", include_clients=False, include_memory=memory)
            lines = statsd.lines(report)
            await _send(
                transport, list(packets(lines, options.statsd_udp_packet_size)), interval_s - 1
            )
    finally:
        log.info("STATSD: closing")


async def _open(address: str) -> asyncio.DatagramTransport:
    """A socket whose packets go to an address. Raises OSError, and ValueError for none."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("it is no <addr>:<port>")
    opening = asyncio.get_running_loop().create_datagram_endpoint(
        _Silent, remote_addr=(host.strip("[]") or "localhost", int(port))
    )
    transport, _ = await asyncio.wait_for(opening, _OPEN_S)
    return transport


async def _send(
    transport: asyncio.DatagramTransport, unsent: list[bytes], spread_over_s: float
) -> None:
    """Send packets with a pause behind each."""
    pause_s = max(0.0, spread_over_s) / max(1, len(unsent))
    unsent.reverse()
    try:
        while unsent:
            transport.sendto(unsent.pop())
            await asyncio.sleep(pause_s)
    finally:
        while unsent:
            transport.sendto(unsent.pop())
        transport.close()
