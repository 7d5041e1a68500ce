"""The reply queue: the due answers of a client, in the order of its commands.

A publish is answered once its batch is written, or flushed; later commands are answered after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt
from martlet.protocol.nsq import v2
from martlet.server.nsq.command_input import ANSWER, WAIT, Outcome

if TYPE_CHECKING:
    from martlet.server.group_commit import GroupCommit
    from martlet.server.nsq.output_queue import OutputQueue


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


class ReplyQueue:
    """The due answers of one client.

    Args:
        on_answered: called when no answer is due any more, with whether the last one was a refusal
            that ends the connection.
        on_error: called with an unforeseen error: some answer cannot be given.
    """

    def __init__(
        self,
        output: OutputQueue,
        commits: GroupCommit,
        on_answered: Callable[[bool], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._output = output
        self._commits = commits
        self._on_answered = on_answered
        self._on_error = on_error
        self.due: deque[Answer] = deque()
        """The answers, the oldest first."""
        self.is_closed = False
        """Whether the client has disconnected."""
        self.settles = False
        """Whether the next command waits until a change is answered."""

    def reply(self, data: bytes) -> None:
        """Send an answer, after all that are due before it."""
        if self.due:
            self.due.append((None, "", data))
        else:
            self._output.send(data)

    def promise(self, receipt: Receipt, verb: str, reply: int | DeferredReply) -> None:
        """Answer a publish, with a number of OKs or with a reply of its own, when the flush mode's
        promise holds for its receipt. An error names the verb.
        """
        self.due.append((receipt, verb, reply))
        self._commits.stage(self)

    def promise_flushed(self, position: int) -> None:
        """Answer a PUB that is stored once the log is durable up to a position."""
        receipt = Receipt()
        receipt.position = position
        self.promise(receipt, "PUB", 1)

    def settle_change(self, verb: str, handle: Callable[[], Outcome]) -> Outcome:
        """Handle a command that may change topics or channels. Its answers, and the next commands,
        wait until the flush mode's promise holds for all such changes. An error names the verb.
        """
        if self.due:
            return WAIT  # A message must not overtake an answer that waits behind earlier ones.
        receipt = Receipt()
        self.due.append((receipt, verb, b""))
        try:
            outcome = handle()
        except BaseException:
            self.due.clear()
            raise
        if outcome is not None:
            self.due.clear()
            return outcome
        receipt.position = self._commits.changed_position
        self.settles = not self._commits.covers(receipt.position)
        if self.settles:
            self._commits.stage(self)
            return ANSWER
        self.settle(self._commits.durable_position)
        return None

    def fail(self, error: WritesRefused) -> None:
        """Refuse all publishes that are not durable, since they never will be."""
        for receipt, _, _ in self.due:
            if receipt is not None and receipt.error is None:
                receipt.error = error

    def settle(self, durable_position: int | None) -> bool:
        """Send the answers that are due: of committed publishes that are durable up to a position,
        or of all written ones for None. Returns whether any is left.
        """
        try:
            data, is_refused = self._take(durable_position)
            if data:
                self._output.send(data)
            if not self.due:
                self.settles = False
                self._on_answered(is_refused)
        except Exception as error:  # The other connections must get their answers all the same.
            self._on_error(error)
            return False
        return bool(self.due)

    def close(self) -> None:
        """Drop all answers, as the client has disconnected."""
        self.is_closed = True
        self.due.clear()
        self._commits.forget(self)

    def _take(self, durable_position: int | None) -> tuple[bytes, bool]:
        """Take the answers that may be sent now, and whether a refusal ends the connection."""
        due = self.due
        parts: list[bytes] = []
        reached = float("inf") if durable_position is None else durable_position
        while due:
            receipt, verb, reply = due[0]
            if receipt is None:
                assert isinstance(reply, bytes)
                parts.append(reply)
            elif receipt.error is not None:
                if isinstance(reply, DeferredReply):
                    parts.append(reply.refused(receipt.error))
                    due.popleft()
                    continue
                text = f"{verb} failed {receipt.error}"
                parts.append(v2.ProtocolError(f"E_{verb}_FAILED", text).frame())
                due.clear()
                return b"".join(parts), True
            elif isinstance(reply, (int, bytes)):
                if not receipt.position or receipt.position > reached:
                    break
                parts.append(v2.OK * reply if isinstance(reply, int) else reply)
            else:
                if not receipt.position or (reply.waits and receipt.position > reached):
                    break
                parts.append(reply.stored())
            due.popleft()
        return parts[0] if len(parts) == 1 else b"".join(parts), False
