"""The calls of an operator about dead letters (see `martlet.schema.dead_letters`).

A call visits some thousand messages, and answers where to continue.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from martlet.broker.dead_letters.dead_letter import CHANNEL, dead_letter_topic, default_name
from martlet.broker.dead_letters.redrive import (
    DeadLetter,
    DeadLetterSelection,
    letters,
    origin_of,
    purge,
    redrive,
)
from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.queue.peek import PeekState
from martlet.broker.retry import MILLISECOND_NS
from martlet.schema.dead_letters import (
    LIST,
    PURGE,
    REDRIVE,
    SHOW,
    DeadLetterChannelCounts,
    DeadLetterMessage,
    DeadLetters,
    DeadLetterTopicCounts,
    DeadLetterTopics,
    ListDeadLetters,
    Moved,
    PurgeDeadLetters,
    RedriveDeadLetters,
    SelectedDeadLetters,
    ShowDeadLetters,
)
from martlet.server.rpc.registry import CallError, served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.topic.topic import Topic
    from martlet.server.rpc.registry import Caller, Methods

_MAX_READ = 5000
"""The maximum number of dead letters examined in one call."""
_AT_ONCE = 50
"""The number of messages read between two yields to the event loop."""
_SHOWN = 100
_MAX_SHOWN = 1000
_MAX_ANSWER_BYTES = 8 << 20


class DeadLetterCalls:
    """The calls about dead letters."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            **served(LIST, self.count),
            **served(SHOW, self.show),
            **served(REDRIVE, self.redrive),
            **served(PURGE, self.purge),
        }

    # inspecting

    async def count(self, caller: Caller, request: ListDeadLetters) -> DeadLetterTopics:
        """Count dead letters; by channel and reason for the first thousands of each topic."""
        if request.topic or request.dead_letter_topic:
            topics = [self._topic(request)]
        else:
            topics = [topic for topic in self._broker.topics.values() if CHANNEL in topic.channels]
            topics.sort(key=lambda topic: topic.name)
        return DeadLetterTopics(tuple([await _counted(topic) for topic in topics]))

    async def show(self, caller: Caller, request: ShowDeadLetters) -> DeadLetters:
        """Show dead letters, the oldest first."""
        max_count = min(request.limit or _SHOWN, _MAX_SHOWN)
        max_bytes = request.max_body_bytes
        walk = self._walk(request)
        messages: list[DeadLetterMessage] = []
        shown_bytes = 0
        async with aclosing(walk.selected()) as selected:
            async for letter in selected:
                shown_bytes += min(len(letter.body), max_bytes)
                if len(messages) == max_count or (messages and shown_bytes > _MAX_ANSWER_BYTES):
                    following = {"queue": letter.keeper.queue.number, "offset": letter.offset}
                    return DeadLetters(tuple(messages), following)
                messages.append(_message(letter, max_bytes))
        return DeadLetters(tuple(messages), walk.next)

    # changing

    async def redrive(self, caller: Caller, request: RedriveDeadLetters) -> Moved:
        """Redrive dead letters to their channels or to another topic."""
        to_name = request.to_topic or ""
        walk = self._walk(request)
        if to_name == walk.topic:
            raise CallError("BAD_ARGUMENT", f"they are in topic {to_name!r} already")
        moves: list[asyncio.Future[WritesRefused | None]] = []
        async for letter in walk.selected_at_rest():
            try:
                moves.append(self._move(letter, to_name, request.dry_run))
            except NotFound as error:
                walk.kept[str(error)] += 1
        refused = [str(why) for why in await asyncio.gather(*moves) if why is not None]
        walk.kept.update(refused)
        if not request.dry_run:
            self._broker.write_journal()
        return walk.answer(len(moves) - len(refused))

    def _move(
        self, letter: DeadLetter, to_name: str, is_dry: bool
    ) -> asyncio.Future[WritesRefused | None]:
        broker = self._broker
        end: asyncio.Future[WritesRefused | None] = asyncio.get_running_loop().create_future()
        only: Channel | None = None
        if to_name:

            def to() -> Topic:
                return broker.topic(to_name).next_queue()
        else:
            part, only = origin_of(broker, letter)

            def to() -> Topic:
                return part

        if is_dry:
            end.set_result(None)
        else:
            redrive(broker.transfers, letter, to, only, partial(_end, end))
        return end

    async def purge(self, caller: Caller, request: PurgeDeadLetters) -> Moved:
        """Delete dead letters."""
        walk = self._walk(request)
        count = 0
        async for letter in walk.selected_at_rest():
            count += 1
            if not request.dry_run:
                purge(letter)
        if not request.dry_run:
            self._broker.write_journal()
        return walk.answer(count)

    # what a request names

    def _topic(self, request: ListDeadLetters) -> Topic:
        """Return the dead-letter topic that a request names. Raises CallError."""
        broker = self._broker
        if request.dead_letter_topic:
            topic = broker.find_topic(request.dead_letter_topic)
            if CHANNEL not in topic.channels:
                raise CallError(
                    "NOT_FOUND",
                    f"topic {topic.name!r} is no dead-letter topic: it has no channel {CHANNEL!r}",
                )
            return topic
        origin, channel = request.topic or "", request.channel or ""
        try:
            name = dead_letter_topic(broker.find_topic(origin).find_channel(channel))
        except NotFound:
            name = default_name(origin, channel)
        # A message that has come round a cycle of dead-letter topics is in the default one.
        kept = broker.topics.get(name) or broker.topics.get(default_name(origin, channel))
        if kept is None or CHANNEL not in kept.channels:
            raise CallError(
                "NOT_FOUND",
                f"channel {channel!r} of topic {origin!r} has no dead letters: topic {name!r},"
                " where they would be, is not there; dead_letters.list shows all",
            )
        return kept

    def _walk(self, request: SelectedDeadLetters) -> _Walk:
        until_ms = request.until_ms
        selection = DeadLetterSelection(
            frozenset(map(str, request.ids or ())),
            request.reason or "",
            request.error or "",
            request.since_ms or 0,
            self._broker.wall() // MILLISECOND_NS if until_ms is None else until_ms,
            request.topic or "",
            request.channel or "",
        )
        keepers = [part.channels[CHANNEL] for part in self._topic(request).at_queues]
        return _Walk(keepers, request, selection)


def _end(end: asyncio.Future[WritesRefused | None], error: WritesRefused | None) -> None:
    if not end.done():  # The caller may be gone.
        end.set_result(error)


class _Walk:
    """A walk over the dead letters of a topic, from the call's start position."""

    def __init__(
        self, keepers: list[Channel], request: SelectedDeadLetters, selection: DeadLetterSelection
    ) -> None:
        last = len(keepers) - 1
        if request.queue > last:
            raise CallError(
                "BAD_ARGUMENT",
                f"'queue' must be a whole number from 0 to {last}, not {request.queue}",
            )
        self.topic = keepers[0].topic
        """The dead-letter topic."""
        self._keepers = keepers
        self._selection = selection
        self._ids: set[str] = set()
        """Those of the request that were met."""
        self.kept: Counter[str] = Counter()
        """Why letters stay, and how many."""
        self.next: dict[str, int] | None
        """Where to continue; None at the end."""
        self.next = {"queue": request.queue, "offset": request.offset}

    async def selected(self) -> AsyncGenerator[DeadLetter]:
        """Yield the selected letters, and to the event loop between batches."""
        for read_count in range(0, _MAX_READ, _AT_ONCE):
            if self.next is None:
                return
            if read_count:
                await asyncio.sleep(0)
            queue, offset = self.next["queue"], self.next["offset"]
            batch, following = letters(self._keepers[queue], offset, _AT_ONCE)
            if following is not None:
                self.next = {"queue": queue, "offset": following}
            elif queue + 1 < len(self._keepers):
                self.next = {"queue": queue + 1, "offset": 0}
            else:
                self.next = None
            for letter in batch:
                if self._selection.wants(letter):
                    yield letter

    async def selected_at_rest(self) -> AsyncGenerator[DeadLetter]:
        """Yield the selected letters that no consumer has; the others are counted as kept."""
        async for letter in self.selected():
            self._ids |= self._selection.ids_of(letter)
            if letter.state is PeekState.IN_FLIGHT:
                self.kept["a consumer has it"] += 1
            else:
                yield letter

    def answer(self, count: int) -> Moved:
        """Return what was done on the way, and where to continue."""
        return Moved(
            count=count,
            kept=self.kept,
            next=self.next,
            found_ids=tuple(sorted(self._ids)),
            until_ms=self._selection.until_ms,
        )


async def _counted(topic: Topic) -> DeadLetterTopicCounts:
    keepers = [part.channels[CHANNEL] for part in topic.at_queues]
    groups: dict[tuple[str, str], DeadLetterChannelCounts] = {}
    read_count = 0
    for keeper in keepers:
        offset: int | None = 0
        while offset is not None and read_count < _MAX_READ:
            batch, offset = letters(keeper, offset, _AT_ONCE)
            read_count += len(batch)
            for letter in batch:
                origin, at_ms = (letter.note("topic"), letter.note("channel")), letter.at_ms
                group = groups.get(origin)
                if group is None:
                    group = DeadLetterChannelCounts(*origin, 0, Counter(), at_ms, at_ms)
                    groups[origin] = group
                group.count += 1
                group.reasons[letter.note("reason") or "unknown"] += 1
                group.oldest_ms = min(group.oldest_ms, at_ms)
                group.newest_ms = max(group.newest_ms, at_ms)
            await asyncio.sleep(0)
    waiting = sum(k.depth + k.deferred_count for k in keepers)
    in_flight = sum(keeper.in_flight_count for keeper in keepers)
    return DeadLetterTopicCounts(
        topic.name, waiting + in_flight, in_flight, read_count, tuple(groups.values())
    )


def _message(letter: DeadLetter, max_bytes: int) -> DeadLetterMessage:
    properties, note = letter.properties, letter.note
    body = letter.body[:max_bytes]
    text: str | None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    return DeadLetterMessage(
        id=letter.id,
        queue=letter.keeper.queue.number,
        offset=letter.offset,
        state=letter.state,
        at_ms=letter.at_ms,
        topic=note("topic"),
        channel=note("channel"),
        message_id=note("id"),
        message_offset=note("offset"),
        stored_ms=note("stored_ms"),
        reason=note("reason") or "unknown",
        failures_text=note("failures"),
        attempts_text=note("attempts"),
        redrives_text=note("redrives"),
        first_error=note("first_error"),
        last_error=note("last_error"),
        before=note("before"),
        instead_of=note("instead_of"),
        **properties.published_json(),
        body_bytes=len(letter.body),
        body_text=text,
        body_base64=b64encode(body).decode() if text is None else None,
    )
