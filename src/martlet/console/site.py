"""What all pages share: templates, the view of the brokers, the audit, the way to answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from aiohttp import web

from martlet.client.admin import Admin
from martlet.client.copied_folder import WAY_OUT
from martlet.console import shown
from martlet.console.audit import AuditLog
from martlet.console.cluster import ClusterView
from martlet.console.collector import Collector
from martlet.console.guard import user_of
from martlet.console.undos import Undos
from martlet.options.admin import AdminOptions
from martlet.text import visible

_EVENT_STREAM = "text/event-stream"
MAX_STREAMS = 200
"""The maximum of pages that are shown live at the same time. Beyond it the oldest of whoever has
most is no longer live; those of anonymous users go first.
"""
MAX_STREAMS_OF_ONE = 20
"""That of one user at one address or network."""
_UNREAD_S = 30.0
"""A page that reads nothing for so long is no longer live, and makes room for another."""

Context = Callable[[ClusterView], Awaitable[Mapping[str, Any]]]


class PageNotFound(Exception):
    """There is no such topic, channel or broker; the text says which."""


@dataclass
class Site:
    """The state of the process."""

    options: AdminOptions
    admin: Admin
    collector: Collector
    audit: AuditLog
    """Keeps what was done."""
    log: logging.Logger
    undos: Undos = field(default_factory=Undos)
    """What was emptied, and can be put back."""
    streams: dict[asyncio.Task[Any], tuple[str, str]] = field(default_factory=dict)
    """The tasks of the pages that are shown live, oldest first, each with the name and the network
    of its user.
    """
    templates: jinja2.Environment = field(init=False)

    def __post_init__(self) -> None:
        self.prefix = self.options.prefix
        self.templates = jinja2.Environment(
            loader=jinja2.PackageLoader("martlet.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "number": shown.number,
            "rate": shown.rate,
            "size": shown.size,
            "duration": shown.duration,
            "ago": shown.ago,
            "utc": shown.utc,
            "visible": visible,
        }
        self.templates.globals |= {"url": self.url, "sparkline": self.sparkline}
        self.templates.globals["copied_way_out"] = WAY_OUT

    def url(self, path: str, *parts: str, **query: object) -> str:
        """Return the URL of a page: of a path, names to append to it, and the query.

        ::

            url("/topics", topic, channel, broker=url)
        """
        address = self.prefix + path + "".join(f"/{quote(part, safe='')}" for part in parts)
        fields = {name: value for name, value in query.items() if value not in ("", None)}
        return address + (f"?{urlencode(fields)}" if fields else "")

    def sparkline(self, key: tuple[str, str], field: str, label: str) -> str:
        """Return the plot of a series of the history."""
        return shown.sparkline(self.collector.history.series(key, field, 60), label)

    # answers

    async def show(
        self,
        request: web.Request,
        template: str,
        context: Context,
    ) -> web.StreamResponse:
        """Answer a page, or, for an event stream, its region after each poll of the brokers."""
        view = await self.collector.fresh()
        if request.method == "GET" and _EVENT_STREAM in request.headers.get("Accept", ""):
            return await self._stream(request, template, view, context)
        values = {**await context(view), "view": view}
        return self.page(request, template, values, is_live=True)

    def page(
        self,
        request: web.Request,
        template: str,
        context: Mapping[str, Any],
        *,
        status: int = 200,
        is_live: bool = False,
    ) -> web.Response:
        """Answer a page from a template."""
        page_template = self.templates.get_template(template)
        text = page_template.render(
            self._shared(request) | dict(context) | {"is_live": is_live, "layout": "base.html"}
        )
        return web.Response(text=text, content_type="text/html", status=status)

    def _shared(self, request: web.Request) -> dict[str, Any]:
        return {
            "user": user_of(request),
            "options": self.options,
            "path": request.rel_url.raw_path[len(self.prefix) :] or "/",
            "here": str(request.rel_url),
            "query": request.query,
            "view": self.collector.view,
            "notice": request.query.get("notice", ""),
        }

    async def _stream(
        self,
        request: web.Request,
        template: str,
        view: ClusterView,
        context: Context,
    ) -> web.StreamResponse:
        user = user_of(request)
        who = user.name, _network(user.address)
        self._make_room(who)
        response = web.StreamResponse(headers={"Content-Type": _EVENT_STREAM})
        page_template = self.templates.get_template(template)
        gone = self.templates.get_template("problem.html")
        task = asyncio.current_task()
        assert task is not None
        self.streams[task] = who
        try:
            await response.prepare(request)
            while True:
                view = await self.collector.following(view)
                shared = self._shared(request) | {"view": view, "layout": "region.html"}
                try:
                    html = page_template.render(shared | dict(await context(view)))
                except PageNotFound as error:
                    values = {"title": "Not found", "text": str(error), "back": ""}
                    html = gone.render(shared | values)
                async with asyncio.timeout(_UNREAD_S):
                    await response.write(_event(html))
        except ConnectionError:
            return response  # The tab was closed.
        except (TimeoutError, asyncio.CancelledError) as error:
            if request.transport is not None:
                request.transport.abort()  # It may hold what is not read.
            if isinstance(error, asyncio.CancelledError):
                raise
            return response
        finally:
            self.streams.pop(task, None)

    def _make_room(self, who: tuple[str, str]) -> None:
        """End the oldest live page of a user with too many, and no page of other users."""
        counts = Counter(self.streams.values())
        if counts[who] < MAX_STREAMS_OF_ONE:
            if len(self.streams) < MAX_STREAMS:
                return
            # A stranger, who needs no name, may come from many addresses.
            who = max(counts, key=lambda owner: (not owner[0], counts[owner]))
        oldest = next(task for task, owner in self.streams.items() if owner == who)
        del self.streams[oldest]
        oldest.cancel()

    async def end_streams(self, _: web.Application) -> None:
        """End all live pages: a signal of aiohttp's, so that the process need not await them."""
        for task in list(self.streams):
            task.cancel()


SITE: web.AppKey[Site] = web.AppKey("site", Site)


def _network(address: str) -> str:
    """Return where a client is: its address, or its network, where a machine has many addresses.

    These are the /64 of IPv6, and this machine's own.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return "localhost"
    return str(ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)


def _event(html: str) -> bytes:
    lines = html.replace("\r", "").split("\n")
    return ("".join(f"data: {line}\n" for line in lines if line.strip()) + "\n").encode()
