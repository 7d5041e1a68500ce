"""The calls of an operator about dead letters (see `martlet.broker.dead_letters.redrive`).

========================  ==========================================================================
``dead_letters.list``     count dead letters by channel and reason, with the earliest time
``dead_letters.show``     show dead letters with all their details
``dead_letters.redrive``  move them back to the channels that they come from, or to ``to_topic``
``dead_letters.purge``    delete them
========================  ==========================================================================

Choose the dead-letter topic by the ``topic`` and ``channel`` that the messages come from, or by
``dead_letter_topic``. Select messages by ``ids``, ``reason``, ``error`` (a part of it),
``since_ms`` and ``until_ms``, none of them empty; to move or purge all of them, ``all`` must be
true. ``found`` has
those of the ``ids`` that were met. With ``dry_run`` messages are only counted. A call visits some
thousand messages and returns in ``next`` where to continue; continue with the same ``until_ms``, so
that newer dead letters are left alone.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from martlet.broker.dead_letters.dead_letter import CHANNEL, default_name
from martlet.broker.dead_letters.redrive import (
    DeadLetter,
    DeadLetterSelection,
    letters,
    origin_of,
    purge,
    redrive,
)
from martlet.broker.dead_letters.send import dead_letter_topic
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.queue.peek import PeekState
from martlet.broker.retry import MILLISECOND_NS
from martlet.server.rpc.arguments import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

_MAX_LOOKED_AT = 5000
"""The maximum number of dead letters examined in one call."""
_AT_ONCE = 50
"""The number of messages read between two yields to the event loop."""
_MAX_SHOWN = 1000
_MAX_ANSWER_BYTES = 8 << 20
_WHOSE = ("topic", "channel", "dead_letter_topic")
_WHICH = ("ids", "reason", "error", "since_ms", "until_ms")
_PAGE = ("queue", "offset")


class DeadLetterCalls:
    """The calls about dead letters."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "dead_letters.list": self.count,
            "dead_letters.show": self.show,
            "dead_letters.redrive": self.redrive,
            "dead_letters.purge": self.purge,
        }

    # inspecting

    async def count(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Count dead letters; by channel and reason for the first thousands of each topic."""
        arguments.only(*_WHOSE)
        named = bool(arguments.text("topic", "") or arguments.text("dead_letter_topic", ""))
        if named:
            self._keepers(arguments)
        topics = [self._topic(arguments)] if named else self._broker.topics.values()
        return {"dead_letter_topics": [await _counted(topic) for topic in _tended(topics)]}

    async def show(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Show dead letters, the oldest first."""
        arguments.only(*_WHOSE, *_WHICH, *_PAGE, "limit", "max_body_bytes")
        max_count = arguments.number("limit", 100, min_value=1, max_value=_MAX_SHOWN)
        max_bytes = arguments.number("max_body_bytes", 1024, max_value=_MAX_ANSWER_BYTES)
        walk = _Walk(self._keepers(arguments), arguments)
        selection, _ = self._selection(arguments)
        messages: list[dict[str, Any]] = []
        shown_bytes = 0
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
                shown_bytes += min(len(letter.body), max_bytes)
                if len(messages) == max_count or (messages and shown_bytes > _MAX_ANSWER_BYTES):
                    following = {"queue": letter.keeper.queue.number, "offset": letter.offset}
                    return {"messages": messages, "next": following}
                messages.append(_to_json(letter, max_bytes))
        return {"messages": messages, "next": walk.next}

    # changing

    async def redrive(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Redrive dead letters to their channels or to another topic."""
        arguments.only(*_WHOSE, *_WHICH, *_PAGE, "all", "dry_run", "to_topic")
        to_name = arguments.name("to_topic") if "to_topic" in arguments else ""
        walk = _Walk(self._keepers(arguments), arguments)
        if to_name == walk.topic:
            raise CallError("BAD_ARGUMENT", f"they are in topic {to_name!r} already")
        selection, is_dry = self._selection(arguments, to_act=True)
        moves: list[asyncio.Future[WritesRefused | None]] = []
        kept: Counter[str] = Counter()
        found: set[str] = set()
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
                found |= selection.ids_of(letter)
                if letter.state is PeekState.IN_FLIGHT:
                    kept["a consumer has it"] += 1
                    continue
                try:
                    end = self._move(letter, to_name, is_dry)
                except NotFound as error:
                    kept[str(error)] += 1
                    continue
                moves.append(end)
        refused = [str(why) for why in await asyncio.gather(*moves) if why is not None]
        kept.update(refused)
        if not is_dry:
            self._broker.write_journal()
        count = len(moves) - len(refused)
        return {"count": count, "kept": kept, "found": sorted(found), **walk.to_json(selection)}

    def _move(
        self, letter: DeadLetter, to_name: str, is_dry: bool
    ) -> asyncio.Future[WritesRefused | None]:
        broker = self._broker
        end: asyncio.Future[WritesRefused | None] = asyncio.get_running_loop().create_future()
        only: Channel | None = None
        if to_name:

            def to() -> Topic:
                return broker.topic(to_name).next_part()
        else:
            part, only = origin_of(broker, letter)

            def to() -> Topic:
                return part

        if is_dry:
            end.set_result(None)
        else:
            redrive(broker.transfers, letter, to, only, partial(_end, end))
        return end

    async def purge(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Delete dead letters."""
        arguments.only(*_WHOSE, *_WHICH, *_PAGE, "all", "dry_run")
        walk = _Walk(self._keepers(arguments), arguments)
        selection, is_dry = self._selection(arguments, to_act=True)
        count = 0
        kept: Counter[str] = Counter()
        found: set[str] = set()
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
                found |= selection.ids_of(letter)
                if letter.state is PeekState.IN_FLIGHT:
                    kept["a consumer has it"] += 1
                    continue
                count += 1
                if not is_dry:
                    purge(letter)
        if not is_dry:
            self._broker.write_journal()
        return {"count": count, "kept": kept, "found": sorted(found), **walk.to_json(selection)}

    # arguments

    def _topic(self, arguments: CallArguments) -> Topic:
        """Return the dead-letter topic that a call names."""
        broker = self._broker
        if "dead_letter_topic" in arguments:
            return arguments.topic(broker, "dead_letter_topic")
        topic, channel = arguments.name("topic"), arguments.name("channel")
        try:
            name = dead_letter_topic(broker.find_topic(topic).find_channel(channel))
        except NotFound:
            name = default_name(topic, channel)
        # A message that has come round a cycle of dead-letter topics is in the default one.
        found = broker.topics.get(name) or broker.topics.get(default_name(topic, channel))
        if found is None or CHANNEL not in found.channels:
            raise CallError(
                "NOT_FOUND",
                f"channel {channel!r} of topic {topic!r} has no dead letters: topic {name!r}, where"
                " they would be, is not there; dead_letters.list shows all",
            )
        return found

    def _keepers(self, arguments: CallArguments) -> list[Channel]:
        topic = self._topic(arguments)
        try:
            topic.find_channel(CHANNEL)
        except NotFound:
            raise CallError(
                "NOT_FOUND",
                f"topic {topic.name!r} is no dead-letter topic: it has no channel {CHANNEL!r}",
            ) from None
        return [part.channels[CHANNEL] for part in topic.parts]

    def _selection(
        self, arguments: CallArguments, to_act: bool = False
    ) -> tuple[DeadLetterSelection, bool]:
        """Return the selection of dead letters, and whether it is a dry run."""
        is_dry = to_act and arguments.flag("dry_run")
        arguments.selecting(*_WHOSE)
        chosen = arguments.selecting(*_WHICH)
        since_ms = arguments.number("since_ms", 0)
        if chosen == ["since_ms"] and not since_ms:
            chosen = []  # 1970 leaves nothing out.
        if to_act and not (arguments.flag("all") or chosen):
            raise CallError(
                "MISSING_ARGUMENT",
                f"select some by any of {', '.join(_WHICH)}, or set 'all' to true",
            )
        ids = arguments.ids("ids") if "ids" in arguments else ()
        now_ms = self._broker.wall() // MILLISECOND_NS
        return DeadLetterSelection(
            frozenset(ids),
            arguments.text("reason", ""),
            arguments.text("error", ""),
            since_ms,
            arguments.number("until_ms", now_ms),
            arguments.text("topic", ""),
            arguments.text("channel", ""),
        ), is_dry


def _end(end: asyncio.Future[WritesRefused | None], error: WritesRefused | None) -> None:
    if not end.done():  # The caller may be gone.
        end.set_result(error)


class _Walk:
    """Iterate over the dead letters of a topic in batches, from the call's start position.

    Attributes:
        topic: the dead-letter topic.
        next: where to continue; None at the end.
    """

    def __init__(self, keepers: list[Channel], arguments: CallArguments) -> None:
        self.topic = keepers[0].topic
        self._keepers = keepers
        self._looked_at = 0
        queue = arguments.number("queue", 0, max_value=len(keepers) - 1)
        self.next: dict[str, int] | None
        self.next = {"queue": queue, "offset": arguments.number("offset", 0)}

    def __aiter__(self) -> _Walk:
        return self

    async def __anext__(self) -> list[DeadLetter]:
        """Return the next batch. Work on it before the next await is atomic."""
        if self._looked_at:
            await asyncio.sleep(0)
        if self.next is None or self._looked_at >= _MAX_LOOKED_AT:
            raise StopAsyncIteration
        queue, offset = self.next["queue"], self.next["offset"]
        found, following = letters(self._keepers[queue], offset, _AT_ONCE)
        self._looked_at += _AT_ONCE
        if following is not None:
            self.next = {"queue": queue, "offset": following}
        elif queue + 1 < len(self._keepers):
            self.next = {"queue": queue + 1, "offset": 0}
        else:
            self.next = None
        return found

    def to_json(self, selection: DeadLetterSelection) -> dict[str, object]:
        """Return how to continue."""
        return {"next": self.next, "until_ms": selection.until_ms}


def _tended(topics: Any) -> list[Topic]:
    """Return those topics that are dead-letter topics."""
    return sorted((t for t in topics if CHANNEL in t.channels), key=lambda topic: topic.name)


async def _counted(topic: Topic) -> dict[str, Any]:
    keepers = [part.channels[CHANNEL] for part in topic.parts]
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    looked_at = 0
    for keeper in keepers:
        offset: int | None = 0
        while offset is not None and looked_at < _MAX_LOOKED_AT:
            found, offset = letters(keeper, offset, _AT_ONCE)
            looked_at += len(found)
            for letter in found:
                origin = letter.note("topic"), letter.note("channel")
                group = groups.setdefault(
                    origin,
                    {
                        "topic": origin[0],
                        "channel": origin[1],
                        "count": 0,
                        "reasons": Counter(),
                        "oldest_ms": letter.at_ms,
                        "newest_ms": letter.at_ms,
                    },
                )
                group["count"] += 1
                group["reasons"][letter.note("reason") or "unknown"] += 1
                group["oldest_ms"] = min(group["oldest_ms"], letter.at_ms)
                group["newest_ms"] = max(group["newest_ms"], letter.at_ms)
            await asyncio.sleep(0)
    waiting = sum(k.depth + k.deferred_count for k in keepers)
    return {
        "dead_letter_topic": topic.name,
        "count": waiting + sum(keeper.in_flight_count for keeper in keepers),
        "in_flight_count": sum(keeper.in_flight_count for keeper in keepers),
        "looked_at": looked_at,
        "channels": list(groups.values()),
    }


def _to_json(letter: DeadLetter, max_bytes: int) -> dict[str, Any]:
    properties = letter.properties
    body = letter.body[:max_bytes]
    fields: dict[str, Any] = {
        "id": letter.id,
        "queue": letter.keeper.queue.number,
        "offset": letter.offset,
        "state": letter.state,
        "at_ms": letter.at_ms,
        **{
            name.removeprefix("dead_"): value
            for name, value in properties.system.items()
            if name.startswith("dead_") and name not in ("dead_id", "dead_at_ms")
        },
        "message_id": letter.note("id"),
        "tag": properties.tag,
        "keys": list(properties.keys),
        "order_key": properties.order_key,
        "headers": dict(properties.headers),
        "body_bytes": len(letter.body),
        "body": None,
    }
    # The dead letter's own position, not that of the original message.
    fields["offset"], fields["queue"] = letter.offset, letter.keeper.queue.number
    fields["message_offset"] = letter.note("offset")
    try:
        fields["body"] = body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = b64encode(body).decode()
    return fields
