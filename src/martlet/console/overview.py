"""The pages of what brokers count: overview, topics, channels, brokers, counter; and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web

from martlet.client.admin import (
    Admin,
    AdminError,
    ClientStats,
    FinishLatency,
    ReplicaReport,
    TopicStats,
)
from martlet.client.admin.http import WITHHELD
from martlet.console import shown
from martlet.console.audit import AuditEntry
from martlet.console.cluster import BrokerView, ChannelTotals, ClusterView, TopicTotals
from martlet.console.guard import user_of
from martlet.console.history import CountHistory
from martlet.console.listing import Column, TablePage, listing
from martlet.console.pages.export import send_lines
from martlet.console.site import SITE, PageNotFound, Site

_TOP = 10
"""The rows of each list of the overview."""

TOPIC_COLUMNS: tuple[Column[TopicTotals], ...] = (
    Column("name", "Topic", lambda topic: topic.topic),
    Column("depth", "Waiting", lambda topic: topic.total_depth, "In the topic and its channels"),
    Column("in", "Messages/s in", lambda topic: topic.in_per_s),
    Column("out", "out", lambda topic: topic.out_per_s, "Finished by all channels together"),
    Column("queues", "Queues", lambda topic: topic.queue_count),
    Column("channels", "Channels", lambda topic: len(topic.channels)),
    Column("consumers", "Consumers", lambda topic: topic.client_count),
    Column("messages", "Messages", lambda topic: topic.message_count, "Published so far"),
    Column("oldest", "Oldest", lambda topic: topic.oldest_age_s, "The oldest message that waits"),
    Column("failed", "Failed", lambda topic: topic.failed_count, "Requeued and timed out"),
)
_NODE_COLUMNS: tuple[Column[TopicStats], ...] = (
    Column("name", "Topic", lambda topic: topic.topic),
    Column("depth", "Depth", lambda topic: topic.depth, "Messages that no channel has received"),
    Column("messages", "Messages", lambda topic: topic.message_count, "Published so far"),
    Column("channels", "Channels", lambda topic: len(topic.channels)),
)


@dataclass(frozen=True)
class ConnectedConsumer:
    """A consumer, and the address of its broker."""

    broker: str
    client: ClientStats


_CONSUMER_COLUMNS: tuple[Column[ConnectedConsumer], ...] = (
    Column("name", "Consumer", lambda row: (row.client.client_id, row.client.hostname)),
    Column("broker", "Broker", lambda row: row.broker),
    Column("ready", "RDY", lambda row: row.client.ready_count, "How many it takes at once"),
    Column("flight", "In flight", lambda row: row.client.in_flight_count),
    Column("finished", "Finished", lambda row: row.client.finish_count),
    Column("requeued", "Requeued", lambda row: row.client.requeue_count),
    Column("since", "Connected", lambda row: row.client.connected_at_s),
)


def _identity(consumer: ConnectedConsumer) -> str:
    client = consumer.client
    return " ".join((client.client_id, client.hostname, client.remote_address, client.user_agent))


_AUDIT_COLUMNS: tuple[Column[AuditEntry], ...] = (
    Column("time", "When", lambda entry: entry.timestamp),
    Column("user", "Who", lambda entry: entry.user),
    Column("address", "From", lambda entry: entry.remote_ip),
    Column("action", "Action", lambda entry: entry.action),
    Column("target", "Of", lambda entry: (entry.topic, entry.channel, entry.node)),
    Column("result", "Result", lambda entry: entry.result),
)
_NAMING = ("user", "address")
_NAMING_FIELDS = ("user", "remote_ip", "user_agent", "url", "detail")
"""The columns, and the fields, that viewers of numbers do not see."""


def _tops(view: ClusterView, history: CountHistory) -> list[tuple[str, str, list[Any]]]:
    """The channels that an operator reads first."""
    channels = [totals for topic in view.topics.values() for totals in topic.channels.values()]

    def top(value: Any, show: Any) -> list[tuple[ChannelTotals, str]]:
        ranked = [(value(channel), channel) for channel in channels]
        ranked = [pair for pair in ranked if pair[0] is not None and pair[0] > 0]
        ranked.sort(key=lambda pair: (-pair[0], pair[1].key))
        return [(channel, show(number)) for number, channel in ranked[:_TOP]]

    return [
        ("Longest queues", "Waiting", top(lambda channel: channel.counts.depth, shown.number)),
        (
            "Fastest growing",
            "In five minutes",
            top(lambda channel: history.growth(channel.key), shown.number),
        ),
        ("Longest waits", "Oldest", top(lambda channel: channel.oldest_age_s, shown.duration)),
        (
            "Most failures",
            "Requeued and timed out",
            top(lambda totals: totals.failed_count, shown.number),
        ),
    ]


async def overview(request: web.Request) -> web.StreamResponse:
    """``/``"""
    site = request.app[SITE]

    async def context(view: ClusterView) -> dict[str, Any]:
        return {"tops": _tops(view, site.collector.history), "depths": view.depths()}

    return await site.show(request, "overview.html", context)


async def topics(request: web.Request) -> web.StreamResponse:
    """``/topics``"""

    async def context(view: ClusterView) -> dict[str, Any]:
        rows = list(view.topics.values())
        table = listing(rows, TOPIC_COLUMNS, request.query, lambda topic: topic.topic, "-depth")
        return {"list": table}

    return await request.app[SITE].show(request, "topics.html", context)


async def topic(request: web.Request) -> web.StreamResponse:
    """``/topics/T``"""
    name = request.match_info["topic"]

    async def context(view: ClusterView) -> dict[str, Any]:
        totals = view.topics.get(name)
        if totals is None:
            raise PageNotFound(f"no broker that answers has a topic {name!r}")
        return {"topic": totals}

    return await request.app[SITE].show(request, "topic.html", context)


async def channel(request: web.Request) -> web.StreamResponse:
    """``/topics/T/C``: the only page with consumers, of whom brokers are asked for it."""
    site = request.app[SITE]
    names = request.match_info["topic"], request.match_info["channel"]
    if names[1] == "messages" and (await site.collector.fresh()).channel(*names) is None:
        raise web.HTTPFound(site.url("/messages", topic=names[0]))

    async def context(view: ClusterView) -> dict[str, Any]:
        totals = view.channel(*names)
        if totals is None:
            raise PageNotFound(f"no broker that answers has a channel {names[1]!r} of {names[0]!r}")
        if names not in view.answers:
            view.answers[names] = asyncio.ensure_future(_ask_channel(site.admin, *names))
        # Shielded: other tabs await it, too.
        answer: _NamedChannel = await asyncio.shield(view.answers[names])
        return {
            "channel": totals,
            "list": listing(answer.consumers, _CONSUMER_COLUMNS, request.query, _identity, "name"),
            "latency": answer.latency,
            "consumers_error": answer.error,
            "undos": site.undos.of(*names),
        }

    return await site.show(request, "channel.html", context)


@dataclass(frozen=True)
class _NamedChannel:
    """What brokers say of a channel that is asked for by its name."""

    consumers: list[ConnectedConsumer] = field(default_factory=list)
    """Those of all brokers."""
    latency: FinishLatency | None = None
    """Of their finishes; None where no broker says."""
    error: str = ""


async def _ask_channel(admin: Admin, topic: str, channel: str) -> _NamedChannel:
    try:
        answers = await admin.channels.list(topic, channel, include_clients=True)
    except AdminError as error:
        return _NamedChannel(error=str(error))
    consumers = [
        ConnectedConsumer(broker.partition("://")[2], client)
        for broker, channels in answers.values.items()
        for channel in channels
        for client in channel.clients
    ]
    latency: FinishLatency | None = None
    for totals in answers.joined():
        if totals.finish_latency is not None:
            latency = latency + totals.finish_latency if latency else totals.finish_latency
    return _NamedChannel(consumers, latency, "; ".join(map(str, answers.failures.values())))


async def nodes(request: web.Request) -> web.StreamResponse:
    """``/nodes``"""

    async def context(view: ClusterView) -> dict[str, Any]:
        return {"depths": view.depths()}

    return await request.app[SITE].show(request, "nodes.html", context)


async def node(request: web.Request) -> web.StreamResponse:
    """``/nodes/N``"""
    site = request.app[SITE]
    address = request.match_info["node"]

    async def context(view: ClusterView) -> dict[str, Any]:
        broker: BrokerView | None = next(
            (broker for broker in view.brokers.values() if broker.address == address), None
        )
        if broker is None:
            raise PageNotFound(f"there is no broker {address!r}")
        rows = broker.stats.topics if broker.stats else ()
        table = listing(rows, _NODE_COLUMNS, request.query, lambda topic: topic.topic, "name")
        if broker.url not in view.answers:
            view.answers[broker.url] = asyncio.ensure_future(_ask_node(site, broker.url))
        report, daemons = await asyncio.shield(view.answers[broker.url])
        withheld = WITHHELD if site.admin.http.withholds_token(broker.url) else ""
        return {
            "broker": broker,
            "list": table,
            "report": report,
            "daemons": daemons,
            "withheld": withheld,
        }

    return await site.show(request, "node.html", context)


Daemons = list[tuple[str, Sequence[str]]]
"""The lookup daemons that know a broker, each with the topics for which it hides it."""


async def _ask_node(site: Site, url: str) -> tuple[ReplicaReport | None, Daemons | None]:
    """Return what a broker says of its replicas, and lookup daemons of it; None where not asked."""
    has_daemons = bool(site.options.lookupd_http_addresses)
    report, daemons = await asyncio.gather(
        _replicas(site.admin.at(url)),
        _daemons(site.admin, url.partition("://")[2]) if has_daemons else asyncio.sleep(0),
    )
    return report, daemons


async def _daemons(admin: Admin, address: str) -> Daemons | None:
    try:
        answers = await admin.nodes.list()
    except AdminError:
        return None  # The page of lookup daemons says why.
    return [
        (daemon, node.tombstones)
        for daemon, nodes in answers.values.items()
        for node in nodes
        if f"{node.broadcast_address}:{node.http_port}" == address
    ]


async def _replicas(admin: Admin) -> ReplicaReport | None:
    """Return what a broker says of its replicas; None of one without, or that does not answer."""
    try:
        answers = await admin.replicas.show()
    except AdminError:
        return None  # The page says on its own whether the broker answers.
    return next(iter(answers.values.values()), None)


async def counter(request: web.Request) -> web.StreamResponse:
    """``/counter``"""

    async def context(view: ClusterView) -> dict[str, Any]:
        channels = [totals for topic in view.topics.values() for totals in topic.channels.values()]
        return {"total": sum(channel.counts.message_count for channel in channels)}

    return await request.app[SITE].show(request, "counter.html", context)


def _audit_table(request: web.Request) -> TablePage[AuditEntry]:
    entries = list(reversed(request.app[SITE].audit.entries))
    sees_names = user_of(request).sees_texts
    columns = [column for column in _AUDIT_COLUMNS if sees_names or column.name not in _NAMING]

    def text(entry: AuditEntry) -> str:
        # What is not shown is not searched: it would be told by what the filter leaves.
        names = (entry.user, entry.remote_ip) if sees_names else ()
        return " ".join((*names, entry.action, entry.topic, entry.channel, entry.result))

    return listing(entries, columns, request.query, text, "-time", is_ordered=True)


async def audit(request: web.Request) -> web.StreamResponse:
    """``/audit``"""
    return request.app[SITE].page(request, "audit.html", {"list": _audit_table(request)})


async def export_audit(request: web.Request) -> web.StreamResponse:
    """``/audit/export``: what a filter leaves of the audit, as JSON lines, as in --audit-file."""
    if not request.app[SITE].options.export:
        raise web.HTTPForbidden(text="nothing is downloaded from this page: see --export")
    entries = _audit_table(request).all_found
    hidden = () if user_of(request).sees_texts else _NAMING_FIELDS

    async def rows() -> AsyncIterator[Mapping[str, Any]]:
        for entry in entries:
            yield {name: value for name, value in asdict(entry).items() if name not in hidden}

    return await send_lines(request, "audit", rows())


async def data(request: web.Request) -> web.StreamResponse:
    """``/data``, ``/data/T``, ``/data/T/C``: the history of a series for its plot."""
    history = request.app[SITE].collector.history
    key = request.match_info.get("topic", ""), request.match_info.get("channel", "")
    return web.json_response(
        [history.times_s(), *(history.series(key, field) for field in ("in", "out", "depth"))]
    )


async def lookup(request: web.Request) -> web.StreamResponse:
    """``/lookup``"""
    site = request.app[SITE]
    inactive: dict[str, list[str]] = {}
    error = ""
    if site.options.lookupd_http_addresses:
        try:
            inactive = await site.admin.lookup.inactive_topics()
        except AdminError as failed:
            error = str(failed)
    return site.page(request, "lookup.html", {"inactive": inactive, "error": error})
