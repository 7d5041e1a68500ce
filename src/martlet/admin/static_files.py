"""The page's own files, kept in memory: a browser that leaves early must leave no file open."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import ETag, web


def handler(folder: Path) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Read all files of a folder; return what answers ``{name}`` with one of them."""
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    tags = {name: hashlib.sha256(data).hexdigest()[:16] for name, data in files.items()}

    async def answer(request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in files:
            raise web.HTTPNotFound
        # A browser asks each time, and gets the file only where it has changed.
        headers = {"Cache-Control": "no-cache"}
        known = request.if_none_match or ()
        if any(each.value == tags[name] for each in known):
            response = web.Response(status=304, headers=headers)
        else:
            kind = mimetypes.guess_type(name)[0] or "text/plain"
            response = web.Response(body=files[name], content_type=kind, headers=headers)
        response.etag = ETag(tags[name])
        return response

    return answer
