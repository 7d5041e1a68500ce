"""What a client is owed: the answers that wait, in the order of its commands.

A publish is answered once its batch is written, or flushed; whatever else was asked behind it is
answered behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.protocol.nsq import v2


class DeferredReply(ABC):
    """An answer that tells more than OK.

    Args:
        waits: whether it is given when its messages are durable, where PUB's is; or as soon as
            they are written.
    """

    __slots__ = ("waits",)

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @abstractmethod
    def stored(self) -> bytes:
        """The frame for messages that were stored."""

    @abstractmethod
    def refused(self, error: WritesRefused) -> bytes:
        """The frame for those that were not; the connection goes on."""


Answer = tuple[Receipt | None, str, int | bytes | DeferredReply]
"""Of a publish its receipt, its verb and how many OKs it gets, or what else is promised; of
anything else the bytes that wait.
"""


class PendingReplies(deque[Answer]):
    """The answers of one connection, the oldest first."""

    def fail(self, error: WritesRefused) -> None:
        """What was not made durable never will be."""
        for receipt, _, _ in self:
            if receipt is not None and receipt.error is None:
                receipt.error = error

    def take(self, durable_position: int | None) -> tuple[bytes, bool]:
        """The answers that may be sent now, and whether the connection is to be closed.

        Args:
            durable_position: up to where the log is durable; None where to be written is enough.
        """
        parts: list[bytes] = []
        reached = float("inf") if durable_position is None else durable_position
        while self:
            receipt, verb, told = self[0]
            if receipt is None:
                assert isinstance(told, bytes)
                parts.append(told)
            elif receipt.error is not None:
                if isinstance(told, DeferredReply):
                    parts.append(told.refused(receipt.error))
                    self.popleft()
                    continue
                text = f"{verb} failed {receipt.error}"
                parts.append(v2.ProtocolError(f"E_{verb}_FAILED", text).frame())
                self.clear()
                return b"".join(parts), True
            elif isinstance(told, int):
                if not receipt.position or receipt.position > reached:
                    break
                parts.append(v2.OK * told if told > 1 else v2.OK)
            else:
                assert isinstance(told, DeferredReply)
                if not receipt.position or (told.waits and receipt.position > reached):
                    break
                parts.append(told.stored())
            self.popleft()
        return parts[0] if len(parts) == 1 else b"".join(parts), False
