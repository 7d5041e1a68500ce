"""What the broker refuses, and why."""

from __future__ import annotations

from martlet.log.commit_log import WritesRefused

__all__ = [
    "BrokerError",
    "Conflict",
    "LimitReached",
    "NameRefused",
    "NotAMember",
    "NotFound",
    "NotInFlight",
    "OutOfReach",
    "QueuesRefused",
    "TooMany",
    "WritesRefused",
]


class BrokerError(Exception):
    """The broker refuses to do that."""


class NameRefused(BrokerError):
    """No topic or channel can have that name."""


class NotFound(BrokerError):
    """There is no such topic or channel."""


class NotInFlight(BrokerError):
    """The message is not in flight to that consumer: finished, timed out, or never sent to it."""


class OutOfReach(BrokerError):
    """A channel cannot begin at that offset.

    Attributes:
        gone: whether the messages there were let go.
        queue: of which queue.
    """

    def __init__(self, text: str, *, gone: bool = False, queue: int = 0) -> None:
        super().__init__(text)
        self.gone = gone
        self.queue = queue


class LimitReached(WritesRefused):
    """Nothing new may be made: the operator has set a limit; the text names it and the way out."""


class QueuesRefused(BrokerError):
    """A topic can not have that many queues; the text says why."""


class TooMany(BrokerError):
    """A limit of the broker is reached; the text names it."""


class Conflict(BrokerError):
    """Others are there who want something else; the text says what, and the way out."""


class NotAMember(BrokerError):
    """It is no member of the group, or not any more: it may join again."""
