"""Limits of a producer: of one command, of messages in flight, and of unanswered messages."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.protocol.nsq import commands

COMMAND_BYTES = 512 * 1024
"""Smaller than a broker's limit, so that it stores one piece while the next is in transit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one command and of messages in flight.

    Attributes:
        max_message_bytes: the broker's ``--max-msg-size``.
        max_body_bytes: the broker's ``--max-body-size``, the limit of a command of several
            messages.
        max_in_flight_messages, max_in_flight_bytes: sent to one broker and not answered.
        max_pending_messages, max_pending_bytes: published and not answered, sent or not, above
            which ``submit`` raises; ``publish`` waits for its answer and needs no such limit.
        max_waiting_requests: requests without a reply, above which ``request`` raises.
    """

    max_message_bytes: int = 1024 * 1024
    max_body_bytes: int = 5 * 1024 * 1024
    max_in_flight_messages: int = 100_000
    max_in_flight_bytes: int = 32 * 1024 * 1024
    max_pending_messages: int = 200_000
    max_pending_bytes: int = 64 * 1024 * 1024
    max_waiting_requests: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def command_bytes(self) -> int:
        """The maximum size of one command."""
        return min(self.max_body_bytes - commands.MPUB_EXTRA_BYTES, COMMAND_BYTES)
