"""Channels: list, create, pause, empty, delete, configure, rewind and peek at them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack

from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.decode import Described, Fields, named
from martlet.client.admin.methods import OperationGroup, at_each, called, target
from martlet.client.admin.stats import ChannelStats
from martlet.client.admin.topics import Policy, change_at_each, counted_at_each
from martlet.schema.channels import CONFIGURE, RESTORE, EmptiedChannel
from martlet.schema.read import read_answer

PAGE_ITEMS = 500
"""The maximum number of messages in one request."""


class ChannelPolicyChanges(TypedDict, total=False):
    """The policy of a channel; None resets a field to its default.

    ``martlet channel configure --help`` has the meaning of each.
    """

    kind: str | None
    retain: str | None
    max_attempts: int | None
    retry_delays_ms: Sequence[int] | None
    dead_letter_topic: str | None
    tags: Sequence[str] | None
    filter: str | None
    order: str | None
    lock_ms: int | None
    rate_per_s: int | None
    rate_burst: int | None


@dataclass(frozen=True, kw_only=True)
class ShownBody(Described):
    """The base of messages that are shown with the first bytes of their body.

    Attributes:
        body_bytes: the size of the complete body; None where it cannot be read.
        body_text: the beginning of the body as text; None if it is no UTF-8.
        body_base64: the beginning of the body, if it is no UTF-8.
    """

    body_bytes: int | None = None
    body_text: str | None = named("body", default=None)
    body_base64: str | None = field(default=None, repr=False)

    @property
    def body(self) -> bytes:
        """The beginning of the body, as much as was asked for."""
        if self.body_base64 is not None:
            return b64decode(self.body_base64)
        return (self.body_text or "").encode()


@dataclass(frozen=True, kw_only=True)
class MessageClient(Described):
    """The consumer that has a message.

    Attributes:
        client_id, hostname, remote_address, user_agent: identify it.
    """

    client_id: str = ""
    hostname: str = ""
    remote_address: str = ""
    user_agent: str = ""


@dataclass(frozen=True, kw_only=True)
class PeekedMessage(ShownBody):
    """An unfinished message of a channel.

    Attributes:
        queue, offset: where it is.
        state: ``in_flight``, ``deferred``, ``due`` or ``waiting``.
        attempts: deliveries so far.
        failures: of those, failed ones.
        stored_at_ns: when it was published, in nanoseconds since 1970.
        due_ns: when it is delivered again.
        delivered_at_ns: when its consumer got it.
        properties: its tag, keys, order key, headers and system properties, those that it has.
        now_ns: the broker's time.
    """

    id: str
    queue: int = 0
    offset: int
    state: str
    attempts: int
    failures: int = 0
    stored_at_ns: int | None = named("timestamp_ns", default=None)
    due_ns: int | None = None
    delivered_at_ns: int | None = None
    client: MessageClient | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    now_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayedQueue(Described):
    """The new offset of a channel in a queue.

    Attributes:
        offset: the first message that is delivered again.
        end_offset: the offset of the next new message.
    """

    queue: int = 0
    offset: int
    end_offset: int

    @property
    def message_count(self) -> int:
        """The number of messages from there on."""
        return self.end_offset - self.offset


@dataclass(frozen=True, kw_only=True)
class ReplayResult(Described):
    """The new offsets of a channel.

    Attributes:
        queues: the queues that were rewound.
        depth: the messages that wait now.
    """

    queues: tuple[ReplayedQueue, ...]
    depth: int

    @property
    def message_count(self) -> int:
        """The number of messages from there on, in all queues."""
        return sum(queue.message_count for queue in self.queues)


def _replayed(answer: Any) -> ReplayResult:
    if "queues" in answer:
        return ReplayResult.read(answer)
    return ReplayResult(fields=answer, queues=(ReplayedQueue.read(answer),), depth=answer["depth"])


class ChannelAdmin(OperationGroup):
    """The channels of brokers: `Admin.channels`.

    Each method answers for each broker, and raises AdminError only if none answered.
    """

    _configure = at_each(CONFIGURE, lambda answer: answer.policy)

    async def list(
        self, topic: str = "", channel: str = "", *, include_clients: bool = False
    ) -> Answers[tuple[ChannelStats, ...]]:
        """List channels with their counts: all, those of a topic, or one.

        Args:
            topic: only channels of this topic.
            channel: only the channel of this name.
            include_clients: whether to list their consumers.
        """
        nodes = await counted_at_each(self._http, topic, channel, include_clients=include_clients)
        return nodes.map(
            lambda node: tuple(channel for topic in node.topics for channel in topic.channels)
        )

    async def create(self, topic: str, channel: str) -> Answers[None]:
        """Create a channel at each broker that has the topic; then at the lookup daemons, if given,
        for brokers that get the topic later.
        """
        names = target(topic, channel)
        return await change_at_each(self._http, "/channel/create", names, registered=True)

    async def pause(self, topic: str, channel: str) -> Answers[None]:
        """Stop the delivery of a channel; messages wait."""
        return await change_at_each(self._http, "/channel/pause", target(topic, channel))

    async def unpause(self, topic: str, channel: str) -> Answers[None]:
        """Let a channel deliver again."""
        return await change_at_each(self._http, "/channel/unpause", target(topic, channel))

    async def empty(self, topic: str, channel: str) -> Answers[EmptiedChannel | None]:
        """Drop all messages of a channel.

        Answers what `restore` needs to undo it; None of nsqd, and of groups, where it cannot be
        undone.
        """
        http = self._http
        arguments = {**target(topic, channel), "undo": "true"}
        return await http.each(
            await http.brokers(topic),
            lambda url: http.post(
                url,
                "/channel/empty",
                arguments,
                lambda answer: read_answer(EmptiedChannel, answer) if answer else None,
            ),
        )

    async def restore(
        self, topic: str, channel: str, emptied: Mapping[str, EmptiedChannel]
    ) -> Answers[int]:
        """Undo an empty; answers how many messages wait then.

        Messages that were delivered since then are delivered again. Delayed messages that the empty
        cancelled stay so.

        Args:
            emptied: what `empty` answered, by broker.

        Raises:
            AdminError: no broker did it, since the log has no longer what was emptied
                (``--keep-emptied`` of the broker), or the channel was set back meanwhile.
        """
        http, names = self._http, target(topic, channel)

        async def restore_at(url: str) -> int:
            fields = {**names, "queues": emptied[url].queues}
            return (await called(http, url, RESTORE, fields)).depth

        return await http.each(list(emptied), restore_at)

    async def delete(self, topic: str, channel: str) -> Answers[None]:
        """Delete a channel and disconnect its consumers; then at the lookup daemons, if given."""
        names = target(topic, channel)
        return await change_at_each(self._http, "/channel/delete", names, registered=True)

    async def configure(
        self, topic: str, channel: str, **changes: Unpack[ChannelPolicyChanges]
    ) -> Answers[Policy]:
        """Set fields of a channel's policy; answers all that differ from their defaults.

        Without any, it only shows the policy.
        """
        return await self._configure(topic, channel, dict(changes))

    async def replay(
        self,
        topic: str,
        channel: str,
        *,
        beginning: bool = False,
        to_time_ns: int | None = None,
        to_offset: int | None = None,
        queue: int | None = None,
        new_channel: bool = False,
    ) -> Answers[ReplayResult]:
        """Rewind a channel: all messages from there on are delivered again.

        Args:
            beginning: to the first message that the log still has.
            to_time_ns: to the first message published at or after this time, in nanoseconds since
                1970.
            to_offset: to this offset; each queue of each broker has offsets of its own.
            queue: only this queue.
            new_channel: create the channel, which must not exist, instead.

        Raises:
            ValueError: not exactly one of beginning, to_time_ns and to_offset is given.
        """
        if beginning + (to_time_ns is not None) + (to_offset is not None) != 1:
            raise ValueError("say where to, with one of beginning, to_time_ns and to_offset")
        where = {"timestamp_ns": to_time_ns, "offset": to_offset, "queue": queue}
        arguments = {**target(topic, channel), "new": str(new_channel).lower()}
        arguments |= {name: str(value) for name, value in where.items() if value is not None}
        if beginning:
            arguments["beginning"] = "true"
        http = self._http
        return await http.each(
            await http.brokers(topic),
            lambda url: http.post(url, "/channel/replay", arguments, _replayed),
        )

    async def peek(
        self,
        topic: str,
        channel: str,
        *,
        states: Iterable[str] = (),
        offset: int = 0,
        limit: int | None = 20,
        max_body_bytes: int = 1024,
    ) -> Answers[tuple[PeekedMessage, ...]]:
        """Show unfinished messages, by queue and offset, without consuming any.

        Args:
            states: only messages in these states: ``in_flight``, ``deferred``, ``due``,
                ``waiting``.
            offset: begin with the message at this offset, of each queue.
            limit: maximum messages of each broker; None for no limit.
            max_body_bytes: maximum bytes of a body.
        """
        at = partial(self._peek_at, _peek(topic, channel, states, max_body_bytes), offset, limit)
        return await self._http.collected(topic, at)

    async def peek_pages(
        self,
        topic: str,
        channel: str,
        *,
        states: Iterable[str] = (),
        offset: int = 0,
        limit: int | None = None,
        max_body_bytes: int = 1024,
        start: Position | None = None,
    ) -> AsyncGenerator[AnswerPage[PeekedMessage]]:
        """Yield what `peek` answers in pages, for many messages: one broker after the other.

        With ``start``, the `AnswerPage.next` of an earlier page, it continues there.

        Raises:
            AdminError: a broker did not answer.
        """
        at = partial(self._peek_at, _peek(topic, channel, states, max_body_bytes), offset, limit)
        async for page in self._http.pages(topic, at, start):
            yield page

    async def _peek_at(
        self,
        arguments: Mapping[str, str],
        offset: int,
        limit: int | None,
        url: str,
        position: Fields,
    ) -> AsyncIterator[AnswerPage[PeekedMessage]]:
        """Yield the messages of one broker."""
        start: Fields = {"queue": 0, "offset": offset, **position}
        left = limit
        while left != 0:
            count = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
            numbers = {name: str(number) for name, number in {**start, "limit": count}.items()}
            page = await self._http.get(url, "/channel/peek", {**arguments, **numbers}, _peek_page)
            if left is not None:
                left -= len(page.messages)
            following: dict[str, int] | None = None
            if page.next_offset is not None:
                following = {"queue": start["queue"], "offset": page.next_offset}
            elif start["queue"] + 1 < page.queue_count:
                following = {"queue": start["queue"] + 1, "offset": offset}
            yield AnswerPage(
                broker=url,
                items=page.messages,
                next=Position(url, following) if following else None,
                count=page.depth,
            )
            if following is None:
                return
            start = following


def _peek(
    topic: str, channel: str, states: Iterable[str], max_body_bytes: int
) -> Mapping[str, str]:
    return {
        **target(topic, channel),
        "state": ",".join(states),
        "max_body_bytes": str(max_body_bytes),
    }


@dataclass(frozen=True, kw_only=True)
class _PeekPage(Described):
    queue: int = 0
    queue_count: int = 1
    next_offset: int | None
    now_ns: int
    depth: int
    messages: tuple[PeekedMessage, ...]


def _peek_page(answer: Any) -> _PeekPage:
    """Read a page, whose messages get the broker's time and, of several queues, theirs."""
    common = {"now_ns": answer["now_ns"]}
    if answer.get("queue_count", 1) > 1:
        common["queue"] = answer["queue"]
    return _PeekPage.read(
        {**answer, "messages": [common | message for message in answer["messages"]]}
    )
