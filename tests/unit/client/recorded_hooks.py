"""Hooks that write down what they are called with."""

from __future__ import annotations

from typing import Any

from martlet.client import Hooks
from martlet.client.hooks import Handling, Publishing, Requesting


class RecordedHooks:
    """The calls of a client's hooks, in order: the hook's name, and its arguments made plain."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def hooks(self) -> Hooks:
        def write(name: str) -> Any:
            return lambda *given: self.calls.append((name, *map(self._plain, given)))

        return Hooks(**{name: write(name) for name in Hooks.__dataclass_fields__})

    def _plain(self, given: object) -> object:
        if isinstance(given, Publishing):
            assert given.age_s() >= 0
            return given.topic, given.message_count, given.size_bytes
        if isinstance(given, Requesting):
            return given.topic, given.size_bytes, given.reply and given.reply.body
        if isinstance(given, Handling):
            return given.topic, given.channel, given.message.body, given.message.attempts
        return type(given) if isinstance(given, BaseException) else given

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        return [each for each in self.calls if each[0] in names]

    def sum(self, name: str) -> int:
        return sum(each[2] for each in self.of(name))
