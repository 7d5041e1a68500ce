"""The call that finds messages by a key.

A thread beside the broker reads the index of keys and the log, one search at a time, up to the time
limit: an answer may have no messages and still a ``next``. Its bytes are the frames that a consumer
gets, each message's properties before it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from martlet.log.keys.search import END_OF_LOG, NO_END, KeyMatch, KeyQuery, KeySearch, LogPosition
from martlet.properties.block import lone_frame
from martlet.schema.messages import FIND, FindByKey, FoundByKey
from martlet.server.rpc.registry import served

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.topic.topic import Topic
    from martlet.server.data_folder import DataFolder
    from martlet.server.rpc.registry import Caller, Methods


class FindCalls:
    """The call that finds messages by a key."""

    def __init__(self, broker: BrokerCore, folder: DataFolder) -> None:
        self._broker = broker
        self._folder = folder
        self._searching = asyncio.Lock()

    def methods(self) -> Methods:
        """The method of each name."""
        return served(FIND, self.find)

    async def find(self, caller: Caller, request: FindByKey) -> tuple[FoundByKey, bytes]:
        """Find the messages of a topic that have a key."""
        topic = self._broker.find_topic(request.topic)
        until_ns = NO_END if request.until_ns is None else request.until_ns
        parts = {part.queue.topic: part for part in topic.at_queues}
        async with self._searching:
            ends_s = time.monotonic() + request.time_limit_ms / 1000
            search = KeySearch(
                self._folder.path,
                KeyQuery(request.key, parts.keys(), request.since_ns, until_ns),
                self._broker.visible_position,  # A client sees confirmed messages only.
                lambda: time.monotonic() >= ends_s,
            )
            read = partial(
                _read, search, _position(request.after), request.limit, request.max_bytes
            )
            matches = await asyncio.get_running_loop().run_in_executor(None, read)
        self._folder.keys.missed(search.not_indexed)
        stored = [match for match in matches if _is_stored(parts[match.header.topic], match)]
        reached = search.reached
        following = "" if reached is None else f"{reached.position}-{reached.number}"
        frames = b"".join(lone_frame(match.entry) + match.frame for match in stored)
        return FoundByKey(len(stored), following), frames


def _read(search: KeySearch, before: LogPosition, limit: int, max_bytes: int) -> list[KeyMatch]:
    """Search, in a thread."""
    matches: list[KeyMatch] = []
    left = max_bytes
    with closing(search.find(before)) as all_matches:
        for match in all_matches:
            left -= len(match.frame) + len(match.entry)
            if left < 0 and matches:
                search.reached = matches[-1].at
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


def _position(text: str) -> LogPosition:
    """Read where a search goes on."""
    if not text:
        return END_OF_LOG
    position, _, number = text.partition("-")
    return LogPosition(int(position), int(number))
