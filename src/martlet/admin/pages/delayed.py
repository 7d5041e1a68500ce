"""Delayed messages: how many wait for each topic, when they are due, and their cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import web
from msgspec.structs import replace

from martlet.admin.asked import Asked, continued
from martlet.admin.operations import TYPED_FROM, Preview, PreviewedChange, with_failures
from martlet.admin.site import SITE
from martlet.client.admin import (
    Admin,
    AdminError,
    AdminNotFound,
    AnswerPage,
    DelayedAdmin,
    DelayedMessage,
)
from martlet.plural import counted
from martlet.schema.delayed import ListDelayed

_MAX_TOPICS = 100
_AT_ONCE = 8
_ROWS = 50
_MAX_PLOTTED = 5000
"""The messages of each broker whose times are in the histogram."""
_STEPS = (
    ("in the past", 0), ("within 1 min", 60), ("within 10 min", 600), ("within 1 h", 3600),
    ("within 6 h", 6 * 3600), ("within 1 d", 86_400), ("within 7 d", 7 * 86_400),
)  # fmt: skip
_LATER = "later"


async def overview(request: web.Request) -> web.StreamResponse:
    """``/delayed``: the topics that have some, or the messages of one topic."""
    site = request.app[SITE]
    asked = Asked(site, await site.collector.fresh(), request.query)
    if asked.text("topic"):
        return await _topic(request, asked)
    text = asked.text("q").lower()
    names = [name for name in sorted(asked.view.topics) if text in name.lower()]
    limit = asyncio.Semaphore(_AT_ONCE)
    errors: dict[str, None] = {}

    async def count(topic: str) -> int:
        async with limit:
            waiting, failed = await _waiting(site.admin, topic)
            errors.update(dict.fromkeys(failed))
            return waiting

    found = await asyncio.gather(*map(count, names[:_MAX_TOPICS]))
    counts = {name: waiting for name, waiting in zip(names, found, strict=False) if waiting}
    return site.page(
        request,
        "delayed.html",
        {
            "counts": dict(sorted(counts.items(), key=lambda pair: -pair[1])),
            "errors": list(errors),
            "left_out": max(0, len(names) - _MAX_TOPICS),
            "max_topics": _MAX_TOPICS,
        },
    )


async def _waiting(admin: Admin, topic: str) -> tuple[int, list[str]]:
    """Return how many messages wait for a topic, and what went wrong."""
    total = 0
    try:
        pages = admin.delayed.pages(topic, limit=1)
        async with aclosing(pages):
            seen: set[str] = set()
            async for page in pages:
                if page.broker not in seen:
                    total += page.count or 0
                seen.add(page.broker)
    except AdminNotFound:
        pass  # It was deleted meanwhile, or a broker is an nsqd.
    except AdminError as error:
        return total, [str(error)]
    return total, []


async def _topic(request: web.Request, asked: Asked) -> web.StreamResponse:
    listed = asked.request(ListDelayed, limit=_ROWS)
    pages, errors = await _first_pages(asked, listed)
    first = replace(listed, limit=_MAX_PLOTTED)
    plotted = (await DelayedAdmin.list.run(asked.admin.http, first)).joined()
    shown = [(page.broker, each) for page in pages for each in page.items]
    shown.sort(key=lambda row: row[1].deliver_at_ms)
    return asked.site.page(
        request,
        "delayed_topic.html",
        {
            "topic": listed.topic,
            "rows": shown,
            "count": sum(page.count or 0 for page in pages),
            "plotted": len(plotted),
            "histogram": _histogram(plotted, time.time_ns() // 1_000_000),
            "nexts": [(page.broker, continued(page.next)) for page in pages if page.next],
            "errors": errors,
            "is_continued": asked.start is not None,
        },
    )


async def _first_pages(
    asked: Asked, listed: ListDelayed
) -> tuple[list[AnswerPage[DelayedMessage]], list[str]]:
    """Return a page of each broker, or the next one of one broker; and what went wrong."""

    async def first(url: str) -> AnswerPage[DelayedMessage] | AdminError:
        pages = DelayedAdmin.pages.run(asked.site.admin.at(url).http, listed, asked.start)
        try:
            async with aclosing(pages):
                async for page in pages:
                    return page
        except AdminError as error:
            return error
        return AnswerPage(broker=url, items=())

    known = asked.view.topics.get(listed.topic)
    urls = [asked.broker] if asked.broker else sorted(known.nodes if known else asked.view.brokers)
    found = await asyncio.gather(*map(first, urls))
    errors = [each for each in found if isinstance(each, AdminError)]
    if errors and len(errors) == len(found):
        raise errors[0]
    pages = [each for each in found if isinstance(each, AnswerPage)]
    return pages, [str(each) for each in errors if not isinstance(each, AdminNotFound)]


def _histogram(messages: list[DelayedMessage], now_ms: int) -> Mapping[str, int]:
    """Return how many are due within each step."""
    counts = dict.fromkeys([*(name for name, _ in _STEPS), _LATER], 0)
    for each in messages:
        wait_s = (each.deliver_at_ms - now_ms) / 1000
        counts[next((name for name, limit_s in _STEPS if wait_s <= limit_s), _LATER)] += 1
    return counts


# cancelling


async def _preview(asked: Asked) -> Preview:
    topic = asked.name("topic")
    ids = asked.chosen()
    lines: list[str] = []
    if ids is not None:
        count = len(ids)
    else:
        count, lines = await _waiting(asked.admin, topic)
    some = counted(count, "delayed message", form=",")
    return Preview(
        title=f"Cancel {some} of topic {topic}",
        button=f"Cancel {some}",
        lines=["They are not delivered. One that is delivered meanwhile is not cancelled.", *lines],
        typed=topic if ids is None and count > TYPED_FROM else "",
        is_possible=count > 0,
    )


async def _cancel(asked: Asked) -> str:
    topic = asked.name("topic")
    ids = asked.chosen()
    if ids is not None:
        answers = await asked.admin.delayed.cancel(topic, ids)
    else:
        answers = await asked.admin.delayed.cancel_all(topic)
    done = {each for found in answers.values.values() for each in found.cancelled}
    verb = "was" if len(done) == 1 else "were"
    text = f"{counted(len(done), 'delayed message', form=',')} of topic {topic} {verb} cancelled"
    if left := len(set(ids or ()) - done):
        text += f"; {left:,} no longer waited"
    return with_failures(text, answers)


OPERATIONS = {"cancel_delayed": PreviewedChange(_preview, _cancel)}
