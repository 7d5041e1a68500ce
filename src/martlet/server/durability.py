"""When what was changed is as safe as a publish that is answered OK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.queue.queue_log import Receipt

if TYPE_CHECKING:
    from martlet.server.server import Server


async def on_disk(server: Server) -> None:
    """Return when all that was changed until now survives a power cut, whatever the flush mode is.

    Raises:
        WritesRefused: it may not.
    """
    log = server.broker.log
    position = log.position
    while log.durable_position < position:
        if log.failed is not None:
            raise WritesRefused(log.failed)
        await server.disk.flushed()


async def written_down(server: Server) -> None:
    """Return when the flush mode's promise holds for all that was changed until now.

    Raises:
        WritesRefused: it never will.
    """
    receipt = Receipt()
    receipt.position = server.broker.log.position
    await server.settled(receipt)
