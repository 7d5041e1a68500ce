"""The reply queue: the due answers of a client, in the order of its commands.

A publish is answered once its batch is written, or flushed; later commands are answered after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.protocol.nsq import v2


class DeferredReply(ABC):
    """An answer that says more than OK.

    Args:
        waits: whether it waits for a flush if a PUB's answer would, and not only for the write.
    """

    __slots__ = ("waits",)

    def __init__(self, waits: bool) -> None:
        self.waits = waits

    @abstractmethod
    def stored(self) -> bytes:
        """Return the answer once the messages are stored."""

    @abstractmethod
    def refused(self, error: WritesRefused) -> bytes:
        """Return the answer if they are refused; the connection stays open."""


Answer = tuple[Receipt | None, str, int | bytes | DeferredReply]
"""A due answer: of a publish its receipt, its verb and the number of OKs or another reply; of any
other command the bytes, with a receipt and the verb where those behind it wait for a change.
"""


class PendingReplies(deque[Answer]):
    """The answers of one connection, the oldest first."""

    def fail(self, error: WritesRefused) -> None:
        """Refuse all publishes that are not durable, since they never will be."""
        for receipt, _, _ in self:
            if receipt is not None and receipt.error is None:
                receipt.error = error

    def take(self, durable_position: int | None) -> tuple[bytes, bool]:
        """Take the answers that may be sent now. Returns them, and whether the connection must
        close.

        Args:
            durable_position: the position up to which the log is durable; None if answers need no
                flush.
        """
        parts: list[bytes] = []
        reached = float("inf") if durable_position is None else durable_position
        while self:
            receipt, verb, reply = self[0]
            if receipt is None:
                assert isinstance(reply, bytes)
                parts.append(reply)
            elif receipt.error is not None:
                if isinstance(reply, DeferredReply):
                    parts.append(reply.refused(receipt.error))
                    self.popleft()
                    continue
                text = f"{verb} failed {receipt.error}"
                parts.append(v2.ProtocolError(f"E_{verb}_FAILED", text).frame())
                self.clear()
                return b"".join(parts), True
            elif isinstance(reply, (int, bytes)):
                if not receipt.position or receipt.position > reached:
                    break
                parts.append(v2.OK * reply if isinstance(reply, int) else reply)
            else:
                if not receipt.position or (reply.waits and receipt.position > reached):
                    break
                parts.append(reply.stored())
            self.popleft()
        return parts[0] if len(parts) == 1 else b"".join(parts), False
