"""A message as any consumer receives it, and as a handler in a thread or a process gets it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from martlet.client.requests.headers import ReplyAddress
from martlet.properties.model import NONE, Properties


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message for a handler in a thread or a process.

    Attributes:
        id: 16 bytes, unique at its broker.
        timestamp_ns: the publish time, in nanoseconds since 1970.
        attempts: the number of deliveries, this one included.
        body: the published bytes.
        properties: published with the body.
    """

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    properties: Properties = NONE


class ReceivedMessage(ABC):
    """A message of any consumer.

    Attributes:
        id: 16 bytes, unique at its broker.
        timestamp_ns: the publish time, in nanoseconds since 1970.
        body: the published bytes.
    """

    __slots__ = ("_packed", "attempts", "body", "id", "timestamp_ns")

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes
    _packed: bytes

    @property
    def properties(self) -> Properties:
        """Its tag, keys, headers and other properties, published with the body."""
        return Properties.unpack(self._packed) if self._packed else NONE

    @property
    def is_request(self) -> bool:
        """Whether its producer waits for a reply."""
        return bool(self._packed) and ReplyAddress.of(self.properties) is not None

    @property
    @abstractmethod
    def is_out(self) -> bool:
        """Whether it is handed out and unanswered."""

    @abstractmethod
    def finish(self) -> None:
        """Mark it as done: it is never handled again."""

    @abstractmethod
    def give_back(self) -> None:
        """Have it handled again, without counting a failure."""

    @abstractmethod
    def view(self) -> MessageView | ReceivedMessage:
        """Return the view of it for a handler in a thread or a process."""
