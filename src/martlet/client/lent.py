"""Messages that were handed out one by one, so that those not answered can be given back."""

from __future__ import annotations

from collections import deque

from martlet.client.message import Message


class Lent:
    """Remembers messages until they are answered.

    Args:
        limit: of so many, those that are answered are sought out; what is still too much then is
            forgotten, the oldest first, since its time at the broker has run out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[Message] = deque()

    def remember(self, limit: int) -> None:
        """Remember so many from now on, or as many as before where that is more."""
        self._limit = max(self._limit, limit)

    def add(self, message: Message) -> None:
        """This is handed out."""
        messages = self._messages
        while messages and messages[0]._answers is None:
            messages.popleft()
        messages.append(message)
        if len(messages) > self._limit:
            open_ = [each for each in messages if not each.is_answered]
            messages.clear()
            messages.extend(open_[-(self._limit // 2) - 1 :])

    def give_back(self) -> None:
        """Have the brokers deliver what is not answered to others."""
        for message in self._messages:
            if not message.is_answered:
                message.give_back()
        self._messages.clear()
