"""The pages that the pipeline's jobs write: ``report --page=FILE`` and ``audit --out=DIR``.

A page is a file that needs no script and no network. It is answered as it is, under a policy that
allows its own stylesheet and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import re
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from martlet.console.guard import user_of
from martlet.console.site import SITE, PageNotFound

MAX_FILES = 200
"""The maximum of files that are listed of one folder: the newest."""
MAX_FILE_BYTES = 32 << 20
_HEAD_BYTES = 4096
_TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
_STYLE = re.compile(rb"<style>(.*?)</style>", re.DOTALL)
_BRAND = b'<span class="brand">Martlet</span>'


@dataclass(frozen=True)
class JobPage:
    """A page of a job."""

    number: int
    """The number of its --job-page."""
    path: Path
    """Of the file."""
    title: str
    """The page's own."""
    written_s: float
    """When it was written, in seconds since 1970."""
    size: int
    """Of the file, in bytes."""


async def jobs(request: web.Request) -> web.StreamResponse:
    """``/jobs``"""
    site = request.app[SITE]
    pages, problems = await asyncio.to_thread(job_pages, site.options.job_pages)
    return site.page(request, "jobs.html", {"pages": pages, "problems": problems})


async def job(request: web.Request) -> web.StreamResponse:
    """``/jobs/NUMBER/FILE``"""
    site = request.app[SITE]
    if not user_of(request).sees_bodies:
        raise web.HTTPForbidden(text="pages of jobs show values of messages, which you may not see")
    number, name = int(request.match_info["number"]), request.match_info["name"]
    pages, _ = await asyncio.to_thread(job_pages, site.options.job_pages)
    matches = [page for page in pages if (page.number, page.path.name) == (number, name)]
    if not matches:
        raise PageNotFound(f"no job has written {name}")
    if matches[0].size > MAX_FILE_BYTES:
        raise PageNotFound(
            f"{name} has {matches[0].size:,} bytes, and {MAX_FILE_BYTES:,} are shown"
        )
    try:
        text = await asyncio.to_thread(matches[0].path.read_bytes)
    except OSError as error:
        raise PageNotFound(f"{name} cannot be read: {error.strerror}") from error
    styles = _STYLE.search(text)
    digest = base64.b64encode(hashlib.sha256(styles[1] if styles else b"").digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; form-action 'none';"
        " base-uri 'none'; frame-ancestors 'none'"
    )
    link = f'<a class="brand" href="{html.escape(site.url("/jobs"))}">Martlet</a>'
    return web.Response(
        body=text.replace(_BRAND, link.encode(), 1),
        content_type="text/html",
        charset="utf-8",
        headers={"Content-Security-Policy": policy},
    )


def job_pages(sources: tuple[str, ...]) -> tuple[list[JobPage], list[str]]:
    """Return the pages of files and folders, the newest first, and what could not be read."""
    pages: list[JobPage] = []
    problems: list[str] = []
    for number, source in enumerate(sources):
        try:
            pages += _of_source(number, Path(source), problems)
        except OSError as error:
            problems.append(f"--job-page={source}: {error.strerror}")
    return sorted(pages, key=lambda page: -page.written_s), problems


def _of_source(number: int, source: Path, problems: list[str]) -> list[JobPage]:
    if not source.is_dir():
        return [_page(number, source)]
    files = [(path.stat().st_mtime, path) for path in source.glob("[!.]*.html")]
    files.sort(reverse=True)
    if len(files) > MAX_FILES:
        problems.append(f"--job-page={source} has {len(files):,} files: the newest {MAX_FILES}")
    return [_page(number, path) for _, path in files[:MAX_FILES]]


def _page(number: int, path: Path) -> JobPage:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    title = _TITLE.search(head)
    status = path.stat()
    return JobPage(
        number,
        path,
        html.unescape(title[1].decode(errors="replace")).strip() if title else path.stem,
        status.st_mtime,
        status.st_size,
    )
