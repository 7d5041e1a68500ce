"""Delayed messages: how many wait for each topic, when they are due, and their cancelling."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing

from aiohttp import web
from msgspec.structs import replace

from martlet.client.admin import (
    Admin,
    AdminError,
    AdminNotFound,
    DelayedAdmin,
    DelayedMessage,
)
from martlet.console.actions import TYPED_FROM, Action, Preview, with_failures
from martlet.console.inputs import Inputs, continued, inputs_of
from martlet.console.site import SITE
from martlet.schema.delayed import ListDelayed
from martlet.text import counted

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
    inputs = await inputs_of(request)
    if inputs.text("topic"):
        return await _topic(request, inputs)
    text = inputs.text("q").lower()
    names = [name for name in sorted(inputs.view.topics) if text in name.lower()]
    limit = asyncio.Semaphore(_AT_ONCE)
    errors: dict[str, None] = {}

    async def count(topic: str) -> int:
        async with limit:
            waiting, failed = await _waiting(site.admin, topic)
            errors.update(dict.fromkeys(failed))
            return waiting

    waiting_counts = await asyncio.gather(*map(count, names[:_MAX_TOPICS]))
    counts = {
        name: waiting for name, waiting in zip(names, waiting_counts, strict=False) if waiting
    }
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


async def _topic(request: web.Request, inputs: Inputs) -> web.StreamResponse:
    listed = inputs.request(ListDelayed, limit=_ROWS)
    pages, errors = await inputs.first_pages(
        inputs.urls(listed.topic),
        lambda admin: DelayedAdmin.pages.run(admin.http, listed, inputs.start),
        _ROWS,
    )
    first = replace(listed, limit=_MAX_PLOTTED)
    plotted = (await DelayedAdmin.list.run(inputs.admin.http, first)).joined()
    shown = [(page.broker, message) for page in pages for message in page.items]
    shown.sort(key=lambda row: row[1].deliver_at_ms)
    return inputs.site.page(
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
            "is_continued": inputs.start is not None,
        },
    )


def _histogram(messages: list[DelayedMessage], now_ms: int) -> Mapping[str, int]:
    """Return how many are due within each step."""
    counts = dict.fromkeys([*(name for name, _ in _STEPS), _LATER], 0)
    for message in messages:
        wait_s = (message.deliver_at_ms - now_ms) / 1000
        counts[next((name for name, limit_s in _STEPS if wait_s <= limit_s), _LATER)] += 1
    return counts


# cancelling


async def _preview(inputs: Inputs) -> Preview:
    topic = inputs.name("topic")
    ids = inputs.chosen()
    lines: list[str] = []
    if ids is not None:
        count = len(ids)
    else:
        count, lines = await _waiting(inputs.admin, topic)
    some = counted(count, "delayed message", form=",")
    return Preview(
        title=f"Cancel {some} of topic {topic}",
        button=f"Cancel {some}",
        lines=["They are not delivered. One that is delivered meanwhile is not cancelled.", *lines],
        typed=topic if ids is None and count > TYPED_FROM else "",
        is_possible=count > 0,
    )


async def _cancel(inputs: Inputs) -> str:
    topic = inputs.name("topic")
    ids = inputs.chosen()
    if ids is not None:
        answers = await inputs.admin.delayed.cancel(topic, ids)
    else:
        answers = await inputs.admin.delayed.cancel_all(topic)
    done = {message_id for answer in answers.values.values() for message_id in answer.cancelled}
    verb = "was" if len(done) == 1 else "were"
    text = f"{counted(len(done), 'delayed message', form=',')} of topic {topic} {verb} cancelled"
    if left := len(set(ids or ()) - done):
        text += f"; {left:,} no longer waited"
    return with_failures(text, answers)


ACTIONS = {"cancel_delayed": Action(_preview, _cancel)}
