"""What was emptied from channels by this page, and can be put back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count

from martlet.client.admin import EmptiedChannel

MAX_UNDOS = 100
"""The maximum that is kept: the newest."""


@dataclass(frozen=True)
class Undo:
    """An empty that can be undone."""

    number: int
    """Names it in forms."""
    topic: str
    channel: str
    user: str
    """Who did it; empty for an anonymous user."""
    at_s: float
    """When, in seconds since 1970."""
    emptied: Mapping[str, EmptiedChannel]
    """What brokers answered, by URL."""

    @property
    def message_count(self) -> int:
        """The number of messages that were emptied."""
        return sum(channel.depth for channel in self.emptied.values())

    @property
    def until_s(self) -> float:
        """Until when all brokers keep them, whatever their retention, in seconds since 1970."""
        return min(channel.kept_until_ns for channel in self.emptied.values()) / 1e9


class Undos:
    """The undos that are left, in memory."""

    def __init__(self) -> None:
        self._undos: dict[int, Undo] = {}
        self._numbers = count(1)

    def add(
        self, topic: str, channel: str, user: str, emptied: Mapping[str, EmptiedChannel | None]
    ) -> Undo | None:
        """Keep what brokers answered to an empty; None if there is nothing to put back."""
        some = {url: answer for url, answer in emptied.items() if answer and answer.depth}
        if not some:
            return None
        undo = Undo(next(self._numbers), topic, channel, user, time.time(), some)
        self._undos[undo.number] = undo
        while len(self._undos) > MAX_UNDOS:
            del self._undos[min(self._undos)]
        return undo

    def of(self, topic: str, channel: str) -> list[Undo]:
        """Return those of a channel, the newest first."""
        undos = [
            undo for undo in self._undos.values() if (undo.topic, undo.channel) == (topic, channel)
        ]
        return sorted(undos, key=lambda undo: -undo.number)

    def get(self, number: int) -> Undo | None:
        """Return one by its number; None if there is none any more."""
        return self._undos.get(number)

    def remove(self, undo: Undo) -> None:
        """Forget one that is being done: two tabs must not do the same."""
        self._undos.pop(undo.number, None)

    def keep(self, undo: Undo, brokers: Iterable[str]) -> None:
        """Keep one further for those of its brokers that did not do it; none to forget it."""
        emptied = {url: undo.emptied[url] for url in brokers}
        if emptied:
            self._undos[undo.number] = replace(undo, emptied=emptied)
