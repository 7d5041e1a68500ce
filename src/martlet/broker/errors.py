"""The errors of requests that the broker refuses."""

from __future__ import annotations

from martlet.log import commit_log

WritesRefused = commit_log.WritesRefused


class BrokerError(Exception):
    """The broker refuses the request."""


class NameRefused(BrokerError):
    """The name is not valid for a topic or channel."""


class NotFound(BrokerError):
    """The topic or channel does not exist."""


class NotInFlight(BrokerError):
    """The message is not in flight to that consumer: finished, timed out, or never sent to it."""


class OutOfReach(BrokerError):
    """A channel cannot start at that offset of a queue."""

    def __init__(self, text: str, *, gone: bool = False, queue: int = 0) -> None:
        super().__init__(text)
        self.gone = gone
        """Whether the messages there were deleted."""
        self.queue = queue


class LimitReached(WritesRefused):
    """A limit set by the operator is reached; the text names it and the remedy."""


class QueuesRefused(BrokerError):
    """A topic cannot have that many queues; the text says why."""


class TooMany(BrokerError):
    """A limit of the broker is reached; the text names it."""


class Conflict(BrokerError):
    """Other consumers have conflicting settings; the text names them, and the remedy."""


class NotAMember(BrokerError):
    """The caller is not, or no longer, a member of the group; it may join again."""
