"""Statsd: push counts to a statsd server over UDP, as nsqd does.

Each count is a line, and a packet has as many lines as fit::

    nsq.host_4151.topic.orders.message_count:17|c
    nsq.host_4151.topic.orders.depth:4|g

A count that only grows is a counter (``c``), sent as the difference from the last push; all others
are gauges (``g``). The packets of one push are spread over the interval, except its last second, so
that they do not overrun the receiver.

There are two differences from nsqd: a topic or channel that was deleted and created again counts
from 0 instead of sending a negative difference, and gauges of Go's memory without an equivalent in
Python are 0, as in ``/stats``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from martlet.names import is_ephemeral
from martlet.schema.counts import CHANNEL_COUNTS, COUNTER, TOPIC_COUNTS, Count
from martlet.server.clock import TimeSlice
from martlet.server.observability.stats import Report, pauses
from martlet.text import SECOND_NS

if TYPE_CHECKING:
    from martlet.options import BrokerOptions
    from martlet.server.observability.stats import StatsSource

log = logging.getLogger(__name__)

_OPEN_S = 1.0
"""The timeout for resolving the receiver's address."""


def _sent(counts: Iterable[Count]) -> list[tuple[str, str, bool]]:
    """Return what statsd gets, in nsqd's order, where counts of messages are the first: the name
    here and in ``/stats``, and whether it is a counter.
    """
    sent = [count for count in counts if count.statsd]
    sent.sort(key=lambda count: not count.name.startswith("message_"))
    return [(count.statsd, count.name, count.kind == COUNTER) for count in sent]


_TOPIC_COUNTS, _CHANNEL_COUNTS = _sent(TOPIC_COUNTS), _sent(CHANNEL_COUNTS)


def expand_prefix(template: str, address: str, port: int) -> str:
    """Return the prefix of all names: the template with the host for each ``%s``, and a dot.

    Args:
        template: the value of ``--statsd-prefix``; empty for no prefix.
        address, port: the broker's advertised HTTP address.
    """
    if not template:
        return ""
    host = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    prefix = template.replace("%s", host.replace(".", "_").replace(":", "_"))
    return prefix if prefix.endswith(".") else f"{prefix}."


def packets(lines: Iterable[str], max_bytes: int) -> Iterator[bytes]:
    """Pack the lines into packets of a maximum size; a longer line gets a packet of its own."""
    packet = bytearray()
    for line in lines:
        data = line.encode() + b"\n"
        if packet and len(packet) + len(data) > max_bytes:
            yield bytes(packet)
            packet.clear()
        packet += data
    if packet:
        yield bytes(packet)


class Statsd:
    """Make the lines, with the counters' differences from the last push.

    Args:
        options: the prefix with the host in place, and the counts to leave out.

    For each push call `begin`, and then the methods for lines.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self._prefix = options.statsd_prefix
        self._exclude_ephemeral = options.statsd_exclude_ephemeral
        self._before: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a push: counters are differences from the one before."""
        self._before, self._counted = self._counted, {}

    def _counter(self, name: str, count: int) -> str:
        since = count - self._before.get(name, 0)
        self._counted[name] = count
        return f"{self._prefix}{name}:{since if since >= 0 else count}|c"

    def _gauge(self, name: str, value: float) -> str:
        return f"{self._prefix}{name}:{int(value)}|g"

    def _latencies(self, name: str, report: Report) -> Iterator[str]:
        for item in report["e2e_processing_latency"]["percentiles"] or ():
            percent = f"{item['quantile'] * 100:.0f}"
            yield self._gauge(f"{name}.e2e_processing_latency_{percent}", item["value"])

    def topic_lines(self, topic: Report) -> Iterator[str]:
        """Return the lines of a topic and its channels, from their report in ``/stats``."""
        if not self._is_reported(topic["topic_name"]):
            return
        name = f"topic.{topic['topic_name']}"
        yield from self._lines(_TOPIC_COUNTS, name, topic)
        for channel in topic["channels"]:
            if self._is_reported(channel["channel_name"]):
                of = f"{name}.channel.{channel['channel_name']}"
                yield from self._lines(_CHANNEL_COUNTS, of, channel)

    def _lines(
        self, counts: Sequence[tuple[str, str, bool]], name: str, report: Report
    ) -> Iterator[str]:
        for sent, field, is_counter in counts:
            if is_counter:
                yield self._counter(f"{name}.{sent}", report[field])
            else:
                yield self._gauge(f"{name}.{sent}", report[field])
        yield from self._latencies(name, report)

    def memory_lines(self, memory: Report) -> Iterator[str]:
        """Return the lines of the process."""
        for name, value in memory.items():
            if name != "gc_total_runs":
                yield self._gauge(f"mem.{name}", value)
        yield self._counter("mem.gc_runs", memory["gc_total_runs"])

    def _is_reported(self, name: str) -> bool:
        return not (self._exclude_ephemeral and is_ephemeral(name))


class _Silent(asyncio.DatagramProtocol):
    """Ignore answers, such as an unreachable port: UDP promises nothing."""


async def push(stats: StatsSource, options: BrokerOptions) -> None:
    """Send the counts at each interval, until cancelled; then send the rest at once."""
    pauses.watch()
    statsd = Statsd(options)
    loop = asyncio.get_running_loop()
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
                    str(error) or "its address is unknown",
                )
                continue
            log.info("STATSD: pushing stats to %s", options.statsd_address)
            with closing(transport):
                await _send(transport, await _counts(stats, statsd, options), interval_s - 1)
    finally:
        log.info("STATSD: closing")


async def _counts(stats: StatsSource, statsd: Statsd, options: BrokerOptions) -> list[bytes]:
    """Make the packets of one push, in slices."""
    pace = TimeSlice()
    lines: list[str] = []
    statsd.begin()
    async for report in stats.topic_reports(pace, include_clients=False):
        for line in statsd.topic_lines(report):
            lines.append(line)
            await pace.rest()
    if options.statsd_mem_stats:
        lines += statsd.memory_lines(pauses.memory())
    made: list[bytes] = []
    for packet in packets(lines, options.statsd_udp_packet_size):
        made.append(packet)
        await pace.rest()
    return made


async def _open(address: str) -> asyncio.DatagramTransport:
    """Open a socket to an address. Raises OSError, and ValueError for a bad address."""
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
    """Send packets with a pause after each."""
    pause_s = max(0.0, spread_over_s) / max(1, len(unsent))
    unsent.reverse()
    try:
        while unsent:
            transport.sendto(unsent.pop())
            await asyncio.sleep(pause_s)
    finally:
        while unsent:
            transport.sendto(unsent.pop())
