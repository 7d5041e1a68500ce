"""What nsqadmin asks of lookup daemons and brokers, and how it adds their answers up.

nsqadmin asks afresh for each request, and takes what answers: errors of some servers are a warning,
those of all an error. Its sums have shapes of their own, which clients have come to know:

- A topic's sum holds the channels of the first broker that has them, and adds those of the others
  to these same objects; so the first broker's own entry shows the sums, too.
- Percentiles of several brokers are averaged, weighted by their counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from martlet.client.admin import AdminError
from martlet.client.admin.decode import UNREADABLE
from martlet.client.admin.http import AdminHttp, url_of_broker
from martlet.client.admin.stats import read_stats

T = TypeVar("T")
Stats = dict[str, Any]
"""The counts of a topic, a channel or a client, as in ``/stats``."""
_VERSION = re.compile(
    r"([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"
)
_COUNTS = ("depth", "memory_depth", "backend_depth", "message_count")
_CHANNEL_COUNTS = (
    *("depth", "memory_depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("requeue_count", "timeout_count", "message_count", "client_count"),
)
_CLIENT_FIELDS: Mapping[str, object] = {
    # In nsqadmin's order.
    **dict.fromkeys(("node", "remote_address", "version", "client_id", "hostname"), ""),
    "user_agent": "",
    **dict.fromkeys(("connect_ts", "connected", "in_flight_count", "ready_count"), 0),
    **dict.fromkeys(("finish_count", "requeue_count", "message_count", "sample_rate"), 0),
    **dict.fromkeys(("deflate", "snappy", "authed"), False),
    **dict.fromkeys(("auth_identity", "auth_identity_url"), ""),
    "tls": False,
    **dict.fromkeys(("tls_cipher_suite", "tls_version", "tls_negotiated_protocol"), ""),
    "tls_negotiated_protocol_is_mutual": False,
}


class UpstreamFailed(Exception):
    """No server answered."""


class KnownProducer(NamedTuple):
    """A broker, as nsqadmin describes it."""

    url: str
    """Where it is asked."""
    fields: dict[str, Any]

    @property
    def node(self) -> str:
        """Its HTTP address."""
        return self.url.partition("://")[2]


class NsqadminCluster:
    """The servers, and the errors of one request.

    Args:
        http: asks them.
        brokers: the URLs of brokers; empty with lookup daemons.

    Attributes:
        errors: of servers that failed while others answered.
    """

    def __init__(self, http: AdminHttp, brokers: Sequence[str]) -> None:
        self._http = http
        self._brokers = brokers
        self.errors: list[str] = []

    @property
    def warning(self) -> str:
        """The field ``message`` of an answer."""
        return f"WARNING: {'; '.join(self.errors)}" if self.errors else ""

    # brokers and topics

    async def topics(self) -> list[str] | None:
        """Return the names of all topics; None for no topic."""
        if self._http.daemons:
            lists = await self._daemons(lambda url: self._names(url, "topics"))
        else:
            lists = [
                [topic["topic_name"] for topic in topics]
                for topics in await self._each(
                    self._brokers,
                    lambda url: self._get(url, "/stats", "topics", format="json"),
                    "nsqd",
                )
            ]
        return sorted({name for names in lists for name in names}) or None

    async def inactive_topics(self) -> dict[str, list[str] | None]:
        """Return the channels of topics that no broker has."""
        topics: dict[str, list[str] | None] = {}
        for topic in (await self.topics()) or []:
            if not self._http.daemons:
                continue
            quiet = NsqadminCluster(self._http, self._brokers)  # It says nothing of these errors.
            try:
                if await quiet.producers_of(topic):
                    continue
            except UpstreamFailed:
                pass
            try:
                lists = await quiet._daemons(partial(quiet._names, what="channels", topic=topic))
            except UpstreamFailed:
                lists = []
            topics[topic] = sorted({name for names in lists for name in names}) or None
        return topics

    async def _names(self, url: str, what: str, **args: str) -> list[str]:
        return list(map(str, await self._get(url, f"/{what}", what, **args)))

    async def producers(self) -> list[KnownProducer]:
        """Return all brokers, by host name."""
        if not self._http.daemons:
            return await self._each(self._brokers, self._described, "nsqd")
        producers: dict[tuple[str, int], KnownProducer] = {}

        async def ask(url: str) -> tuple[str, list[KnownProducer]]:
            return url, list(map(_of_daemon, await self._get(url, "/nodes", "producers")))

        for url, answer in await self._daemons(ask):
            for named in answer:
                key = named.fields["broadcast_address"], named.fields["tcp_port"]
                producer = producers.setdefault(key, named)
                remote = f"{url.partition('://')[2]}/{named.fields['remote_address'] or 'N/A'}"
                producer.fields["remote_addresses"] = [
                    *(producer.fields["remote_addresses"] or ()),
                    remote,
                ]
        newest = max((_version(one.fields["version"]) for one in producers.values()), default=None)
        for producer in producers.values():
            producer.fields["out_of_date"] = _version(producer.fields["version"]) != newest
        return sorted(producers.values(), key=lambda producer: str(producer.fields["hostname"]))

    async def producers_of(self, topic: str) -> list[KnownProducer]:
        """Return the brokers that have a topic."""
        if self._http.daemons:

            async def find(url: str) -> list[KnownProducer]:
                return list(
                    map(_of_daemon, await self._get(url, "/lookup", "producers", topic=topic))
                )

            producers = [producer for answer in await self._daemons(find) for producer in answer]
            return list({producer.url: producer for producer in reversed(producers)}.values())[::-1]

        async def ask(url: str) -> list[KnownProducer]:
            args = {"format": "json", "topic": topic, "include_clients": "false"}
            topics = await self._get(url, "/stats", "topics", **args)
            if topic not in [topic["topic_name"] for topic in topics]:
                return []
            return [await self._described(url)]

        return [row for answer in await self._each(self._brokers, ask, "nsqd") for row in answer]

    async def _described(self, url: str) -> KnownProducer:
        info = await self._get(url, "/info")
        topics = await self._get(url, "/stats", "topics", format="json", include_clients="false")
        names = [{"topic": topic["topic_name"], "tombstoned": False} for topic in topics]
        host, _, port = url.partition("://")[2].rpartition(":")
        return KnownProducer(
            url,
            {
                "remote_addresses": None,
                "remote_address": "",
                "hostname": info.get("hostname") or host,
                "broadcast_address": info.get("broadcast_address") or host,
                "tcp_port": info.get("tcp_port", 0),
                "http_port": info.get("http_port") or int(port),
                "version": str(info.get("version", "")),
                "topics": names or None,
                "out_of_date": False,
            },
        )

    # counts

    async def stats(
        self,
        producers: Sequence[KnownProducer],
        topic: str = "",
        channel: str = "",
        *,
        clients: bool,
    ) -> tuple[list[Stats], dict[str, Stats]]:
        """Return the topics of each broker, and the sums of channels: of one topic by the channel's
        name, else by ``topic:channel``.
        """
        args = {"format": "json"}
        args |= {name: text for name, text in (("topic", topic), ("channel", channel)) if text}
        if not clients:
            args["include_clients"] = "false"
        hosts = {producer.url: producer for producer in producers}

        async def ask(url: str) -> tuple[KnownProducer, list[Stats]]:
            answer = await self._get(url, "/stats", "topics", **args)
            return hosts[url], [
                _topic_at(hosts[url], row) for row in answer if topic in ("", row["topic_name"])
            ]

        topics: list[Stats] = []
        sums: dict[str, Stats] = {}
        for producer, rows in await self._each(list(hosts), ask, "nsqd"):
            topics += rows
            for row in rows:
                for counts in row["channels"] or ():
                    name = counts["channel_name"]
                    key = name if topic else f"{counts['topic_name']}:{name}"
                    if key not in sums:
                        sums[key] = new_channel(producer.node, counts["topic_name"], name)
                    add_channel(sums[key], counts)
        return sorted(topics, key=lambda topic_at: str(topic_at["hostname"])), sums

    # changes

    async def post(self, urls: Sequence[str], path: str, **args: str) -> None:
        """Send a change to servers, one after the other; errors are warnings."""
        for url in urls:
            try:
                await self._http.post(url, path, args)
            except AdminError as error:
                self.errors.append(str(error))

    # servers

    async def _get(self, url: str, path: str, name: str = "", **args: str) -> Any:
        def read(answer: Any) -> Any:
            if path == "/stats":
                read_stats(answer)  # Raises where it has other types than nsqadmin reads.
            data = answer.get("data", answer)  # Old versions wrap it.
            return (data[name] or []) if name else data

        return await self._http.get(url, path, args, read)

    async def _daemons(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        return await self._each(self._http.daemons, ask, "nsqlookupd")

    async def _each(
        self, urls: Sequence[str], ask: Callable[[str], Awaitable[T]], kind: str
    ) -> list[T]:
        """Ask servers at once; return their answers. Raises UpstreamFailed: none answered."""

        async def understood(url: str) -> T:
            try:
                return await ask(url)
            except UNREADABLE as error:
                raise AdminError(url, f"an unintelligible answer: {error!r}") from None

        try:
            answers = await self._http.each(urls, understood)
        except AdminError as error:
            texts = [str(failure) for failure in error.errors.values()] or [str(error)]
            raise UpstreamFailed(f"failed to query any {kind}: " + "\n".join(texts)) from None
        if not answers.values:
            raise UpstreamFailed(f"failed to query any {kind}: ")
        self.errors += [str(error) for error in answers.errors.values()]
        return list(answers.values.values())


def _of_daemon(fields: Mapping[str, Any]) -> KnownProducer:
    names, gone = fields.get("topics") or (), fields.get("tombstones") or ()
    topics = [
        {"topic": name, "tombstoned": bool(is_gone)}
        for name, is_gone in sorted(zip(names, gone, strict=False))
    ]
    return KnownProducer(
        url_of_broker(fields["broadcast_address"], fields["http_port"]),
        {
            "remote_addresses": None,
            "remote_address": fields.get("remote_address", ""),
            "hostname": fields.get("hostname", ""),
            "broadcast_address": str(fields["broadcast_address"]),
            "tcp_port": int(fields["tcp_port"]),
            "http_port": int(fields["http_port"]),
            "version": str(fields.get("version", "")),
            "topics": topics or None,
            "out_of_date": False,
        },
    )


def _version(text: str) -> tuple[int, int, int, bool, str]:
    """Return a version that can be compared; 0.0.0 for none."""
    match = _VERSION.fullmatch(text)
    if match is None:
        return 0, 0, 0, True, ""
    return int(match[1]), int(match[2]), int(match[3]), not match[4], match[4] or ""


def _topic_at(producer: KnownProducer, stats: Mapping[str, Any]) -> Stats:
    """Return the counts of a topic at one broker, with those of its channels."""
    topic = new_topic(str(stats["topic_name"]))
    topic |= {name: stats.get(name, 0) for name in _COUNTS}
    topic |= {
        "node": producer.node,
        "hostname": producer.fields["hostname"],
        "memory_depth": topic["depth"] - topic["backend_depth"],
        "paused": bool(stats.get("paused")),
        "e2e_processing_latency": _latency(stats.get("e2e_processing_latency")),
    }
    topic["channels"] = [
        _channel_at(producer, topic["topic_name"], one) for one in stats.get("channels") or ()
    ]
    return topic


def _channel_at(producer: KnownProducer, topic: str, stats: Mapping[str, Any]) -> Stats:
    channel = new_channel(producer.node, topic, str(stats["channel_name"]))
    channel |= {name: stats.get(name, 0) for name in _CHANNEL_COUNTS}
    channel |= {
        "hostname": producer.fields["hostname"],
        "memory_depth": channel["depth"] - channel["backend_depth"],
        "paused": bool(stats.get("paused")),
        "e2e_processing_latency": _latency(stats.get("e2e_processing_latency")),
    }
    now_s = int(time.time())
    channel["clients"] = stats.get("clients") and [
        {
            **{name: client.get(name, usual) for name, usual in _CLIENT_FIELDS.items()},
            "node": producer.node,
            "connected": (now_s - client.get("connect_ts", 0)) * 10**9,
        }
        for client in stats["clients"]
    ]
    return channel


def new_topic(name: str) -> Stats:
    """Return the sum of no broker."""
    return {
        "node": "",
        "hostname": "",
        "topic_name": name,
        **dict.fromkeys(_COUNTS, 0),
        "nodes": None,
        "channels": None,
        "paused": False,
        "e2e_processing_latency": None,
    }


def new_channel(node: str, topic: str, name: str) -> Stats:
    """Return the sum of no broker."""
    return {
        "node": node,
        "hostname": "",
        "topic_name": topic,
        "channel_name": name,
        **dict.fromkeys(_CHANNEL_COUNTS, 0),
        "nodes": None,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": None,
    }


def add_topic(to: Stats, one: Stats) -> None:
    """Add a broker's counts of a topic to a sum."""
    to["node"] = "*"
    _add(to, one, _COUNTS)
    channels = {channel["channel_name"]: channel for channel in to["channels"] or ()}
    for channel in one["channels"] or ():
        total = channels.get(channel["channel_name"])
        if total is not None:
            add_channel(total, channel)
        else:
            to["channels"] = [*(to["channels"] or ()), channel]
    _add_latency(to, one, "")


def add_channel(to: Stats, one: Stats) -> None:
    """Add a broker's counts of a channel to a sum."""
    to["node"] = "*"
    _add(to, one, _CHANNEL_COUNTS)
    _add_latency(to, one, to["channel_name"])
    clients = [*(to["clients"] or ()), *(one["clients"] or ())]
    to["clients"] = sorted(clients, key=lambda client: str(client["hostname"])) or None


def _add(to: Stats, one: Stats, counts: Sequence[str]) -> None:
    for name in counts:
        to[name] += one[name]
    to["paused"] = to["paused"] or one["paused"]
    nodes = [*(to["nodes"] or ()), one]
    to["nodes"] = sorted(nodes, key=lambda node: str(node["hostname"]))


def _latency(latency: Mapping[str, Any] | None) -> Stats:
    """Return the percentiles of one broker."""
    latency = latency or {}
    count = latency.get("count", 0)
    percentiles = latency.get("percentiles")
    return {
        "count": count,
        "percentiles": percentiles
        and [
            # Go writes a map by its keys.
            dict(
                sorted(
                    {**row, "min": value, "max": value, "average": value, "count": count}.items()
                )
            )
            for row in percentiles
            for value in (row.get("value", 0),)
            if _is_number(count) and _is_number(value) and _is_number(row["quantile"])
        ],
        "topic": "",
        "channel": "",
        "host": "",
    }


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float)):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return True


def _add_latency(to: Stats, one: Stats, channel: str) -> None:
    total = to["e2e_processing_latency"]
    if total is None:
        total = {"count": 0, "percentiles": None, "topic": to["topic_name"], "channel": channel}
        to["e2e_processing_latency"] = total
    other = one["e2e_processing_latency"]
    total["host"] = "*"
    total["count"] += other["count"]
    totals = {percentile["quantile"]: percentile for percentile in total["percentiles"] or ()}
    for percentile in other["percentiles"] or ():
        into = totals.setdefault(
            percentile["quantile"],
            {"average": 0, "count": 0, "max": 0, "min": 0, "quantile": percentile["quantile"]},
        )
        into["max"] = max(percentile["max"], into["max"])
        into["min"] = min(percentile["max"], into["max"])
        into["count"] += percentile["count"]
        if into["count"] == 0:
            into["average"] = 0
        else:
            delta = percentile["average"] - into["average"]
            into["average"] += delta * percentile["count"] / into["count"]
    total["percentiles"] = list(totals.values()) or None
