"""The HTTP endpoints that show a channel's messages, rewind it and advance it.

===============================  ==================================================================
``GET /channel/peek``            messages that the channel has yet to finish, by offset: up to
                                 ``limit`` from ``offset`` on, in the states of ``state``, of one
                                 ``queue``, 0 by default; ``queue_count`` says how many there are
``POST /channel/replay``         the channel continues at ``offset``, or at the first message at or
                                 after ``timestamp_ns``; with ``new=true`` a channel is made that
                                 begins there; 410 with ``start_offset`` where that has gone.
                                 Without a ``queue`` a time is for all of them
``POST /channel/advance``        a channel is done with all below ``offset`` of one ``queue``, 0 by
                                 default; made where missing
===============================  ==================================================================

A body is text where it is UTF-8, else as ``body_base64``; no more of it than ``max_body_bytes``.
If there are more messages, ``next_offset`` says where.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, cast

from martlet.broker.broker import BrokerCore
from martlet.broker.channel.channel import Channel
from martlet.broker.errors import NameRefused, NotFound, OutOfReach
from martlet.broker.queue.consumer import ChannelConsumer
from martlet.broker.queue.peek import Peeked, PeekedFrames, PeekState, peek
from martlet.broker.topic.rewind import channel_from, first_entry, offset_at, replay
from martlet.broker.topic.topic import Topic
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.names import is_valid_name
from martlet.properties.model import Properties
from martlet.server.http.log_api import find_queue_topic, queue_in_query
from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.nsq.connection import ClientConnection

DEFAULT_MESSAGES = 100
MAX_MESSAGES = 1000
DEFAULT_BODY_BYTES = 1 << 10
MAX_ANSWER_BYTES = 8 << 20
"""The limit of all bodies in one answer."""


class ChannelApi:
    """The endpoints for one channel."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/channel/peek": {"GET": self.peek},
            "/channel/replay": {"POST": self.replay},
            "/channel/advance": {"POST": self.advance},
        }

    async def peek(self, request: Request) -> object:
        """Show messages that a channel has yet to finish."""
        topic, name = self._topic_and_name(request)
        queue_topic = _queue_topic(request, topic)
        try:
            channel = queue_topic.find_channel(name)
        except NotFound:
            raise HttpError(404, "CHANNEL_NOT_FOUND") from None
        max_count = request.number("limit", DEFAULT_MESSAGES)
        if not 1 <= max_count <= MAX_MESSAGES:
            raise HttpError(
                400, f"INVALID_ARG_LIMIT: {max_count} is not between 1 and {MAX_MESSAGES}"
            )
        start = request.number("offset", 0)
        max_bytes = min(request.number("max_body_bytes", DEFAULT_BODY_BYTES), MAX_ANSWER_BYTES)
        peeked_all = peek(channel, start, max_count + 1, _states(request))
        messages: list[dict[str, Any]] = []
        frames = PeekedFrames(channel.cursor)
        shown_bytes = 0
        for peeked in peeked_all[:max_count]:
            message = _message(channel, peeked, frames, max_bytes)
            shown_bytes += min(message["body_bytes"] or 0, max_bytes)
            if messages and shown_bytes > MAX_ANSWER_BYTES:
                break
            messages.append(message)
        more = peeked_all[len(messages) :]
        return {
            "topic": topic.name,
            "channel": name,
            "queue": queue_topic.number,
            "queue_count": len(topic.at_queues),
            "paused": channel.paused,
            "topic_paused": topic.paused,
            "depth": channel.depth,
            "in_flight_count": channel.in_flight_count,
            "deferred_count": channel.deferred_count,
            "now_ns": self._broker.wall(),
            "next_offset": more[0].offset if more else None,
            "messages": messages,
        }

    async def replay(self, request: Request) -> object:
        """Rewind a channel to an offset or a time, or create one that begins there."""
        topic, name = self._topic_and_name(request)
        is_new = request.query.get("new", "false")
        if is_new not in ("true", "false"):
            raise HttpError(400, f"INVALID_ARG_NEW: {is_new!r} is neither true nor false")
        try:
            offsets = self._offsets(request, topic)
            if is_new == "true":
                channel_from(topic, name, offsets)
            else:
                channel = topic.find_channel(name)
                if len(offsets) > 1:
                    # A queue in which the channel has not reached that time delivers it anyway.
                    there = {
                        n: o for n, o in offsets.items() if o <= channel.at_queues[n].cursor.next
                    }
                    offsets = there or offsets
                replay(topic, name, offsets)
        except NotFound:
            raise HttpError(404, "CHANNEL_NOT_FOUND") from None
        except NameRefused:
            raise HttpError(400, "INVALID_ARG_CHANNEL") from None
        except OutOfReach as error:
            beginning = _beginning(topic.at_queues[error.queue])
            raise HttpError(410 if error.gone else 409, str(error), beginning) from None
        if not topic.several:
            depth = topic.channels[name].depth
            return {"offset": offsets[0], "end_offset": topic.limit, "depth": depth}
        queues = [
            {"queue": number, "offset": offset, "end_offset": topic.at_queues[number].limit}
            for number, offset in offsets.items()
        ]
        return {"queues": queues, "depth": topic.channels[name].all_queues.depth}

    async def advance(self, request: Request) -> object:
        """Finish all messages of a queue below an offset in a channel, created if missing."""
        topic = self._broker.queues[find_queue_topic(self._broker, *queue_in_query(request)).id]
        name = request.argument("channel")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        offset = request.number("offset")
        if offset > topic.queue.visible_end:
            raise HttpError(
                400,
                f"INVALID_ARG_OFFSET: {offset} is past the end of the queue,"
                f" {topic.queue.visible_end}",
            )
        starts = {queue.number: queue.queue.start_offset for queue in topic.at_queues}
        topic.at_queues[0].channel(name, start=starts)
        topic.channels[name].advance(offset)
        self._broker.write_moved(topic.channels[name])
        return None

    def _offsets(self, request: Request, topic: Topic) -> dict[int, int]:
        """Return the requested offset in each queue, from an offset, a time or the beginning."""
        names = [name for name in ("offset", "timestamp_ns", "beginning") if name in request.query]
        if len(names) != 1:
            raise HttpError(400, "MISSING_ARG_OFFSET: give one of offset, timestamp_ns, beginning")
        one = "queue" in request.query or not topic.several
        queues = [_queue_topic(request, topic)] if one else topic.at_queues
        if names == ["offset"]:
            if not one:
                raise HttpError(
                    400,
                    f"MISSING_ARG_QUEUE: topic {topic.name} has {len(queues)} queues, each with"
                    " its own offsets: add queue, or use timestamp_ns or beginning",
                )
            return {queues[0].number: request.number("offset")}
        if names == ["timestamp_ns"]:
            time_ns = request.number("timestamp_ns")
            return {queue.number: offset_at(queue, time_ns) for queue in queues}
        if request.query["beginning"] != "true":
            raise HttpError(400, "INVALID_ARG_BEGINNING: it can only be true")
        return {queue.number: queue.queue.start_offset for queue in queues}

    def _topic_and_name(self, request: Request) -> tuple[Topic, str]:
        topic, channel = request.topic_and_channel()
        try:
            return self._broker.find_topic(topic), channel
        except NotFound:
            raise HttpError(404, "TOPIC_NOT_FOUND") from None


def _queue_topic(request: Request, topic: Topic) -> Topic:
    """Return the topic's named queue, by default queue 0."""
    try:
        return topic.at_queue(request.number("queue", 0))
    except NotFound:
        raise HttpError(404, "QUEUE_NOT_FOUND") from None


def _beginning(topic: Topic) -> dict[str, object]:
    """Return the offset at which a topic's stored messages begin."""
    first = first_entry(topic.queue)
    return {
        "start_offset": topic.queue.start_offset,
        "start_ns": first.stored_at_ns if first is not None else None,
    }


def _states(request: Request) -> list[PeekState]:
    """Return the requested states, by default all."""
    states = request.query.get("state", "")
    try:
        return [PeekState(name) for name in states.split(",")] if states else list(PeekState)
    except ValueError:
        names = ", ".join(PeekState)
        raise HttpError(400, f"INVALID_ARG_STATE: {states!r} is not of {names}") from None


def _message(
    channel: Channel, peeked: Peeked, frames: PeekedFrames, max_bytes: int
) -> dict[str, Any]:
    """Return a message as JSON; the body is null if it cannot be read."""
    message: dict[str, Any] = {
        "offset": peeked.offset,
        "id": channel.cursor.queue.message_id(peeked.offset).decode(),
        "state": peeked.state,
        "attempts": peeked.attempts,
        "failures": peeked.failures,
        "timestamp_ns": None,
        "due_ns": peeked.due_ns or None,
        "delivered_at_ns": peeked.delivered_at_ns or None,
        "client": None if peeked.owner is None else _client(peeked.owner),
        "body_bytes": None,
        "body": None,
    }
    read = frames.read(peeked.offset)
    entry = channel.cursor.properties(peeked.offset)
    if entry:
        message["properties"] = Properties.unpack(entry).to_json()
    if read is not None:
        row, frame = read
        body = bytes(frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + max_bytes])
        message["timestamp_ns"] = row.stored_at_ns
        message["body_bytes"] = len(frame) - FRAME_HEADER_BYTES
        try:
            message["body"] = _decoded(body, len(body) < message["body_bytes"])
        except UnicodeDecodeError:
            message["body_base64"] = b64encode(body).decode()
    return message


def _decoded(body: bytes, is_cut: bool) -> str:
    """Return a body as text, without a cut character at its end. Raises UnicodeDecodeError."""
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if is_cut and error.end == len(body) and len(body) - error.start < 4:
            return body[: error.start].decode()
        raise


def _client(consumer: ChannelConsumer) -> dict[str, object]:
    connection = cast("ClientConnection", cast(Any, consumer.client).connection)
    identity = connection.identity
    return {
        "client_id": identity.client_id,
        "hostname": identity.hostname,
        "remote_address": connection.remote_address,
        "user_agent": identity.user_agent,
    }
