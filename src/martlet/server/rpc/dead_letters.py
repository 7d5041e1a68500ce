"""The calls of an operator about dead letters (see `martlet.schema.dead_letters`).

A call visits some thousand messages, and answers where to continue.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
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
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.served import served

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        topics = _tended(self._broker.topics.values())
        if request.topic or request.dead_letter_topic:
            topics = [self._topic(request)]
        return DeadLetterTopics(tuple([await _counted(topic) for topic in topics]))

    async def show(self, caller: Caller, request: ShowDeadLetters) -> DeadLetters:
        """Show dead letters, the oldest first."""
        max_count = min(request.limit or _SHOWN, _MAX_SHOWN)
        max_bytes = request.max_body_bytes
        walk = _Walk(self._keepers(request), request)
        selection = self._selection(request)
        messages: list[DeadLetterMessage] = []
        shown_bytes = 0
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
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
        walk = _Walk(self._keepers(request), request)
        if to_name == walk.topic:
            raise CallError("BAD_ARGUMENT", f"they are in topic {to_name!r} already")
        selection = self._selection(request)
        moves: list[asyncio.Future[WritesRefused | None]] = []
        kept: Counter[str] = Counter()
        met: set[str] = set()
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
                met |= selection.ids_of(letter)
                if letter.state is PeekState.IN_FLIGHT:
                    kept["a consumer has it"] += 1
                    continue
                try:
                    end = self._move(letter, to_name, request.dry_run)
                except NotFound as error:
                    kept[str(error)] += 1
                    continue
                moves.append(end)
        refused = [str(why) for why in await asyncio.gather(*moves) if why is not None]
        kept.update(refused)
        if not request.dry_run:
            self._broker.write_journal()
        return walk.answer(selection, len(moves) - len(refused), kept, met)

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
        walk = _Walk(self._keepers(request), request)
        selection = self._selection(request)
        count = 0
        kept: Counter[str] = Counter()
        met: set[str] = set()
        async for page in walk:
            for letter in page:
                if not selection.wants(letter):
                    continue
                met |= selection.ids_of(letter)
                if letter.state is PeekState.IN_FLIGHT:
                    kept["a consumer has it"] += 1
                    continue
                count += 1
                if not request.dry_run:
                    purge(letter)
        if not request.dry_run:
            self._broker.write_journal()
        return walk.answer(selection, count, kept, met)

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

    def _keepers(self, request: ListDeadLetters) -> list[Channel]:
        return [part.channels[CHANNEL] for part in self._topic(request).at_queues]

    def _selection(self, request: SelectedDeadLetters) -> DeadLetterSelection:
        until_ms = request.until_ms
        return DeadLetterSelection(
            frozenset(map(str, request.ids or ())),
            request.reason or "",
            request.error or "",
            request.since_ms or 0,
            self._broker.wall() // MILLISECOND_NS if until_ms is None else until_ms,
            request.topic or "",
            request.channel or "",
        )


def _end(end: asyncio.Future[WritesRefused | None], error: WritesRefused | None) -> None:
    if not end.done():  # The caller may be gone.
        end.set_result(error)


class _Walk:
    """Iterate over the dead letters of a topic in batches, from the call's start position.

    Attributes:
        topic: the dead-letter topic.
        next: where to continue; None at the end.
    """

    def __init__(self, keepers: list[Channel], request: SelectedDeadLetters) -> None:
        last = len(keepers) - 1
        if request.queue > last:
            raise CallError(
                "BAD_ARGUMENT",
                f"'queue' must be a whole number from 0 to {last}, not {request.queue}",
            )
        self.topic = keepers[0].topic
        self._keepers = keepers
        self._looked_at = 0
        self.next: dict[str, int] | None
        self.next = {"queue": request.queue, "offset": request.offset}

    def __aiter__(self) -> _Walk:
        return self

    async def __anext__(self) -> list[DeadLetter]:
        """Return the next batch. Work on it before the next await is atomic."""
        if self._looked_at:
            await asyncio.sleep(0)
        if self.next is None or self._looked_at >= _MAX_READ:
            raise StopAsyncIteration
        queue, offset = self.next["queue"], self.next["offset"]
        batch, following = letters(self._keepers[queue], offset, _AT_ONCE)
        self._looked_at += _AT_ONCE
        if following is not None:
            self.next = {"queue": queue, "offset": following}
        elif queue + 1 < len(self._keepers):
            self.next = {"queue": queue + 1, "offset": 0}
        else:
            self.next = None
        return batch

    def answer(
        self, selection: DeadLetterSelection, count: int, kept: Counter[str], met: set[str]
    ) -> Moved:
        """Return what was done on the way, and where to continue."""
        return Moved(
            count=count,
            kept=kept,
            next=self.next,
            found_ids=tuple(sorted(met)),
            until_ms=selection.until_ms,
        )


def _tended(topics: Iterable[Topic]) -> list[Topic]:
    """Return those topics that are dead-letter topics."""
    return sorted((t for t in topics if CHANNEL in t.channels), key=lambda topic: topic.name)


async def _counted(topic: Topic) -> DeadLetterTopicCounts:
    keepers = [part.channels[CHANNEL] for part in topic.at_queues]
    groups: dict[tuple[str, str], DeadLetterChannelCounts] = {}
    looked_at = 0
    for keeper in keepers:
        offset: int | None = 0
        while offset is not None and looked_at < _MAX_READ:
            batch, offset = letters(keeper, offset, _AT_ONCE)
            looked_at += len(batch)
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
        topic.name, waiting + in_flight, in_flight, looked_at, tuple(groups.values())
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
        tag=properties.tag,
        keys=properties.keys,
        order_key=properties.order_key,
        headers=dict(properties.headers),
        body_bytes=len(letter.body),
        body_text=text,
        body_base64=b64encode(body).decode() if text is None else None,
    )
