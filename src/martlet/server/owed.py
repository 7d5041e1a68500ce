"""What a client is owed: the answers that wait, in the order of its commands.

A publish is answered once its batch is written, or flushed; whatever else was asked behind it is
answered behind it.
"""

from __future__ import annotations

from collections import deque

from martlet.broker.errors import WritesRefused
from martlet.broker.queue import Receipt
from martlet.protocol import nsq_v2 as v2

Answer = tuple[Receipt | None, str, int | bytes]
"""Of a publish its receipt, its verb and how many OKs it gets; else the bytes that wait."""


class Owed(deque[Answer]):
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
                text = f"{verb} failed {receipt.error}"
                parts.append(v2.ProtocolError(f"E_{verb}_FAILED", text).frame())
                self.clear()
                return b"".join(parts), True
            elif not receipt.position or receipt.position > reached:
                break
            else:
                assert isinstance(told, int)
                parts.append(v2.OK * told if told > 1 else v2.OK)
            self.popleft()
        return parts[0] if len(parts) == 1 else b"".join(parts), False
