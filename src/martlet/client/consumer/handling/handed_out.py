"""Messages handed out one by one: touch unanswered ones, and give them back in the end.

A message that the application no longer references is not touched: nothing can answer it, so the
broker must redeliver it.
"""

from __future__ import annotations

from collections import deque
from weakref import ReferenceType, ref

from martlet.client.consumer.message import Message


class HandedOut:
    """Remember messages until they are answered.

    Args:
        limit: above this number, answered ones are removed; if too many remain, the oldest are
            forgotten, since they have timed out at the broker.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._old: deque[ReferenceType[Message]] = deque()
        """Messages that `held` has checked before: only the application keeps them."""

    def remember(self, limit: int) -> None:
        """Raise the limit, if it is lower."""
        self._limit = max(self._limit, limit)

    def add(self, message: Message) -> None:
        """Remember a message."""
        messages = self._messages
        while messages and messages[0]._answers is None:
            messages.popleft()
        messages.append(message)
        if len(messages) > self._limit:
            open_ = [each for each in messages if not each.is_answered]
            messages.clear()
            messages.extend(open_[-(self._limit // 2) - 1 :])

    @property
    def has_open(self) -> bool:
        """Return whether any is unanswered."""
        old = (old() for old in self._old)
        return any(not message.is_answered for message in (*self._messages, *old) if message)

    def held(self) -> list[Message]:
        """Return unanswered messages that the application still has."""
        waiting: list[Message] = []
        while self._messages:
            message = self._messages.popleft()
            answers = message._answers
            if answers is None:
                continue
            if answers.is_handed_out:
                self._old.append(ref(message))
            else:
                waiting.append(message)
        self._messages.extend(waiting)
        message = None  # type: ignore[assignment]  # or the last one would be held here
        found = [each for each in (old() for old in self._old) if each is not None]
        held = [each for each in found if not each.is_answered][-self._limit :]
        self._old = deque(map(ref, held))
        return held

    def give_back(self) -> None:
        """Have the brokers deliver unanswered messages to others."""
        for message in [*(old() for old in self._old), *self._messages]:
            if message is not None and not message.is_answered:
                message.give_back()
        self._old.clear()
        self._messages.clear()
