"""Read messages from the log by offset or time, also those that channels have finished.

::

    id = id base of the queue + offset        modulo 2**64

A read stops at a limit of messages and one of bytes, and answers where the next one begins. It
consumes nothing. Messages that are for one channel alone are left out of reads, as those that were
redriven and those that a channel delivers later; `ChannelAdmin.peek` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from martlet.client.admin.answers import Answers
from martlet.client.admin.decode import UNREADABLE
from martlet.client.admin.errors import AdminError, AdminNotFound
from martlet.client.admin.http import AdminHttp
from martlet.client.admin.methods import (
    Method,
    OperationGroup,
    at_each,
    called,
    id_text,
    search_timeout_s,
    target,
)
from martlet.properties.model import Properties
from martlet.schema.messages import FIND, OFFSET, SearchByKey
from martlet.schema.read import checked, read_answer
from martlet.schema.topics import DESCRIBE, LogQueue


@dataclass(frozen=True, kw_only=True)
class LogMessage:
    """A message as it was published.

    Attributes:
        queue, offset: where it is.
        stored_at_ns: when it was published, in nanoseconds since 1970.
        body: its body, complete.
        properties: its tag, keys, order key, headers and system properties, those that it has.
    """

    id: str
    queue: int
    offset: int
    stored_at_ns: int
    body: bytes = field(repr=False)
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LogRead:
    """The messages of one read.

    Attributes:
        messages: by offset.
        next_offset: where the next read begins.
        start_offset, end_offset: the offsets of the queue's first stored and next new message.
    """

    messages: tuple[LogMessage, ...]
    next_offset: int
    start_offset: int
    end_offset: int

    @property
    def is_end(self) -> bool:
        """Whether the queue has no more."""
        return self.next_offset >= self.end_offset


@dataclass(frozen=True, kw_only=True)
class KeyMatches:
    """The messages with a key that one request has found.

    Attributes:
        messages: newest first.
        next: where the search goes on; empty once all messages were searched.
    """

    messages: tuple[LogMessage, ...]
    next: str


class _ByKey(SearchByKey, kw_only=True):
    """The parameters of `by_key`.

    after: the `next` of brokers' last answers, by URL: only those are asked, and of them only those
        that have one
    """

    after: Mapping[str, str] | None = None


async def _by_key(http: AdminHttp, request: Any) -> Answers[KeyMatches]:
    fields = checked(SearchByKey, request)
    topic = {"topic": fields["topic"]}
    after: Mapping[str, str] | None = request.after
    timeout_s = search_timeout_s(request.time_limit_ms)

    urls = await http.brokers(fields["topic"])

    async def find_at(url: str) -> KeyMatches:
        if url not in urls:  # It would get the operators' token.
            raise AdminError(url, "it is none of the brokers that are asked")
        page_fields = {**fields, "after": after[url]} if after else fields
        answer, data = await http.call_with_bytes(url, FIND.name, page_fields, timeout_s=timeout_s)
        described = await called(http, url, DESCRIBE, topic)
        try:
            matches = read_answer(FIND.answer, answer)
            return KeyMatches(messages=_messages(data, described.queues), next=matches.next)
        except UNREADABLE as error:
            raise _unintelligible(url, FIND.name, error) from None

    if after is not None:
        urls_with_more = [url for url, following in after.items() if following]
        return await http.each(urls_with_more, find_at)
    return await http.each(urls, find_at)


class MessageMethods:
    """The declared methods of both clients."""

    offset_at = at_each(OFFSET)
    by_key = Method(FIND, _ByKey, "Answers[KeyMatches]", _by_key)


class MessageAdmin(MessageMethods, OperationGroup):
    """The messages of brokers' logs: `Admin.messages`.

    Each method answers for each broker that has the topic, which has offsets of its own, and raises
    AdminError only if none answered.

    ``by_key`` ends early at a limit; an answer may have no messages and still a `KeyMatches.next`.
    It may take its time limit, whatever ``request_timeout_s`` is. A message that the broker moves
    within its log between two requests may be missed.
    """

    async def read(
        self,
        topic: str,
        offset: int,
        *,
        queue: int = 0,
        limit: int = 100,
        max_bytes: int = 1 << 20,
    ) -> Answers[LogRead]:
        """Read messages from an offset on; at least one if there is any, however large.

        Args:
            offset: where to begin; one that is not stored counts as the nearest.
            limit: maximum messages, up to 10,000.
            max_bytes: maximum size, up to 8 MiB.
        """
        fields = {
            **target(topic),
            "queue": queue,
            "offset": offset,
            "max_messages": limit,
            "max_bytes": max_bytes,
            "wait_ms": 0,
        }
        http = self._http

        async def read_at(url: str) -> LogRead:
            description = await called(http, url, DESCRIBE, target(topic))
            queues = {described.queue: described for described in description.queues}
            if queue not in queues:
                raise AdminNotFound(url, f"topic {topic!r} has no queue {queue}", 404)
            answer, data = await http.call_with_bytes(url, "topic.fetch", fields)
            next_offset = answer.get("next_offset", offset)
            if answer.get("status") == "OFFSET_MOVED" and next_offset != offset:
                moved = {**fields, "offset": next_offset}
                answer, data = await http.call_with_bytes(url, "topic.fetch", moved)
            return _read(url, queues[queue], answer, data)

        return await http.each(await http.brokers(topic), read_at)

    async def find(self, topic: str, message_id: str | bytes) -> Answers[LogMessage]:
        """Return the message with an id. A broker that does not have it has an `AdminNotFound`.

        Args:
            message_id: 16 hexadecimal digits.
        """
        text = id_text(message_id)
        http = self._http

        async def find_at(url: str) -> LogMessage:
            description = await called(http, url, DESCRIBE, target(topic))
            for log_queue in description.queues:
                offset = log_queue.offset_of(text)
                if offset is None:
                    continue
                fields = {**target(topic), "queue": log_queue.queue, "offset": offset, "wait_ms": 0}
                answer, data = await http.call_with_bytes(
                    url, "topic.fetch", {**fields, "max_messages": 1}
                )
                for message in _read(url, log_queue, answer, data).messages:
                    if message.id == text:
                        return message
            raise AdminNotFound(url, f"topic {topic!r} stores no message {text}", 404)

        return await http.each(await http.brokers(topic), find_at)


def _read(url: str, queue: LogQueue, answer: Mapping[str, Any], data: bytes) -> LogRead:
    """Decode the answer of a fetch. Raises AdminError."""
    try:
        return LogRead(
            messages=_messages(data, [queue]),
            next_offset=int(answer["next_offset"]),
            start_offset=int(answer["start_offset"]),
            end_offset=int(answer["end_offset"]),
        )
    except UNREADABLE as error:
        raise _unintelligible(url, "topic.fetch", error) from None


def _unintelligible(url: str, name: str, error: Exception) -> AdminError:
    return AdminError(url, f"an unintelligible answer to {name}: {error!r}")


def _messages(data: bytes, queues: Sequence[LogQueue]) -> tuple[LogMessage, ...]:
    """Decode messages of some queues of a topic, whose ids are far apart. Raises ValueError."""
    # Imported here, as no other question to brokers needs numpy.
    from martlet.client.transport.property_frames import cut_messages
    from martlet.protocol.nsq.frames import BadFrame

    try:
        run = cut_messages(data)
    except BadFrame as error:
        raise ValueError(str(error)) from error
    messages = []
    for number, (stored_at_ns, _, found_id, body) in enumerate(run.fields() if run else ()):
        assert run is not None
        packed, text = run.properties.get(number), found_id.decode("ascii")
        queue = min(queues, key=lambda candidate: candidate.distance_of(text))
        messages.append(
            LogMessage(
                id=text,
                queue=queue.queue,
                offset=queue.distance_of(text),
                stored_at_ns=stored_at_ns,
                body=body,
                properties=Properties.unpack(packed).to_json() if packed else {},
            )
        )
    return tuple(messages)
