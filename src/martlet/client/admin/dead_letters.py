"""Dead letters: count, show, redrive and purge them.

New dead letters are left alone by a redrive: one that fails again at once would be redriven for
ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict, Unpack

from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.channels import PAGE_ITEMS, ShownBody
from martlet.client.admin.decode import Described, Fields
from martlet.client.admin.errors import AdminNotFound
from martlet.client.admin.noun import Noun, id_texts
from martlet.client.names import check_name


class DeadLetterFilter(TypedDict, total=False):
    """Which dead letters of a channel are meant; all of the given ones must hold.

    ``ids``: only these. ``reason``: ``max_attempts``, ``timeout``, ``disconnected``, ``rejected``
    or ``given_up``. ``error``: a part of their first or last error. ``since_ms``, ``until_ms``:
    when they were dead-lettered, in milliseconds since 1970.
    """

    ids: Collection[str | bytes]
    reason: str
    error: str
    since_ms: int
    until_ms: int


@dataclass(frozen=True, kw_only=True)
class DeadLetterChannelCounts(Described):
    """The dead letters of one channel in a dead-letter topic.

    Attributes:
        topic, channel: where they come from.
        count: their number.
        reasons: their numbers by reason.
        oldest_ms, newest_ms: when they were dead-lettered, in milliseconds since 1970.
    """

    topic: str
    channel: str
    count: int
    reasons: Mapping[str, int]
    oldest_ms: int
    newest_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class DeadLetterTopicCounts(Described):
    """A dead-letter topic of one broker.

    Attributes:
        dead_letter_topic: its name.
        count: its dead letters.
        in_flight_count: of those, the ones that a consumer has.
        channels: their numbers by the channel that they come from, of the first thousands.
    """

    dead_letter_topic: str
    count: int
    in_flight_count: int = 0
    channels: tuple[DeadLetterChannelCounts, ...]


@dataclass(frozen=True, kw_only=True)
class DeadLetterMessage(ShownBody):
    """A dead letter.

    Attributes:
        id: its id.
        queue, offset: where it is.
        state: ``in_flight`` if a consumer has it, else ``waiting``, ``due`` or ``deferred``.
        at_ms: when it was dead-lettered, in milliseconds since 1970.
        topic, channel: where it comes from.
        message_id: the id that the message had there.
        reason: why it is dead.
        failures, attempts: how often it failed and was delivered; None if that is unknown.
        first_error, last_error: the texts of its errors.
        redrives: how often it was redriven before.
        tag, keys, order_key, headers: its properties.
    """

    id: str
    queue: int
    offset: int
    state: str
    at_ms: int
    topic: str = ""
    channel: str = ""
    message_id: str = ""
    reason: str = "unknown"
    failures: int | None = None
    attempts: int | None = None
    first_error: str = ""
    last_error: str = ""
    redrives: int = 0
    tag: str = ""
    keys: tuple[str, ...] = ()
    order_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


_NUMBERS = ("failures", "attempts", "redrives")
"""System properties, whose values are texts."""


def _letter(answer: Mapping[str, Any]) -> DeadLetterMessage:
    numbers = {name: int(answer[name]) for name in _NUMBERS if answer.get(name)}
    letter = DeadLetterMessage.read({**answer, **numbers})
    object.__setattr__(letter, "fields", answer)
    return letter


def _letters(answer: Any) -> dict[str, Any]:
    return {**answer, "messages": tuple(map(_letter, answer["messages"]))}


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The dead letters that were redriven or purged at one broker, or would be.

    Attributes:
        count: their number.
        kept: the numbers of those that stay where they are, by the reason.
        found: those of the ids given that were met, under their present or former id; None if the
            broker does not say.
    """

    count: int
    kept: Mapping[str, int]
    found: frozenset[str] | None


def _moved(answer: Any) -> dict[str, Any]:
    return {**answer, "count": int(answer["count"]), "kept": dict(answer["kept"])}


class DeadLetterAdmin(Noun):
    """The dead letters of brokers: `Admin.dead_letters`.

    The dead letters of a channel are named by its topic and channel, or by their
    ``dead_letter_topic``. Each method answers for each broker, and raises AdminError only if none
    answered.
    """

    async def list(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        dead_letter_topic: str | None = None,
    ) -> Answers[tuple[DeadLetterTopicCounts, ...]]:
        """Count the dead letters of a channel, or of all, by channel and reason."""

        def topics(answer: Mapping[str, Any]) -> tuple[DeadLetterTopicCounts, ...]:
            return tuple(map(DeadLetterTopicCounts.read, answer["dead_letter_topics"]))

        fields = _whose(topic, channel, dead_letter_topic)
        return await self._http.call_each("dead_letters.list", fields, topics)

    async def show(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        dead_letter_topic: str | None = None,
        limit: int | None = 20,
        max_body_bytes: int = 1024,
        **which: Unpack[DeadLetterFilter],
    ) -> Answers[tuple[DeadLetterMessage, ...]]:
        """Show dead letters, the oldest first.

        Args:
            topic, channel: where they come from.
            dead_letter_topic: where they are, instead.
            limit: maximum dead letters of each broker; None for no limit.
            max_body_bytes: maximum bytes of a body.
            which: fields of `DeadLetterFilter`.
        """
        fields = _whose(topic, channel, dead_letter_topic) | _which(which)
        at = partial(self._show_at, {**fields, "max_body_bytes": max_body_bytes}, limit)
        return await self._http.collected(topic or "", at)

    async def pages(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        dead_letter_topic: str | None = None,
        limit: int | None = None,
        max_body_bytes: int = 1024,
        start: Position | None = None,
        **which: Unpack[DeadLetterFilter],
    ) -> AsyncGenerator[AnswerPage[DeadLetterMessage]]:
        """Yield what `show` answers in pages, for many dead letters: one broker after the other.

        With ``start``, the `AnswerPage.next` of an earlier page, it continues there.

        Raises:
            AdminError: a broker did not answer.
        """
        fields = _whose(topic, channel, dead_letter_topic) | _which(which)
        at = partial(self._show_at, {**fields, "max_body_bytes": max_body_bytes}, limit)
        async for page in self._http.pages(topic or "", at, start):
            yield page

    async def redrive(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        dead_letter_topic: str | None = None,
        to_topic: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        **which: Unpack[DeadLetterFilter],
    ) -> Answers[Moved]:
        """Move dead letters back to the channels that they come from, or to another topic.

        Args:
            topic, channel: where they come from.
            dead_letter_topic: where they are, instead.
            to_topic: move them to this topic, to all its channels.
            all: all of them, if no field of `DeadLetterFilter` is given.
            dry_run: only count them.
            which: fields of `DeadLetterFilter`.

        Raises:
            ValueError: there is neither a filter nor ``all=True``.
        """
        fields = _whose(topic, channel, dead_letter_topic, to_topic)
        return await self._move("redrive", fields, all, dry_run, which)

    async def purge(
        self,
        topic: str | None = None,
        channel: str | None = None,
        *,
        dead_letter_topic: str | None = None,
        all: bool = False,
        dry_run: bool = False,
        **which: Unpack[DeadLetterFilter],
    ) -> Answers[Moved]:
        """Delete dead letters; the arguments are those of `redrive`."""
        fields = _whose(topic, channel, dead_letter_topic)
        return await self._move("purge", fields, all, dry_run, which)

    async def _move(
        self,
        action: str,
        whose: Mapping[str, Any],
        all: bool,
        dry_run: bool,
        which: DeadLetterFilter,
    ) -> Answers[Moved]:
        chosen = _which(which)
        if not chosen and not all:
            raise ValueError(
                "the selection is missing: give all=True, or any of ids, reason, error, since_ms"
                " and until_ms"
            )
        fields = {**whose, **chosen, "all": all, "dry_run": dry_run}
        http = self._http

        async def move_at(url: str) -> Moved:
            count, kept = 0, Counter[str]()
            found: frozenset[str] | None = frozenset()
            following: Fields | None = {}
            while following is not None:
                page = await self._step(url, f"dead_letters.{action}", fields, following, _moved)
                if page is None:
                    break
                count += page["count"]
                kept.update(page["kept"])
                # An older broker does not report it.
                found = found | {*page["found"]} if "found" in page and found is not None else None
                following = page["next"]
            return Moved(count=count, kept=kept, found=found)

        return await http.each(await http.brokers(str(whose.get("topic", ""))), move_at)

    async def _show_at(
        self, fields: Fields, limit: int | None, url: str, place: Fields
    ) -> AsyncIterator[AnswerPage[DeadLetterMessage]]:
        """Yield the dead letters of one broker."""
        left = limit
        following: Fields | None = place
        while following is not None and left != 0:
            count = PAGE_ITEMS if left is None else min(PAGE_ITEMS, left)
            page = await self._step(
                url, "dead_letters.show", {**fields, "limit": count}, following, _letters
            )
            if page is None:
                return
            letters = page["messages"]
            if left is not None:
                left -= len(letters)
            following = page["next"]
            yield AnswerPage(
                broker=url, items=letters, next=Position(url, following) if following else None
            )

    async def _step(
        self,
        url: str,
        method: str,
        fields: Fields,
        place: Fields,
        convert: Callable[[Any], dict[str, Any]],
    ) -> dict[str, Any] | None:
        """Make a call that visits some thousand dead letters from a place on; its ``next`` is the
        next place. None if they are gone meanwhile.
        """
        try:
            page = await self._http.call(url, method, {**fields, **place}, convert)
        except AdminNotFound:
            if not place:
                raise
            return None  # Its last dead letter is gone.
        if page.setdefault("next", None) is not None and "until_ms" in page:
            page["next"] = {**page["next"], "until_ms": page["until_ms"]}
        return page


def _whose(
    topic: str | None,
    channel: str | None,
    dead_letter_topic: str | None,
    to_topic: str | None = None,
) -> dict[str, Any]:
    """Return the fields that name the dead letters' channel, and where they go."""
    fields = {
        "topic": topic,
        "channel": channel,
        "dead_letter_topic": dead_letter_topic,
        "to_topic": to_topic,
    }
    names = {kind: name for kind, name in fields.items() if name is not None}
    for kind, name in names.items():
        check_name(name, kind)
    if bool(topic) != bool(channel):
        raise ValueError("topic and channel go together")
    return names


def _which(which: DeadLetterFilter) -> dict[str, Any]:
    """Return the fields that select some of them."""
    fields: dict[str, Any] = {name: each for name, each in which.items() if each is not None}
    for name in ("reason", "error"):
        if fields.get(name) == "":
            raise ValueError(f"{name} is empty: leave it out to select by other fields")
    return fields | ({"ids": id_texts(fields["ids"])} if "ids" in fields else {})
