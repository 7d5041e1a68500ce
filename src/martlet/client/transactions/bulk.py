"""Bulk loading: fill a transaction in blocks, for programs with messages in columns.

A block is the content of one SEND, its messages encoded already, each after its size::

    size u32 | body | size u32 | body | ...

so nothing here runs for a single message. Blocks are numbered, and sent one after the other: a
repeat after a lost connection is stored once. The process that knows all contributions commits the
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from martlet.client.transactions.session import PinnedSession
from martlet.client.transactions.transaction import Contribution, new_branch
from martlet.client.transport.identity import Features
from martlet.properties.model import NORMAL_PRIORITY
from martlet.protocol.nsq import commands


class MessageBlock(NamedTuple):
    """Messages of one topic."""

    topic: str
    message_count: int
    bodies: bytes | memoryview
    """Concatenated, each after its size, big-endian."""
    properties: bytes = b""
    """Their block (see `martlet.properties.model`), empty if none has any."""
    queue: int | None = None
    """The number of the queue; None for any."""
    times: Sequence[tuple[int, int]] = ()
    """Delivery times with the number of messages, in order; empty for now."""
    are_delays: bool = False
    """Whether the times are milliseconds from now, and not since 1970."""
    priority: int = NORMAL_PRIORITY
    """Of all messages, whose properties have it too; another than normal chooses the queue."""


class BulkLoader:
    """Add blocks to one transaction. `Producer.staging` makes it.

    Attributes:
        id: of the transaction.
        branch: the name of this process's part of the transaction.
    """

    def __init__(
        self, pinned: PinnedSession, transaction_id: str, begin: Mapping[str, Any]
    ) -> None:
        self.id = transaction_id
        self.branch = new_branch()
        self._pinned = pinned
        self._begin = begin
        self._number = 0
        self._message_count = 0

    @property
    def contribution(self) -> Contribution:
        """The contribution of this process, for the committing process."""
        return Contribution(self.branch, self._message_count)

    async def features(self) -> Features:
        """Return the connected broker's features. Raises TransactionUnclear and NotSupported."""
        return await self._pinned.features(self.id)

    async def add(self, block: MessageBlock) -> None:
        """Add a block, and return once the broker has stored it; no consumer sees it yet.

        Raises:
            TransactionRefused: the broker refused it; state ``committed`` means that this number of
            its series was committed before. TransactionUnclear: no answer within the producer's
            timeout. NotSupported: the broker is no Martlet broker.
        """
        options: dict[str, Any] = {
            "transaction": self.id,
            "branch": self.branch,
            "number": self._number,
        }
        if not self._number:
            options["begin"] = self._begin
        if block.queue is not None:
            options["queue"] = block.queue
        if block.priority != NORMAL_PRIORITY:
            options["priority"] = block.priority
        if block.times:
            options["delay_ms" if block.are_delays else "deliver_at_ms"] = block.times
        command = commands.send_laid_out(
            block.topic, block.message_count, block.bodies, options, block.properties
        )
        await self._pinned.send(self.id, command)
        self._number += 1
        self._message_count += block.message_count

    async def call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call a method of the transaction's broker that is not specific to this transaction.

        Raises TransactionRefused, TransactionUnclear and NotSupported.
        """
        return await self._pinned.ask(self.id, method, **fields)
