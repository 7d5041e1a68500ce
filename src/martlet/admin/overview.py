"""The pages of what brokers count: overview, topics, channels, brokers, counter; and the audit."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from martlet.admin import shown
from martlet.admin.audit import AuditEntry
from martlet.admin.cluster import BrokerView, ChannelTotals, ClusterView, TopicTotals
from martlet.admin.history import CountHistory
from martlet.admin.listing import Column, listing
from martlet.admin.site import SITE, PageNotFound
from martlet.client.admin import Admin, AdminError, ClientStats, ReplicaReport, TopicStats

_TOP = 10
"""The rows of each list of the overview."""

TOPIC_COLUMNS: tuple[Column[TopicTotals], ...] = (
    Column("name", "Topic", lambda topic: topic.topic),
    Column("depth", "Waiting", lambda topic: topic.total_depth, "In the topic and its channels"),
    Column("in", "Messages/s in", lambda topic: topic.in_per_s),
    Column("out", "out", lambda topic: topic.out_per_s, "Finished by all channels together"),
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
        return {"tops": _tops(view, site.collector.history)}

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
            view.asked[names] = asyncio.ensure_future(_consumers(site.admin, *names))
        # Shielded: other tabs await it, too.
        rows, error = await asyncio.shield(view.asked[names])
        table = listing(rows, _CONSUMER_COLUMNS, request.query, _identity, "name")
        undos = site.undos.of(*names)
        return {"channel": found, "list": table, "consumers_error": error, "undos": undos}

    return await site.show(request, "channel.html", context)


async def _consumers(admin: Admin, topic: str, channel: str) -> tuple[list[ConnectedConsumer], str]:
    """Return the consumers of a channel, and what went wrong."""
    try:
        answers = await admin.channels.list(topic, channel, include_clients=True)
    except AdminError as error:
        return [], str(error)
    found = [
        ConnectedConsumer(broker.partition("://")[2], client)
        for broker, channels in answers.values.items()
        for each in channels
        for client in each.clients
    ]
    return found, "; ".join(map(str, answers.failures.values()))


async def nodes(request: web.Request) -> web.StreamResponse:
    """``/nodes``"""

    async def context(view: ClusterView) -> dict[str, Any]:
        depths = dict.fromkeys(view.brokers, 0)
        for each in view.topics.values():
            for broker, stats in each.nodes.items():
                depths[broker] += stats.depth + sum(found.depth for found in stats.channels)
        return {"depths": depths}

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
            view.asked[found.url] = asyncio.ensure_future(_replicas(site.admin.at(found.url)))
        report = await asyncio.shield(view.asked[found.url])
        return {"broker": found, "list": table, "report": report}

    return await site.show(request, "node.html", context)


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


async def audit(request: web.Request) -> web.StreamResponse:
    """``/audit``"""
    site = request.app[SITE]
    entries = list(reversed(site.audit.entries))

    def text(entry: AuditEntry) -> str:
        return " ".join(
            (entry.user, entry.remote_ip, entry.action, entry.topic, entry.channel, entry.result)
        )

    table = listing(entries, _AUDIT_COLUMNS, request.query, text, "-time", is_ordered=True)
    return site.page(request, "audit.html", {"list": table})


async def data(request: web.Request) -> web.StreamResponse:
    """``/data``, ``/data/T``, ``/data/T/C``: the history of a series for its plot."""
    history = request.app[SITE].collector.history
    key = request.match_info.get("topic", ""), request.match_info.get("channel", "")
    return web.json_response(
        [history.times_s(), *(history.series(key, field) for field in ("in", "out", "depth"))]
    )
