"""The layouts of ``/stats``: the same counts as JSON, and as text in nsqd's layout.

The work is done in slices (`martlet.server.clock`), channel by channel and client by client.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from datetime import datetime

from martlet import __version__
from martlet.schema.counts import CHANNEL_COUNTS, TOPIC_COUNTS, Count
from martlet.server.clock import TimeSlice
from martlet.server.observability.stats import Report
from martlet.text import SECOND_NS, format_duration, go_json


def _layout(counts: Iterable[Count]) -> str:
    """Return the format of a line's counts; the count of messages is the last, as in nsqd's."""
    shown = [count for count in counts if count.text]
    shown.sort(key=lambda count: count.name == "message_count")
    return " ".join(count.text.replace("%", f"%({count.name})") for count in shown)


_TOPIC, _CHANNEL = _layout(TOPIC_COUNTS), _layout(CHANNEL_COUNTS)
_MAX_AT_ONCE = 16
"""How many channels, without clients, are written in one step."""


def _with_items(report: Report, name: str, items: list[str] | None) -> str:
    """Return the report as JSON, with a list of items that are JSON already; None for null."""
    # No value before it can contain a quotation mark.
    text = go_json({**report, name: None})
    if items is None:
        return text
    return text.replace(f'"{name}":null', f'"{name}":[{",".join(items)}]', 1)


async def topic_json(topic: Report, pace: TimeSlice) -> str:
    """Return a topic with its channels and their clients as JSON."""
    if len(topic["channels"]) <= _MAX_AT_ONCE and not any(
        channel["clients"] for channel in topic["channels"]
    ):
        return go_json(topic)
    channels = []
    for channel in topic["channels"]:
        channels.append(
            _with_items(channel, "clients", await _clients_json(channel["clients"], pace))
        )
        await pace.rest()
    return _with_items(topic, "channels", channels)


async def _clients_json(clients: Sequence[Report] | None, pace: TimeSlice) -> list[str] | None:
    if clients is None:
        return None
    texts = []
    for client in clients:
        texts.append(go_json(client))
        await pace.rest()
    return texts


async def report_json(
    head: Report,
    topics: Sequence[str] | None,
    memory: Report | None,
    producers: Sequence[Report] | None,
    tail: Report,
    pace: TimeSlice,
) -> str:
    """Return the report as JSON, of topics that are JSON already, in nsqd's order of fields."""
    clients = await _clients_json(producers or None, pace)
    fields = {
        "topics": "null" if topics is None else f"[{','.join(topics)}]",
        **({} if memory is None else {"memory": go_json(memory)}),
        "producers": "null" if clients is None else f"[{','.join(clients)}]",
        **{name: go_json(value) for name, value in tail.items()},
    }
    return go_json(head)[:-1] + "".join(f',"{name}":{text}' for name, text in fields.items()) + "}"


async def report_text(
    head: Report,
    topics: Sequence[str] | None,
    memory: Report | None,
    producers: Sequence[Report] | None,
    now_ns: int,
    pace: TimeSlice,
) -> str:
    """Return the report as text, of topics that are text already."""
    started_s = head["start_time"]
    started = datetime.fromtimestamp(started_s).astimezone()
    zone = started.strftime("%z")
    lines = [
        f"nsqd v{head['version']} (martlet v{__version__} on python {platform.python_version()})",
        f"start_time {started:%Y-%m-%dT%H:%M:%S}"
        + ("Z" if zone == "+0000" else f"{zone[:3]}:{zone[3:]}"),
        f"uptime {format_duration(max(0, now_ns - started_s * SECOND_NS))}",
        "",
        f"Health: {head['health']}",
    ]
    if memory is not None:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in memory.items()]
    lines += ["", "Topics:" if topics else "Topics: None"]
    if topics:
        lines += ["\n\n".join(topics)]
    lines += ["", "Producers:" if producers else "Producers: None"]
    for client in producers or ():
        lines.append(f"   {_client_line(client, now_ns)}")
        await pace.rest()
    return "\n".join(lines) + "\n"


async def topic_text(topic: Report, now_ns: int, pace: TimeSlice) -> str:
    """Return a topic with its channels and their clients as text."""
    mark = "*P " if topic["paused"] else "   "
    lines = [f"{mark}[{topic['topic_name']:<15}] {_TOPIC % topic} e2e%: {_shown_latency(topic)}"]
    for channel in topic["channels"]:
        mark = "   *P " if channel["paused"] else "      "
        lines.append(
            f"{mark}[{channel['channel_name']:<25}] {_CHANNEL % channel}"
            f" e2e%: {_shown_latency(channel)}"
        )
        await pace.rest()
        for client in channel["clients"] or ():
            lines.append(f"        {_client_line(client, now_ns)}")
            await pace.rest()
    return "\n".join(lines)


def _shown_latency(report: Report) -> str:
    percentiles = report["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(_shown_duration(percentile["value"]) for percentile in percentiles)


def _shown_duration(value_ns: float) -> str:
    for unit_ns, unit in ((10**9, "s"), (10**6, "ms"), (10**3, "us")):
        if value_ns > unit_ns:
            return f"{value_ns / unit_ns:.1f}{unit}"
    return f"{value_ns:.1f}ns"


def _client_line(client: Report, now_ns: int) -> str:
    connected_ns = max(0, now_ns - client["connect_ts"] * SECOND_NS)
    connected = format_duration(connected_ns // SECOND_NS * SECOND_NS)
    _, colon, port = client["remote_address"].rpartition(":")
    port = port if colon else ""
    name = f"{client['hostname']}:{port} {client['user_agent']}"
    if client.get("pub_counts"):
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in client["pub_counts"])
        total = sum(entry["count"] for entry in client["pub_counts"])
        return (
            f"[{client['version']} {name:<21}] msgs: {total:<8} topics: {topics}"
            f" connected: {connected}"
        )
    return (
        f"[{client['version']} {name:<21}] state: {client['state']}"
        f" inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4}"
        f" fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8}"
        f" msgs: {client['message_count']:<8} connected: {connected}"
    )
