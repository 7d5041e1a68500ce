"""The page of messages: choose a topic, and read its log or what a channel has not finished."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from martlet.client.admin import PeekedMessage
from martlet.console.guard import user_of
from martlet.console.inputs import ActionRefused, Inputs, continued, inputs_of
from martlet.console.pages.bodies import FORMS, LISTED_BYTES, body_text
from martlet.console.pages.export import body_fields, check_may_download, send_lines
from martlet.console.pages.reading import (
    MAX_FOUND,
    MAX_READ,
    MAX_READ_BYTES,
    MAX_S,
    STARTS,
    LogReader,
    LogResult,
    MessageFilter,
    ReadStart,
    search_by_key,
)
from martlet.names import ID_RULE, is_message_id

STATES = ("waiting", "in_flight", "deferred", "due")
"""The states of a channel's unfinished messages."""
_INDEXED = ("last", "time")
"""From where brokers search for a key themselves."""
_FIELDS = ("topic", "channel", "state", "broker", "queue", "from", "offset", "time", "key",
           "header", "text", "as")  # fmt: skip
_MAX_TOPICS = 5000
"""The names that the form offers."""
_EXPORTED_BODY = 1 << 20


async def messages(request: web.Request) -> web.StreamResponse:
    """``/messages``"""
    inputs = await inputs_of(request)
    wanted_id = inputs.text("id").lower()
    if wanted_id:
        if not is_message_id(wanted_id):
            raise ActionRefused(f"{wanted_id[:40]!r} is no message's id: {ID_RULE}")
        topic = inputs.name("topic", optional=True)
        raise web.HTTPFound(inputs.site.url("/messages", wanted_id, topic=topic))
    topic = inputs.name("topic", optional=True)
    totals = inputs.view.topics.get(topic)
    context: dict[str, Any] = {
        "topic": topic,
        "fields": {name: inputs.text(name) for name in _FIELDS},
        "topics": sorted(inputs.view.topics)[:_MAX_TOPICS],
        "channels": sorted(totals.channels) if totals else [],
        "states": STATES,
        "starts": STARTS,
        "forms": FORMS,
        "limits": {"found": MAX_FOUND, "messages": MAX_READ, "bytes": MAX_READ_BYTES, "s": MAX_S},
        "result": None,
        "peeked": None,
    }
    if topic and inputs.text("channel"):
        context |= await _peeked(request, inputs)
    elif topic:
        context |= await _log_values(request, inputs)
    return inputs.site.page(request, "messages.html", context)


async def _log_values(request: web.Request, inputs: Inputs) -> Mapping[str, Any]:
    """Return what the page shows of the log."""
    result = await _read_log(request, inputs)
    sees = user_of(request).sees_bodies
    return {
        "result": result,
        "rows": [
            (row, body_text(row.message.body if sees else b"", len(row.message.body),
                             _form(inputs), LISTED_BYTES))
            for row in result.messages
        ],
        "after": json.dumps(dict(result.after)) if result.after else "",
        "next": result.next and "|".join(map(str, result.next)),
        "several": len(result.queues) != 1,
        "is_followed": _is_newest(inputs),
        "earlier": _earlier(inputs, result),
    }  # fmt: skip


async def _read_log(request: web.Request, inputs: Inputs) -> LogResult:
    """Read the log as an address asks. Raises ActionRefused, AdminError."""
    message_filter = MessageFilter(inputs.text("key"), inputs.text("header"), inputs.text("text"))
    if message_filter and not user_of(request).sees_bodies:
        # Else a search would tell what is in a body.
        raise web.HTTPForbidden(text="this user does not see bodies, and so searches none")
    kind = inputs.text("from") or "last"
    if kind not in STARTS:
        raise ActionRefused(f"from: {kind[:40]!r} is none of {', '.join(STARTS)}")
    start = ReadStart(
        inputs.name("topic"),
        kind,
        offset=inputs.number("offset") if kind == "offset" else 0,
        time_ms=inputs.time_ns("time") // 1_000_000 if kind == "time" else 0,
        broker=inputs.broker,
        queue=inputs.number("queue") if inputs.text("queue") else None,
        on=_on(inputs),
    )
    if message_filter.key and kind in _INDEXED and start.queue is None:
        return await search_by_key(inputs.site.admin, start, message_filter, _after(inputs))
    return await LogReader(inputs.site.admin, start, message_filter).read()


def _after(inputs: Inputs) -> Mapping[str, str]:
    """Return where an earlier search by key ended, by broker."""
    text = inputs.text("after")
    if not text:
        return {}
    try:
        position = json.loads(text)
    except (ValueError, RecursionError):
        position = None
    if not (isinstance(position, dict) and position.keys() <= set(inputs.view.brokers)):
        raise ActionRefused("the search does not continue there: begin again without 'after'")
    if not all(isinstance(offset, str) for offset in position.values()):
        raise ActionRefused("the search does not continue there: begin again without 'after'")
    return position


def _on(inputs: Inputs) -> tuple[str, int, int] | None:
    """Return where an earlier read ended."""
    text = inputs.text("go")
    if not text:
        return None
    url, _, position = text.partition("|")
    queue, _, offset = position.partition("|")
    if not (queue.isdecimal() and offset.isdecimal() and len(position) < 40):
        raise ActionRefused("the list does not continue there: begin again without 'go'")
    return url, int(queue), int(offset)


def _earlier(inputs: Inputs, result: LogResult) -> int | None:
    """Return the offset where the messages before those shown begin, of a list of one queue."""
    chosen = [
        queue
        for url, queue in result.queues
        if inputs.broker in ("", url) and inputs.text("queue") in ("", str(queue.queue))
    ]
    offsets = [row.message.offset for row in result.messages]
    is_search = any(inputs.text(name) for name in ("key", "header", "text"))
    if len(chosen) != 1 or not offsets or is_search or min(offsets) <= chosen[0].start_offset:
        return None
    return max(chosen[0].start_offset, min(offsets) - MAX_FOUND)


def _is_newest(inputs: Inputs) -> bool:
    """Whether the newest messages are listed, which a page can follow; a search costs too much."""
    others = ("key", "header", "text", "go", "after")
    return inputs.text("from") in ("", "last") and not any(map(inputs.text, others))


def _form(inputs: Inputs) -> str:
    form = inputs.text("as")
    return form if form in FORMS else ""


async def _peeked(request: web.Request, inputs: Inputs) -> Mapping[str, Any]:
    """Return what the page shows of a channel."""
    sees = user_of(request).sees_bodies
    rows, nexts, errors = await _peek(inputs, LISTED_BYTES if sees else 0)
    return {
        "peeked": [
            (url, message, body_text(message.body, message.body_bytes, _form(inputs), LISTED_BYTES))
            for url, message in rows
        ],
        "nexts": nexts,
        "errors": errors,
    }


async def _peek(
    inputs: Inputs, body_bytes: int
) -> tuple[list[tuple[str, PeekedMessage]], list[tuple[str, Mapping[str, Any]]], list[str]]:
    """Return unfinished messages with their brokers, where each broker continues, and errors."""
    state = inputs.text("state")
    if state and state not in STATES:
        raise ActionRefused(f"state: {state[:40]!r} is none of {', '.join(STATES)}")
    topic, channel = inputs.name("topic"), inputs.name("channel")
    pages, errors = await inputs.first_pages(
        inputs.urls(topic),
        lambda admin: admin.channels.peek_pages(
            topic,
            channel,
            states=[state] if state else (),
            limit=MAX_FOUND,
            max_body_bytes=body_bytes,
            start=inputs.start,
        ),
        MAX_FOUND,
    )
    rows = [(page.broker, message) for page in pages for message in page.items]
    return rows, [(page.broker, continued(page.next)) for page in pages if page.next], errors


async def export(request: web.Request) -> web.StreamResponse:
    """``/messages/export``: what the page with the same query shows, as JSON lines."""
    check_may_download(request)
    inputs = await inputs_of(request)
    where = {"topic": inputs.name("topic"), "channel": inputs.name("channel", optional=True)}
    if where["channel"]:
        rows = (await _peek(inputs, _EXPORTED_BODY))[0]
        return await send_lines(request, "messages", _peeked_lines(rows), **where)
    result = await _read_log(request, inputs)
    return await send_lines(request, "messages", _lines(where["topic"], result), **where)


async def _lines(topic: str, result: LogResult) -> AsyncIterator[Mapping[str, Any]]:
    for row in result.messages:
        message = row.message
        yield {
            "broker": row.broker,
            "topic": topic,
            "id": message.id,
            "queue": message.queue,
            "offset": message.offset,
            "timestamp_ns": message.stored_at_ns,
            "properties": dict(message.properties),
            **body_fields(message.body),
        }


async def _peeked_lines(rows: list[tuple[str, PeekedMessage]]) -> AsyncIterator[Mapping[str, Any]]:
    for url, message in rows:
        yield {"broker": url, **message.fields}
