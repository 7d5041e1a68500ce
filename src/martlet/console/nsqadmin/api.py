"""nsqadmin's HTTP API: ``/api/*`` and ``/config/*``, for programs written for nsqadmin.

======================================  ========================================================
``GET /api/topics``                     names; ``inactive=true``: of those that no broker has
``POST /api/topics``                    create ``{"topic", "channel"}`` at lookup daemons
``GET, DELETE /api/topics/T``           counts over all brokers, and by broker; delete
``GET, DELETE /api/topics/T/C``         the same of a channel, with its clients
``POST /api/topics/T``, ``.../T/C``     ``{"action": "pause"}``, ``unpause`` or ``empty``
``GET /api/nodes``, ``/api/nodes/N``    brokers; one with its topics
``DELETE /api/nodes/N``                 tombstone ``{"topic"}`` of a broker, and delete it there
``GET /api/counter``                    messages of each channel at each broker
``GET /api/graphite``                   ``metric=rate``: from this page's own history
``GET, PUT /config/NAME``               options; from ``--allow-config-from-cidr``
======================================  ========================================================

An answer has a ``message``: empty, or a warning that some servers did not answer. Where none did,
the status is 502. Source: nsqadmin 1.3.0.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from typing import Any

from aiohttp import web

from martlet.client.admin.http import plain_first
from martlet.console.guard import Handler, RefusalReason, user_of
from martlet.console.nsqadmin.cluster import (
    NsqadminCluster,
    UpstreamFailed,
    add_topic,
    new_topic,
)
from martlet.console.site import SITE, Site
from martlet.names import is_valid_name
from martlet.options.admin import AdminOptions
from martlet.options.flag import OptionError
from martlet.text import go_json

_MAX_CONFIG_BYTES = 1 << 20
_EXPONENTS_FROM = 1e21
_ACTIONS = ("pause", "unpause", "empty")
_TARGET = re.compile(r"\btopic\.([^.,()]+)(?:\.channel\.([^.,()]+))?\.message_count\b")
_NAMES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 500: "INTERNAL_ERROR"}


class ApiError(Exception):
    """An answer other than 200.

    Attributes:
        message: a word in capitals, perhaps with a text.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Answer = Mapping[str, Any]
_Endpoint = Callable[[web.Request, Site, NsqadminCluster], Awaitable[Any]]


def routes() -> list[tuple[str, str, Handler]]:
    """Return the method, the path and the handler of each route."""
    topic, channel = "/api/topics/{topic}", "/api/topics/{topic}/{channel}"
    endpoints: list[tuple[str, str, _Endpoint]] = [
        ("GET", "/api/topics", _topics),
        ("POST", "/api/topics", _create),
        ("GET", topic, _topic),
        ("POST", topic, _act),
        ("DELETE", topic, _delete),
        ("GET", channel, _channel),
        ("POST", channel, _act),
        ("DELETE", channel, _delete),
        ("GET", "/api/nodes", _nodes),
        ("GET", "/api/nodes/{node}", _node),
        ("DELETE", "/api/nodes/{node}", _tombstone),
        ("GET", "/api/counter", _counter),
        ("GET", "/api/graphite", _graphite),
        ("GET", "/config/{name}", _config),
        ("PUT", "/config/{name}", _set_config),
    ]
    return [(method, path, _answering(endpoint)) for method, path, endpoint in endpoints]


def failure(status: int, message: str = "") -> web.Response:
    """Return the answer of an error, as nsqadmin writes it."""
    return _json({"message": message or _NAMES.get(status, "ERROR")}, status)


def _json(answer: object, status: int = 200) -> web.Response:
    return web.json_response(text=go_json(_as_go(answer)), status=status)


def _as_go(value: Any) -> Any:
    """Return a value with floats that are whole as Go writes them: 1, not 1.0."""
    if isinstance(value, Mapping):
        return {name: _as_go(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_go(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXPONENTS_FROM:
        return int(value)
    return value


def _answering(endpoint: _Endpoint) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        site = request.app[SITE]
        cluster = NsqadminCluster(site.admin.http, site.admin.http.named_brokers)
        try:
            return _json(await endpoint(request, site, cluster))
        except ApiError as error:
            return failure(error.status, error.message)
        except UpstreamFailed as error:
            return failure(502, f"UPSTREAM_ERROR: {error}")

    return answer


# looking


async def _topics(request: web.Request, _: Site, cluster: NsqadminCluster) -> Answer:
    channels: Any
    if request.query.get("inactive") == "true":
        channels = await cluster.inactive_topics()
    else:
        channels = await cluster.topics()
    return {"topics": channels, "message": cluster.warning}


async def _topic(request: web.Request, _: Site, cluster: NsqadminCluster) -> Answer:
    name = request.match_info["topic"]
    producers = await cluster.producers_of(name)
    topics, _sums = await cluster.stats(producers, name, clients=False)
    total = new_topic(name)
    for channel_name in topics:
        add_topic(total, channel_name)
    return {**total, "message": cluster.warning}


async def _channel(request: web.Request, _: Site, cluster: NsqadminCluster) -> Answer:
    topic, name = request.match_info["topic"], request.match_info["channel"]
    producers = await cluster.producers_of(topic)
    _topics, sums = await cluster.stats(producers, topic, name, clients=True)
    return {**sums.get(name, {}), "message": cluster.warning}


async def _nodes(_: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    nodes = [producer.fields for producer in await cluster.producers()]
    return {"nodes": nodes or None, "message": cluster.warning}


async def _node(request: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    name = request.match_info["node"]
    matches = [producer for producer in await cluster.producers() if producer.node == name]
    if not matches:
        raise ApiError(404, "NODE_NOT_FOUND")
    topics, _ = await cluster.stats(matches[:1], clients=True)
    channels = [channel for topic in topics for channel in topic["channels"] or ()]
    return {
        "node": name,
        "topics": topics or None,
        "total_messages": sum(topic["message_count"] for topic in topics),
        "total_clients": sum(len(channel["clients"] or ()) for channel in channels),
        "message": cluster.warning,
    }


async def _counter(_: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    _topics, sums = await cluster.stats(await cluster.producers(), clients=False)
    stats = {
        f"{topic_sum['topic_name']}:{topic_sum['channel_name']}:{one['node']}": {
            "node": one["node"],
            "topic_name": topic_sum["topic_name"],
            "channel_name": topic_sum["channel_name"],
            "message_count": one["message_count"],
        }
        for topic_sum in sums.values()
        for one in topic_sum["nodes"]
    }
    stats = dict(sorted(stats.items()))
    return {"stats": stats, "message": cluster.warning}


async def _graphite(request: web.Request, site: Site, _: NsqadminCluster) -> Answer:
    if request.query.get("metric") != "rate":
        raise ApiError(400, "INVALID_ARG_METRIC")
    if "target" not in request.query:
        raise ApiError(400, "INVALID_ARG_TARGET")
    named = _TARGET.search(request.query["target"])
    view = await site.collector.fresh()
    topic = view.topics.get(named[1]) if named else None
    if topic is None:
        return {"rate": "N/A"}
    if named and named[2]:
        channel = topic.channels.get(named[2])
        return {"rate": "N/A" if channel is None else f"{channel.in_per_s:.2f}"}
    return {"rate": f"{topic.in_per_s:.2f}"}


# changing


async def _create(request: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    _check_may_act(request, site)
    body = await _body(request)
    topic, channel = _text(body, "topic"), _text(body, "channel")
    if not is_valid_name(topic):
        raise ApiError(400, "INVALID_TOPIC")
    if channel and not is_valid_name(channel):
        raise ApiError(400, "INVALID_CHANNEL")
    daemons = site.admin.http.daemons
    async with _kept(
        request, site, "create_channel" if channel else "create_topic", topic, channel
    ):
        await cluster.post(daemons, "/topic/create", topic=topic)
        if channel:
            await cluster.post(daemons, "/channel/create", topic=topic, channel=channel)
            if not daemons:
                raise UpstreamFailed("failed to query any nsqlookupd: ")
            urls = [producer.url for producer in await cluster.producers_of(topic)]
            await cluster.post(urls, "/channel/create", topic=topic, channel=channel)
            site.audit.done(request, user_of(request), "create_topic", topic=topic)
    return {"message": cluster.warning}


async def _act(request: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    _check_may_act(request, site)
    names = dict(request.match_info)
    action = _text(await _body(request), "action")
    if action not in _ACTIONS:
        raise ApiError(400, "INVALID_ACTION")
    kind = "channel" if "channel" in names else "topic"
    async with _kept(request, site, f"{action}_{kind}", **names):
        urls = [producer.url for producer in await cluster.producers_of(names["topic"])]
        await cluster.post(urls, f"/{kind}/{action}", **names)
    return {"message": cluster.warning}


async def _delete(request: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    _check_may_act(request, site)
    names = dict(request.match_info)
    kind = "channel" if "channel" in names else "topic"
    async with _kept(request, site, f"delete_{kind}", **names):
        # Lookup daemons that have forgotten a topic do not say who has it.
        urls = [producer.url for producer in await cluster.producers_of(names["topic"])]
        await cluster.post(site.admin.http.daemons, f"/{kind}/delete", **names)
        await cluster.post(urls, f"/{kind}/delete", **names)
    return {"message": cluster.warning}


async def _tombstone(request: web.Request, site: Site, cluster: NsqadminCluster) -> Answer:
    _check_may_act(request, site)
    node = request.match_info["node"]
    try:
        topic = _text(await _body(request), "topic")
    except ApiError:
        raise ApiError(400, "INVALID_BODY") from None
    if not is_valid_name(topic):
        raise ApiError(400, "INVALID_TOPIC")
    async with _kept(request, site, "tombstone_topic_producer", topic, node=node):
        # Requests carry the operators' token: they go to no address that a request makes up.
        urls = [producer.url for producer in await cluster.producers() if producer.node == node]
        if not urls:
            raise UpstreamFailed(f"failed to query any nsqd: there is no broker {node}")
        await cluster.post(site.admin.http.daemons, "/topic/tombstone", topic=topic, node=node)
        await cluster.post(urls, "/topic/delete", topic=topic)
    return {"message": cluster.warning}


@asynccontextmanager
async def _kept(
    request: web.Request, site: Site, action: str, topic: str, channel: str = "", node: str = ""
) -> AsyncIterator[None]:
    """Keep what is done inside in the audit: done, or failed."""
    user, where = user_of(request), {"topic": topic, "channel": channel, "node": node}
    try:
        yield
    except UpstreamFailed as error:
        site.audit.failed(request, user, action, str(error), **where)
        raise
    site.audit.done(request, user, action, **where)


def _check_may_act(request: web.Request, site: Site) -> None:
    user = user_of(request)
    if not user.acts:
        why = "this user may not act: see --admin-user and --read-only"
        site.audit.refused(request, user, RefusalReason.ROLE, why)
        raise ApiError(403, "FORBIDDEN")


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body is no JSON object")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise ApiError(400, f"{name} is no text")
    return value


# options


async def _config(request: web.Request, site: Site, _: NsqadminCluster) -> Any:
    _check_network(request, site.options)
    return _value(site.options, request.match_info["name"])


async def _set_config(request: web.Request, site: Site, cluster: NsqadminCluster) -> Any:
    _check_network(request, site.options)
    _check_may_act(request, site)
    name = request.match_info["name"]
    body = await request.read()
    if not 0 < len(body) <= _MAX_CONFIG_BYTES:
        raise ApiError(413, "INVALID_VALUE")
    if name == "log_level":
        try:
            level = AdminOptions.flags()["log-level"].parse(body.decode())
        except (OptionError, UnicodeDecodeError):
            raise ApiError(400, "INVALID_VALUE") from None
        site.options = dataclasses.replace(site.options, log_level=level)
        logging.getLogger("martlet").setLevel(level.for_logging)
    elif name == "nsqlookupd_http_addresses":
        if site.options.operator_token_file:
            # Brokers that a lookup daemon names get the operators' token where they are trusted.
            raise ApiError(403, "FORBIDDEN: start the page again to ask others with its token")
        _set_daemons(site, body)
    else:
        raise ApiError(400, "INVALID_OPTION")
    site.audit.done(request, user_of(request), f"set_{name}", body.decode(errors="replace"))
    return _value(site.options, name)


def _set_daemons(site: Site, body: bytes) -> None:
    """Ask other lookup daemons from now on."""
    try:
        value = json.loads(body)
        if not (
            isinstance(value, list) and value and all(isinstance(address, str) for address in value)
        ):
            raise ValueError("it is no list of addresses")
        site.options = dataclasses.replace(
            site.options, lookupd_http_addresses=tuple(value), nsqd_http_addresses=()
        )
        site.admin.http.ask_daemons([plain_first(address) for address in value])
    except (ValueError, RecursionError):
        raise ApiError(400, "INVALID_VALUE") from None


def _check_network(request: web.Request, options: AdminOptions) -> None:
    if not options.allow_config_from_cidr:
        return
    try:
        address = ip_address((request.remote or "").partition("%")[0])
    except ValueError:
        raise ApiError(400, "INVALID_REMOTE_ADDR") from None
    if address not in ip_network(options.allow_config_from_cidr, strict=False):
        raise ApiError(403, "FORBIDDEN")


def _value(options: AdminOptions, name: str) -> Any:
    for flag in AdminOptions.flags().values():
        if flag.config_key == name and "token" not in name:
            value = getattr(options, flag.field)
            return list(value) if isinstance(value, tuple) else value
    raise ApiError(400, "INVALID_OPTION")
