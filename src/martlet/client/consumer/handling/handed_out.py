"""Messages that were handed out one by one: those not answered are touched, and given back at last.

A message that the application no longer has is not touched: it cannot be answered, so the broker
must deliver it again.
"""

from __future__ import annotations

from collections import deque
from weakref import ReferenceType, ref

from martlet.client.consumer.message import Message


class HandedOut:
    """Remembers messages until they are answered.

    Args:
        limit: above so many, those that are answered are removed; what is still too many then is
            forgotten, the oldest first, since its time at the broker has run out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()
        self._old: deque[ReferenceType[Message]] = deque()
        """Those that `held` has looked at before: the application alone keeps them."""

    def remember(self, limit: int) -> None:
        """Remember so many from now on, or as many as before where that is more."""
        self._limit = max(self._limit, limit)

    def add(self, message: Message) -> None:
        """Remember a message that is handed out."""
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
        """Whether any is not answered."""
        old = (old() for old in self._old)
        return any(not message.is_answered for message in (*self._messages, *old) if message)

    def held(self) -> list[Message]:
        """What is not answered and the application still has."""
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
        """Have the brokers deliver what is not answered to others."""
        for message in [*(old() for old in self._old), *self._messages]:
            if message is not None and not message.is_answered:
                message.give_back()
        self._old.clear()
        self._messages.clear()
