"""The page of one message: its body, where it has been, and what can be done with it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from martlet.client.admin import (
    Admin,
    AdminError,
    AdminNotFound,
    LogMessage,
    Position,
    TracedMessage,
)
from martlet.console.actions import Action, Preview, with_failures
from martlet.console.guard import user_of
from martlet.console.inputs import ActionRefused, Inputs, inputs_of
from martlet.console.pages.bodies import FORMS, SHOWN_BYTES, body_text
from martlet.console.pages.export import check_may_download, send_body
from martlet.console.site import PageNotFound

_TRACE_MS = 3000
_MAX_PEEKED_BODY = 8 << 20
_MAX_EDITED_BYTES = SHOWN_BYTES
"""A larger body is sent again as it is."""


@dataclass(frozen=True)
class MessageFacts:
    """What a broker knows of a message."""

    broker: str
    topic: str
    """Where the message is."""
    stored: LogMessage | None
    """The message, if it can be read."""
    traced: TracedMessage | None
    """Its history and its state in each channel; None where that is not known."""

    @property
    def id(self) -> str:
        """Its id there."""
        if self.stored is not None:
            return self.stored.id
        assert self.traced is not None
        return self.traced.id

    @property
    def properties(self) -> Mapping[str, Any]:
        """Its tag, keys, order key, headers and system properties."""
        if self.stored is not None:
            return self.stored.properties
        return self.traced.properties if self.traced else {}

    @property
    def origin(self) -> Mapping[str, str]:
        """The topic and channel that a dead letter comes from; empty for another message."""
        notes: Mapping[str, str] = self.properties.get("system", {})
        origin = {name: notes.get(f"dead_{name}", "") for name in ("topic", "channel")}
        return origin if all(origin.values()) else {}


async def message(request: web.Request) -> web.StreamResponse:
    """``/messages/ID``"""
    inputs = await inputs_of(request)
    message_id = request.match_info["id"]
    facts, notes = await _facts(inputs, message_id)
    if not facts:
        raise PageNotFound(
            f"no broker that answers has a message {message_id}. {' '.join(notes)}".strip()
        )
    user = user_of(request)
    form = inputs.text("as") if inputs.text("as") in FORMS else ""
    shown = []
    for one in facts:
        body = one.stored.body if one.stored and user.sees_bodies else b""
        editable = None
        if one.stored and user.sees_bodies and len(body) <= _MAX_EDITED_BYTES:
            editable = _editable(body)
        shown.append((one, body_text(body, form=form), editable))
    return inputs.site.page(
        request,
        "message.html",
        {"id": message_id, "facts": shown, "notes": notes, "forms": FORMS, "form": form},
    )


async def _facts(inputs: Inputs, message_id: str) -> tuple[list[MessageFacts], list[str]]:
    """Return what brokers know of a message, and what a user should know of the search."""
    admin, notes = inputs.admin, []
    topic = inputs.name("topic", optional=True)
    facts = []
    try:
        traces = await admin.trace.find(message_id, topic=topic, time_limit_ms=_TRACE_MS)
    except AdminNotFound as error:
        notes.append(error.why)
    except AdminError as error:
        notes.append(f"Where it has been is not known: {error}")
    else:
        notes += [f"Not asked: {error}" for error in traces.failures.values()]
        for url, answer in traces.values.items():
            if not answer.are_traced:
                notes.append(
                    "The topic is not traced: see its settings. What happened to the message is"
                    " not known; its state in each channel is."
                )
            if not answer.is_complete:
                notes.append(f"The history is not complete: {_TRACE_MS / 1000:.0f} s were over.")
            for message in answer.messages:
                stored = await _stored(admin.at(url), url, message)
                facts.append(MessageFacts(url, message.topic, stored, message))
    if not facts and topic:
        answers = await _found(admin, topic, message_id)
        facts = [MessageFacts(url, topic, stored, None) for url, stored in answers.items()]
    return facts, list(dict.fromkeys(notes))


async def _found(admin: Admin, topic: str, message_id: str) -> Mapping[str, LogMessage]:
    try:
        return (await admin.messages.find(topic, message_id)).values
    except AdminError:
        return {}  # The page says that there is none, and why the search failed.


async def _stored(admin: Admin, url: str, traced: TracedMessage) -> LogMessage | None:
    """Return a message with its body; None if it can be read nowhere."""
    if traced.offset is None:
        return None
    messages = await _found(admin, traced.topic, traced.id)
    if url in messages:
        return messages[url]
    # It is for one channel alone, as one that was redriven.
    for channel in traced.channels:
        if channel.is_group or channel.state == "done":
            continue
        position = Position(url, {"queue": traced.queue, "offset": traced.offset})
        pages = admin.channels.peek_pages(
            traced.topic, channel.channel, limit=1, max_body_bytes=_MAX_PEEKED_BODY, start=position
        )
        try:
            async with aclosing(pages):
                async for page in pages:
                    for peeked in page.items:
                        if peeked.id == traced.id:
                            return LogMessage(
                                id=peeked.id,
                                queue=traced.queue,
                                offset=traced.offset,
                                stored_at_ns=traced.stored_at_ns,
                                body=peeked.body,
                                properties=peeked.properties,
                            )
                    break
        except AdminError:
            continue  # Another channel may have it.
    return None


def _editable(body: bytes) -> str | None:
    """Return a body as a form can send it back unchanged; None for another one."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    # A browser turns the end of each line into CR LF, and the server turns those into LF.
    return None if "\r" in text or "\0" in text else text


async def download(request: web.Request) -> web.StreamResponse:
    """``/messages/ID/body``"""
    check_may_download(request)
    inputs = await inputs_of(request)
    _, topic, stored = await _one(inputs, request.match_info["id"])
    return send_body(request, stored.body, stored.id, topic=topic, node=inputs.broker)


async def _one(inputs: Inputs, message_id: str) -> tuple[str, str, LogMessage]:
    """Return the broker, the topic and the message that a request names. Raises PageNotFound."""
    facts, notes = await _facts(inputs, message_id)
    for one in facts:
        if one.stored is not None and one.id == message_id:
            return one.broker, one.topic, one.stored
    raise PageNotFound(
        f"the body of message {message_id} cannot be read. {' '.join(notes)}".strip()
    )


# sending one again


def _chosen(inputs: Inputs) -> str:
    ids = inputs.ids("id")
    if len(ids) > 1:
        raise ActionRefused(f"one message is sent again, and not {len(ids)}")
    return ids[0]


async def _preview(inputs: Inputs) -> Preview:
    message_id, to_topic = _chosen(inputs), inputs.name("to_topic", optional=True)
    _, topic, stored = await _one(inputs, message_id)
    to = to_topic or topic
    return Preview(
        title=f"Send message {message_id} of {topic} again",
        button=f"Publish it to {to}",
        lines=[
            f"A new message with its body of {len(stored.body):,} bytes, its tag, keys, order key,"
            f" headers and priority is published to topic {to}: all its channels get it.",
            "The message itself stays as it is.",
        ],
    )


async def _send_again(inputs: Inputs) -> str:
    message_id, to_topic = _chosen(inputs), inputs.name("to_topic", optional=True)
    broker, topic, stored = await _one(inputs, message_id)
    to = to_topic or topic
    properties = stored.properties
    headers: Mapping[str, str] = properties.get("headers", {})
    coded: Mapping[str, str] = properties.get("headers_base64", {})
    texts = [properties.get("tag", ""), properties.get("order_key", "")]
    for text in (*texts, *properties.get("keys", ()), *headers, *headers.values(), *coded):
        if not text.isprintable():
            raise ActionRefused(f"{text!r} has characters that HTTP cannot carry in a property")
    answers = await inputs.site.admin.at(broker).topics.publish(
        to,
        stored.body,
        tag=properties.get("tag") or None,
        keys=properties.get("keys", ()),
        order_key=b64decode(properties.get("order_key_base64", "")) or properties.get("order_key"),
        headers={**headers, **{name: b64decode(value) for name, value in coded.items()}},
        priority=properties.get("priority"),
    )
    where = ", ".join(url.partition("://")[2] for url in answers.values)
    return with_failures(
        f"Message {message_id} of {topic} was sent again, to {to} at {where}", answers
    )


ACTIONS = {"send_again": Action(_preview, _send_again)}
