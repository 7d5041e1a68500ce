"""The page of messages: choose a topic, and read its log or what a channel has not finished."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web

from martlet.admin.guard import user_of
from martlet.admin.inputs import ActionRefused, Inputs, continued, inputs_of
from martlet.admin.pages.bodies import FORMS, LISTED_BYTES, body_text
from martlet.admin.pages.export import body_fields, check_may_download, send_lines
from martlet.admin.pages.reading import (
    MAX_FOUND,
    MAX_LOOKED,
    MAX_LOOKED_BYTES,
    MAX_S,
    STARTS,
    LogLook,
    LogReader,
    MessageFilter,
    ReadStart,
    look_for_key,
)
from martlet.client.admin import PeekedMessage
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
    known = inputs.view.topics.get(topic)
    context: dict[str, Any] = {
        "topic": topic,
        "fields": {name: inputs.text(name) for name in _FIELDS},
        "topics": sorted(inputs.view.topics)[:_MAX_TOPICS],
        "channels": sorted(known.channels) if known else [],
        "states": STATES,
        "starts": STARTS,
        "forms": FORMS,
        "limits": {"found": MAX_FOUND, "looked": MAX_LOOKED, "bytes": MAX_LOOKED_BYTES, "s": MAX_S},
        "look": None,
        "peeked": None,
    }
    if topic and inputs.text("channel"):
        context |= await _peeked(request, inputs)
    elif topic:
        context |= await _looked(request, inputs)
    return inputs.site.page(request, "messages.html", context)


async def _looked(request: web.Request, inputs: Inputs) -> Mapping[str, Any]:
    """Return what the page shows of the log."""
    look = await _look(request, inputs)
    sees = user_of(request).sees_bodies
    return {
        "look": look,
        "rows": [
            (each, body_text(each.message.body if sees else b"", len(each.message.body),
                             _form(inputs), LISTED_BYTES))
            for each in look.found
        ],
        "after": json.dumps(dict(look.after)) if look.after else "",
        "next": look.next and "|".join(map(str, look.next)),
        "several": len(look.queues) != 1,
        "is_followed": _is_newest(inputs),
        "earlier": _earlier(inputs, look),
    }  # fmt: skip


async def _look(request: web.Request, inputs: Inputs) -> LogLook:
    """Read the log as an address asks. Raises ActionRefused, AdminError."""
    wanted = MessageFilter(inputs.text("key"), inputs.text("header"), inputs.text("text"))
    if wanted and not user_of(request).sees_bodies:
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
    if wanted.key and kind in _INDEXED and start.queue is None:
        return await look_for_key(inputs.site.admin, start, wanted, _after(inputs))
    return await LogReader(inputs.site.admin, start, wanted).read()


def _after(inputs: Inputs) -> Mapping[str, str]:
    """Return where an earlier search by key ended, by broker."""
    text = inputs.text("after")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, dict) and found.keys() <= set(inputs.view.brokers)):
        raise ActionRefused("the search does not continue there: begin again without 'after'")
    if not all(isinstance(each, str) for each in found.values()):
        raise ActionRefused("the search does not continue there: begin again without 'after'")
    return found


def _on(inputs: Inputs) -> tuple[str, int, int] | None:
    """Return where an earlier read ended."""
    text = inputs.text("go")
    if not text:
        return None
    url, _, place = text.partition("|")
    queue, _, offset = place.partition("|")
    if not (queue.isdecimal() and offset.isdecimal() and len(place) < 40):
        raise ActionRefused("the list does not continue there: begin again without 'go'")
    return url, int(queue), int(offset)


def _earlier(inputs: Inputs, look: LogLook) -> int | None:
    """Return the offset where the messages before those shown begin, of a list of one queue."""
    chosen = [
        queue
        for url, queue in look.queues
        if inputs.broker in ("", url) and inputs.text("queue") in ("", str(queue.queue))
    ]
    offsets = [each.message.offset for each in look.found]
    is_search = any(inputs.text(name) for name in ("key", "header", "text"))
    if len(chosen) != 1 or not offsets or is_search or min(offsets) <= chosen[0].start_offset:
        return None
    return max(chosen[0].start_offset, min(offsets) - MAX_FOUND)


def _is_newest(inputs: Inputs) -> bool:
    """Whether the newest messages are listed, which a page can follow; a search costs too much."""
    others = ("key", "header", "text", "go", "after")
    return inputs.text("from") in ("", "last") and not any(map(inputs.text, others))


def _form(inputs: Inputs) -> str:
    found = inputs.text("as")
    return found if found in FORMS else ""


async def _peeked(request: web.Request, inputs: Inputs) -> Mapping[str, Any]:
    """Return what the page shows of a channel."""
    sees = user_of(request).sees_bodies
    rows, nexts, errors = await _peek(inputs, LISTED_BYTES if sees else 0)
    return {
        "peeked": [
            (url, each, body_text(each.body, each.body_bytes, _form(inputs), LISTED_BYTES))
            for url, each in rows
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
    rows = [(page.broker, each) for page in pages for each in page.items]
    return rows, [(page.broker, continued(page.next)) for page in pages if page.next], errors


async def export(request: web.Request) -> web.StreamResponse:
    """``/messages/export``: what the page with the same query shows, as JSON lines."""
    check_may_download(request)
    inputs = await inputs_of(request)
    where = {"topic": inputs.name("topic"), "channel": inputs.name("channel", optional=True)}
    if where["channel"]:
        rows = (await _peek(inputs, _EXPORTED_BODY))[0]
        return await send_lines(request, "messages", _peeked_lines(rows), **where)
    look = await _look(request, inputs)
    return await send_lines(request, "messages", _lines(where["topic"], look), **where)


async def _lines(topic: str, look: LogLook) -> AsyncIterator[Mapping[str, Any]]:
    for each in look.found:
        message = each.message
        yield {
            "broker": each.broker,
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
