"""Reads the log for the page of messages, within limits: a list and a search are one thing.

::

    broker 1, queue 0   |-------------------|
    broker 1, queue 1   |------x enough was read: continue here
    broker 2, queue 0   |

Queues are read one after the other, one batch at a time, until enough is found or a limit is
reached. What a filter leaves out is read, too. Only a key needs no reading: see `search_by_key`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from martlet.client.admin import Admin, AdminError, LogMessage, LogQueue
from martlet.console.inputs import ActionRefused
from martlet.text import MILLISECOND_NS

MAX_FOUND = 50
MAX_READ = 20_000
MAX_READ_BYTES = 32 << 20
MAX_S = 5.0
_READ_MESSAGES = 1000
_READ_BYTES = 1 << 20
_MAX_KEY_BYTES = 8 << 20
STARTS = ("last", "first", "offset", "time")
"""Where reading begins: at the newest messages, the oldest, an offset or a time."""


@dataclass(frozen=True)
class MessageFilter:
    """Which messages are meant; all that is given must hold."""

    key: str = ""
    """One of their keys."""
    header: str = ""
    """The name of a header, or ``name=value``."""
    text: str = ""
    """A part of their body, in UTF-8."""

    def __bool__(self) -> bool:
        return bool(self.key or self.header or self.text)

    def matches(self, message: LogMessage) -> bool:
        """Whether a message is meant."""
        properties = message.properties
        if self.key and self.key not in (*properties.get("keys", ()), properties.get("order_key")):
            return False
        if self.text and self.text.encode() not in message.body:
            return False
        name, equals, value = self.header.partition("=")
        headers = {**properties.get("headers", {}), **properties.get("headers_base64", {})}
        return not name or (name in headers and (not equals or headers[name] == value))


@dataclass(frozen=True)
class ReadStart:
    """Where to read."""

    topic: str
    kind: str = "last"
    """One of `STARTS`."""
    offset: int = 0
    """Of ``offset``."""
    time_ms: int = 0
    """Of ``time``, in milliseconds since 1970."""
    broker: str = ""
    """The URL of the only broker; empty for all."""
    queue: int | None = None
    """The only queue; None for all."""
    on: tuple[str, int, int] | None = None
    """The broker, queue and offset where an earlier read ended; None to begin."""


@dataclass(frozen=True)
class FoundMessage:
    """A message, and the URL of its broker."""

    broker: str
    message: LogMessage


@dataclass
class LogResult:
    """What was read."""

    messages: list[FoundMessage] = field(default_factory=list)
    queues: list[tuple[str, LogQueue]] = field(default_factory=list)
    """The queues that there are, of each broker."""
    read_count: int = 0
    """How many messages were read."""
    read_bytes: int = 0
    """The size of their bodies."""
    took_s: float = 0.0
    """How long it took."""
    stopped: str = ""
    """The limit that ended it; empty at the end of the log."""
    next: tuple[str, int, int] | None = None
    """Where to continue; None at the end."""
    after: Mapping[str, str] = field(default_factory=dict)
    """Where a search by key continues, by broker; empty at the end."""
    errors: list[str] = field(default_factory=list)
    """Why queues could not be read."""
    notes: list[str] = field(default_factory=list)
    """What a user should know of the beginning."""

    def limit(self, max_found: int) -> str:
        """Return the limit that was reached; empty for none."""
        if len(self.messages) >= max_found:
            return f"{max_found} messages found"
        if self.read_count >= MAX_READ:
            return f"{MAX_READ:,} messages looked at"
        if self.read_bytes >= MAX_READ_BYTES:
            return f"{MAX_READ_BYTES >> 20} MiB looked at"
        return f"{MAX_S:.0f} s over" if self.took_s >= MAX_S else ""


async def search_by_key(
    admin: Admin, start: ReadStart, message_filter: MessageFilter, after: Mapping[str, str]
) -> LogResult:
    """Search by key, newest first: brokers have an index of keys. Raises AdminError,
    and ActionRefused: no message can have that key.
    """
    began_s = time.monotonic()
    try:
        answers = await (admin.at(start.broker) if start.broker else admin).messages.by_key(
            start.topic,
            message_filter.key,
            since_ns=start.time_ms * MILLISECOND_NS,
            limit=MAX_FOUND,
            max_bytes=_MAX_KEY_BYTES,
            after=after or None,
            time_limit_ms=round(MAX_S * 1000),
        )
    except ValueError as error:
        raise ActionRefused(str(error)) from None
    result = LogResult(errors=list(map(str, answers.failures.values())))
    for url, answer in answers.values.items():
        result.read_count += len(answer.messages)
        result.read_bytes += sum(len(message.body) for message in answer.messages)
        matching = filter(message_filter.matches, answer.messages)
        result.messages += [FoundMessage(url, message) for message in matching]
    result.messages.sort(key=lambda row: row.message.stored_at_ns, reverse=True)
    result.after = {url: answer.next for url, answer in answers.values.items() if answer.next}
    result.stopped = f"{MAX_FOUND} of a broker, or {MAX_S:.0f} s" if result.after else ""
    result.took_s = time.monotonic() - began_s
    return result


class LogReader:
    """Reads the log of a topic."""

    def __init__(
        self,
        admin: Admin,
        start: ReadStart,
        message_filter: MessageFilter,
        max_found: int = MAX_FOUND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admin = admin
        self._start = start
        self._wanted = message_filter
        self._max_found = max_found
        self._clock = clock
        self._began_s = clock()
        self._result = LogResult()

    async def read(self) -> LogResult:
        """Read. Raises AdminError: no broker describes the topic; ActionRefused: no such queue."""
        result, start = self._result, self._start
        answers = await self._admin.topics.describe(start.topic)
        result.errors += map(str, answers.failures.values())
        result.queues = [
            (url, queue)
            for url, described in sorted(answers.values.items())
            for queue in described.queues
        ]
        queues = [
            (url, queue)
            for url, queue in result.queues
            if start.broker in ("", url) and start.queue in (None, queue.queue)
        ]
        if not queues:
            raise ActionRefused(f"topic {start.topic} has no such queue")
        if start.on is not None:
            keys = [(url, queue.queue) for url, queue in queues]
            if start.on[:2] not in keys:
                raise ActionRefused("the queue where it continues has gone: begin again")
            queues = queues[keys.index(start.on[:2]) :]
        for number, (url, queue) in enumerate(queues):
            try:
                offset = await self._first(url, queue, len(queues))
                if number == 0 and start.on is not None:
                    offset = start.on[2]
                if not await self._read_queue(url, queue, offset):
                    break
            except AdminError as error:
                result.errors.append(f"queue {queue.queue} of {error}")
        if start.kind == "last" and not start.on:
            result.messages.sort(key=lambda row: row.message.stored_at_ns, reverse=True)
        result.took_s = self._clock() - self._began_s
        return result

    async def _first(self, url: str, queue: LogQueue, queue_count: int) -> int:
        """Return the offset where a queue is begun."""
        start = self._start
        if start.kind == "last":
            share = MAX_READ if self._wanted else self._max_found
            return max(queue.start_offset, queue.end_offset - max(1, share // queue_count))
        if start.kind == "offset":
            if start.offset < queue.start_offset:
                self._result.notes.append(
                    f"Queue {queue.queue} begins at offset {queue.start_offset:,}: earlier messages"
                    " are no longer stored."
                )
            return max(start.offset, queue.start_offset)
        if start.kind == "time":
            answers = await self._admin.at(url).messages.offset_at(
                start.topic, start.time_ms, queue=queue.queue
            )
            position = answers.values[url]
            if position.is_gone:
                self._result.notes.append(
                    f"Queue {queue.queue}: earlier messages since that time are no longer stored."
                )
            return position.offset
        return queue.start_offset

    async def _read_queue(self, url: str, queue: LogQueue, offset: int) -> bool:
        """Read a queue up to the end that it had; return whether to go on with the next one."""
        result, admin = self._result, self._admin.at(url)
        while offset < queue.end_offset:
            result.took_s = self._clock() - self._began_s
            result.stopped = result.limit(self._max_found)
            if result.stopped:
                result.next = (url, queue.queue, offset)
                return False
            answers = await admin.messages.read(
                self._start.topic,
                offset,
                queue=queue.queue,
                limit=min(_READ_MESSAGES, self._left()),
                max_bytes=_READ_BYTES,
            )
            read = answers.values[url]
            if read.next_offset <= offset:
                return True
            offset = read.next_offset
            for message in read.messages:
                result.read_count += 1
                result.read_bytes += len(message.body)
                if self._wanted.matches(message):
                    result.messages.append(FoundMessage(url, message))
                if len(result.messages) >= self._max_found:
                    offset = message.offset + 1
                    break
        return True

    def _left(self) -> int:
        """Return how many messages one read may have."""
        if self._wanted:
            return MAX_READ - self._result.read_count
        return self._max_found - len(self._result.messages)
