"""The page of the lookup daemons: topics that no broker has, and the registration of new ones."""

from __future__ import annotations

from aiohttp import web

from martlet.admin.site import SITE
from martlet.client.admin import AdminError


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
