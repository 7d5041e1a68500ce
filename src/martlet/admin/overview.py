"""The pages of what brokers count: overview, topics, channels, brokers, counter; and the audit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from aiohttp import web

from martlet.admin import shown
from martlet.admin.audit import AuditEntry
from martlet.admin.cluster import BrokerView, ChannelTotals, ClusterView, TopicTotals
from martlet.admin.guard import user_of
from martlet.admin.history import CountHistory
from martlet.admin.listing import Column, TablePage, listing
from martlet.admin.pages.export import send_lines
from martlet.admin.site import SITE, PageNotFound, Site
from martlet.client.admin import (
    Admin,
    AdminError,
    ClientStats,
    FinishLatency,
    ReplicaReport,
    TopicStats,
)
from martlet.client.admin.http import WITHHELD

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
    Column("name", "Consumer", lambda each: (each.client.client_id, each.client.hostname)),
    Column("broker", "Broker", lambda each: each.broker),
    Column("ready", "RDY", lambda each: each.client.ready_count, "How many it takes at once"),
    Column("flight", "In flight", lambda each: each.client.in_flight_count),
    Column("finished", "Finished", lambda each: each.client.finish_count),
    Column("requeued", "Requeued", lambda each: each.client.requeue_count),
    Column("since", "Connected", lambda each: each.client.connected_at_s),
)


def _identity(consumer: ConnectedConsumer) -> str:
    client = consumer.client
    return " ".join((client.client_id, client.hostname, client.remote_address, client.user_agent))


_AUDIT_COLUMNS: tuple[Column[AuditEntry], ...] = (
    Column("time", "When", lambda entry: entry.timestamp),
    Column("user", "Who", lambda entry: entry.user),
    Column("address", "From", lambda entry: entry.remote_ip),
    Column("action", "Action", lambda entry: entry.action),
    Column("place", "Of", lambda entry: (entry.topic, entry.channel, entry.node)),
    Column("result", "Result", lambda entry: entry.result),
)
_NAMING = ("user", "address")
_NAMING_FIELDS = ("user", "remote_ip", "user_agent", "url", "detail")
"""The columns, and the fields, that viewers of numbers do not see."""


def _tops(view: ClusterView, history: CountHistory) -> list[tuple[str, str, list[Any]]]:
    """The channels that an operator looks at first."""
    channels = [each for topic in view.topics.values() for each in topic.channels.values()]

    def top(value: Any, show: Any) -> list[tuple[ChannelTotals, str]]:
        known = [(value(each), each) for each in channels]
        known = [(number, each) for number, each in known if number is not None and number > 0]
        known.sort(key=lambda pair: (-pair[0], pair[1].key))
        return [(each, show(number)) for number, each in known[:_TOP]]

    return [
        ("Longest queues", "Waiting", top(lambda each: each.counts.depth, shown.number)),
        (
            "Fastest growing",
            "In five minutes",
            top(lambda each: history.growth(each.key), shown.number),
        ),
        ("Longest waits", "Oldest", top(lambda each: each.oldest_age_s, shown.duration)),
        (
            "Most failures",
            "Requeued and timed out",
            top(lambda each: each.counts.requeue_count + each.counts.timeout_count, shown.number),
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
        found = view.topics.get(name)
        if found is None:
            raise PageNotFound(f"no broker that answers has a topic {name!r}")
        return {"topic": found}

    return await request.app[SITE].show(request, "topic.html", context)


async def channel(request: web.Request) -> web.StreamResponse:
    """``/topics/T/C``: the only page with consumers, of whom brokers are asked for it."""
    site = request.app[SITE]
    names = request.match_info["topic"], request.match_info["channel"]
    if names[1] == "messages" and (await site.collector.fresh()).channel(*names) is None:
        raise web.HTTPFound(site.url("/messages", topic=names[0]))

    async def context(view: ClusterView) -> dict[str, Any]:
        found = view.channel(*names)
        if found is None:
            raise PageNotFound(f"no broker that answers has a channel {names[1]!r} of {names[0]!r}")
        if names not in view.asked:
            view.asked[names] = asyncio.ensure_future(_ask_channel(site.admin, *names))
        # Shielded: other tabs await it, too.
        asked: _NamedChannel = await asyncio.shield(view.asked[names])
        return {
            "channel": found,
            "list": listing(asked.consumers, _CONSUMER_COLUMNS, request.query, _identity, "name"),
            "latency": asked.latency,
            "consumers_error": asked.error,
            "undos": site.undos.of(*names),
        }

    return await site.show(request, "channel.html", context)


@dataclass(frozen=True)
class _NamedChannel:
    """What brokers say of a channel that is asked for by its name.

    Attributes:
        consumers: those of all brokers.
        latency: of their finishes; None where no broker says.
    """

    consumers: list[ConnectedConsumer] = field(default_factory=list)
    latency: FinishLatency | None = None
    error: str = ""


async def _ask_channel(admin: Admin, topic: str, channel: str) -> _NamedChannel:
    try:
        answers = await admin.channels.list(topic, channel, include_clients=True)
    except AdminError as error:
        return _NamedChannel(error=str(error))
    found = [
        ConnectedConsumer(broker.partition("://")[2], client)
        for broker, channels in answers.values.items()
        for each in channels
        for client in each.clients
    ]
    latency: FinishLatency | None = None
    for each in answers.joined():
        if each.finish_latency is not None:
            latency = latency + each.finish_latency if latency else each.finish_latency
    return _NamedChannel(found, latency, "; ".join(map(str, answers.failures.values())))


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
        found: BrokerView | None = next(
            (each for each in view.brokers.values() if each.address == address), None
        )
        if found is None:
            raise PageNotFound(f"there is no broker {address!r}")
        rows = found.stats.topics if found.stats else ()
        table = listing(rows, _NODE_COLUMNS, request.query, lambda topic: topic.topic, "name")
        if found.url not in view.asked:
            view.asked[found.url] = asyncio.ensure_future(_ask_node(site, found.url))
        report, daemons = await asyncio.shield(view.asked[found.url])
        withheld = WITHHELD if site.admin.http.withholds_token(found.url) else ""
        return {
            "broker": found,
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
        (daemon, each.tombstones)
        for daemon, nodes in answers.values.items()
        for each in nodes
        if f"{each.broadcast_address}:{each.http_port}" == address
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
        channels = [each for topic in view.topics.values() for each in topic.channels.values()]
        return {"total": sum(each.counts.message_count for each in channels)}

    return await request.app[SITE].show(request, "counter.html", context)


def _audit_table(request: web.Request) -> TablePage[AuditEntry]:
    entries = list(reversed(request.app[SITE].audit.entries))
    sees_names = user_of(request).sees_texts
    columns = [each for each in _AUDIT_COLUMNS if sees_names or each.name not in _NAMING]

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
    found = _audit_table(request).all_found
    hidden = () if user_of(request).sees_texts else _NAMING_FIELDS

    async def rows() -> AsyncIterator[Mapping[str, Any]]:
        for entry in found:
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
