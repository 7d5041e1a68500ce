"""Delayed messages: list and cancel them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from functools import partial

from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.decode import Described, Fields, named
from martlet.client.admin.noun import Noun, id_texts, place

PAGE_ITEMS = 1000
"""The maximum number of messages in one request."""


@dataclass(frozen=True, kw_only=True)
class DelayedMessage(Described):
    """A message that waits for its delivery time.

    Attributes:
        id: its id.
        deliver_at_ms: when it is due, in milliseconds since 1970.
        stored_at_ms: when it was published.
        body_bytes: the size of its body.
        tag, keys: of its properties.
    """

    id: str
    deliver_at_ms: int
    stored_at_ms: int
    body_bytes: int = named("size_bytes")
    tag: str = ""
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cancelled(Described):
    """The result of cancelling messages at one broker.

    Attributes:
        cancelled: the ids of messages that are cancelled.
        not_waiting: ids that the broker does not know, or has delivered or cancelled before.
    """

    cancelled: tuple[str, ...]
    not_waiting: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _DelayedPage(Described):
    pending_count: int
    messages: tuple[DelayedMessage, ...]
    next: str = ""


class DelayedAdmin(Noun):
    """The delayed messages of brokers: `Admin.delayed`.

    Each method answers for each broker, and raises AdminError only if none answered.
    """

    async def list(
        self, topic: str, *, limit: int | None = 20
    ) -> Answers[tuple[DelayedMessage, ...]]:
        """List messages that wait for their delivery time, the earliest due first.

        Args:
            topic: the topic that they are for.
            limit: maximum messages of each broker; None for no limit.
        """
        place(topic)
        answers = await self._http.collected(topic, partial(self._at, topic, limit))
        return answers.map(lambda messages: messages[:limit])

    async def pages(
        self, topic: str, *, limit: int | None = None, start: Position | None = None
    ) -> AsyncGenerator[AnswerPage[DelayedMessage]]:
        """Yield what `list` answers in pages, for many messages: one broker after the other.

        `AnswerPage.count` is the number of all that wait there. Messages that were sent as one
        batch are on one page, even beyond the limit. With ``start``, the `AnswerPage.next` of an
        earlier page, it continues there.

        Raises:
            AdminError: a broker did not answer.
        """
        place(topic)
        async for page in self._http.pages(topic, partial(self._at, topic, limit), start):
            yield page

    async def cancel(
        self, topic: str, ids: str | bytes | Iterable[str | bytes]
    ) -> Answers[Cancelled]:
        """Cancel messages by their ids, which the answer to a send has, and `list`; or one."""
        fields = {**place(topic), "ids": id_texts(ids)}
        return await self._http.call_each("delay.cancel", fields, Cancelled.read)

    async def cancel_all(self, topic: str) -> Answers[Cancelled]:
        """Cancel all delayed messages of a topic."""
        place(topic)
        http = self._http

        async def cancel_at(url: str) -> Cancelled:
            cancelled: tuple[str, ...] = ()
            async for page in self._at(topic, None, url, {}):
                if page.items:
                    fields = {"topic": topic, "ids": [each.id for each in page.items]}
                    done = await http.call(url, "delay.cancel", fields, Cancelled.read)
                    cancelled += done.cancelled
            return Cancelled(cancelled=cancelled)

        return await http.each(await http.brokers(topic), cancel_at)

    async def _at(
        self, topic: str, limit: int | None, url: str, place: Fields
    ) -> AsyncIterator[AnswerPage[DelayedMessage]]:
        """Yield the messages of one broker."""
        left = limit
        start: Fields = {"from": "", **place}
        while left != 0:
            count = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
            fields = {"topic": topic, "limit": count, **start}
            page = await self._http.call(url, "delay.list", fields, _DelayedPage.read)
            if left is not None:
                left = max(0, left - len(page.messages))
            start = {"from": page.next}
            yield AnswerPage(
                broker=url,
                items=page.messages,
                next=Position(url, start) if page.next else None,
                count=page.pending_count,
            )
            if not page.next:
                return
