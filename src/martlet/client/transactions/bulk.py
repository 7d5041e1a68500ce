"""Bulk loading: a transaction is filled by the block, for programs with messages in columns.

A block is what goes in one SEND, its messages encoded already, each behind its size::

    size u32 | body | size u32 | body | ...

so nothing is done here for a single message.  Blocks are numbered, and go one after the other: one
that is sent again after a lost connection is stored once.  The transaction is committed apart, by
the process that knows what all have added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from martlet.client.transactions.transaction import Contribution, new_branch
from martlet.protocol.nsq import commands

if TYPE_CHECKING:
    from martlet.client.transactions.session import PinnedSession
    from martlet.client.transport.identity import Features


class MessageBlock(NamedTuple):
    """Messages of one topic.

    Attributes:
        topic: their topic.
        message_count: how many.
        bodies: one behind the other, each behind its size, big-endian.
        properties: their block (see `martlet.properties.model`), empty where none has any.
        queue: the number of the queue; None for any.
        times: when they are to be delivered, and how many then, in order; nothing for at once.
        are_delays: whether the times are milliseconds from now on, and not since 1970.
    """

    topic: str
    message_count: int
    bodies: bytes | memoryview
    properties: bytes = b""
    queue: int | None = None
    times: Sequence[tuple[int, int]] = ()
    are_delays: bool = False


class BulkLoader:
    """Adds blocks to one transaction. `Producer.staging` makes it.

    Attributes:
        id: of the transaction.
        branch: the name of what is added here in the transaction.
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
        """What was added here, as the process that commits the transaction needs it."""
        return Contribution(self.branch, self._message_count)

    async def features(self) -> Features:
        """Return the broker's features, once it is connected.

        Raises TransactionUnclear and NotSupported.
        """
        return await self._pinned.features(self.id)

    async def add(self, block: MessageBlock) -> None:
        """Add a block, and return once the broker has stored it; no consumer sees it yet.

        Raises:
            TransactionRefused: the broker did not take it; where its state is ``committed``, this
                number of its series was.
            TransactionUnclear: no answer within the producer's timeout.
            NotSupported: the broker is no Martlet broker.
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
        if block.times:
            options["delay_ms" if block.are_delays else "deliver_at_ms"] = block.times
        command = commands.send_laid_out(
            block.topic, block.message_count, block.bodies, options, block.properties
        )
        await self._pinned.send(self.id, command)
        self._number += 1
        self._message_count += block.message_count

    async def call(self, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call a method of the transaction's broker that is not of this transaction alone.

        Raises TransactionRefused, TransactionUnclear and NotSupported.
        """
        return await self._pinned.ask(self.id, method, **fields)
