"""The call that finds messages by a key.

``topic.find`` takes a ``topic`` and a ``key``, which is one of a message's keys or its order key,
and returns the messages that have it, newest first: of those stored from ``since_ns`` on and before
``until_ns`` at most ``limit``, and ``max_bytes`` but at least one. ``next`` is where the next
request goes on, as its ``after``; it is empty once all were searched. A thread beside the broker
reads the index of keys and the log, one search at a time, for ``time_limit_ms``: an answer may have
no messages and still a ``next``.

The answer has the ``count`` of the messages, and as its bytes the frames that a consumer gets, each
message's properties before it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from martlet.broker.groups.fetch import MAX_FETCH_BYTES
from martlet.log.keys.search import END_OF_LOG, NO_END, KeyMatch, KeyQuery, KeySearch, LogPlace
from martlet.properties.block import lone_frame
from martlet.properties.model import MAX_KEY_BYTES
from martlet.server.rpc.arguments import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.topic.topic import Topic
    from martlet.server.data_folder import DataFolder
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

MAX_FOUND = 1000
DEFAULT_LIMIT_MS = 10_000
MAX_LIMIT_MS = 600_000


class FindCalls:
    """The call that finds messages by a key."""

    def __init__(self, broker: BrokerCore, folder: DataFolder) -> None:
        self._broker = broker
        self._folder = folder
        self._searching = asyncio.Lock()

    def methods(self) -> Methods:
        """The method of each name."""
        return {"topic.find": self.find}

    async def find(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Find the messages of a topic that have a key."""
        arguments.only(
            *("topic", "key", "since_ns", "until_ns"),
            *("limit", "max_bytes", "after", "time_limit_ms"),
        )
        topic = arguments.topic(self._broker)
        key = arguments.text("key", max_value=MAX_KEY_BYTES)
        if not key:
            raise CallError("BAD_ARGUMENT", "'key' is empty: say what to look for")
        since_ns, until_ns = arguments.number("since_ns", 0), arguments.number("until_ns", NO_END)
        limit = arguments.number("limit", 20, min_value=1, max_value=MAX_FOUND)
        max_bytes = arguments.number("max_bytes", 1 << 20, min_value=1, max_value=MAX_FETCH_BYTES)
        limit_ms = arguments.number(
            "time_limit_ms", DEFAULT_LIMIT_MS, min_value=1, max_value=MAX_LIMIT_MS
        )
        before = _place(arguments.text("after", ""))
        parts = {part.queue.topic: part for part in topic.parts}
        async with self._searching:
            ends_s = time.monotonic() + limit_ms / 1000
            search = KeySearch(
                self._folder.path,
                KeyQuery(key, parts.keys(), since_ns, until_ns),
                self._broker.visible_position,  # A client sees confirmed messages only.
                lambda: time.monotonic() >= ends_s,
            )
            look = partial(_look, search, before, limit, max_bytes)
            matches = await asyncio.get_running_loop().run_in_executor(None, look)
        self._folder.keys.missed(search.not_indexed)
        stored = [match for match in matches if _is_stored(parts[match.header.topic], match)]
        reached = search.reached
        return {
            "count": len(stored),
            "next": "" if reached is None else f"{reached.position}-{reached.number}",
        }, b"".join(lone_frame(match.entry) + match.frame for match in stored)


def _look(search: KeySearch, before: LogPlace, limit: int, max_bytes: int) -> list[KeyMatch]:
    """Search, in a thread."""
    matches: list[KeyMatch] = []
    left = max_bytes
    with closing(search.find(before)) as found:
        for match in found:
            left -= len(match.frame) + len(match.entry)
            if left < 0 and matches:
                search.reached = matches[-1].place
                break
            matches.append(match)
            if len(matches) == limit:
                break
    return matches


def _is_stored(part: Topic, match: KeyMatch) -> bool:
    """Whether a message is stored there: its batch was neither copied elsewhere nor removed."""
    index, offset = part.queue.index, match.offset
    row = index.find(offset)
    if offset >= part.queue.visible_end or not index.first_row <= row < index.end_row:
        return False
    return index.row(row).position == match.header.position


def _place(text: str) -> LogPlace:
    """Read where a search goes on. Raises CallError."""
    if not text:
        return END_OF_LOG
    position, _, number = text.partition("-")
    if not (position.isdecimal() and number.isdecimal() and len(text) < 40):
        raise CallError("BAD_ARGUMENT", f"'after' is no 'next' of an answer: {text[:40]!r}")
    return LogPlace(int(position), int(number))
