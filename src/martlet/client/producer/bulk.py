"""Many bodies at once: checked, cut into pieces, and published as fast as they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from martlet.client.hooks import Publishing
from martlet.client.producer.body import Body, check_bodies, check_body, pieces
from martlet.client.producer.limits import Limits
from martlet.client.producer.publication import PendingPublish
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES


async def publish_bodies(
    bodies: Iterable[Body],
    limits: Limits,
    add: Callable[[list[bytes], int], PendingPublish],
    call: Publishing,
) -> None:
    """Publish all of them, and return once they are stored.

    Args:
        bodies: of a list or tuple all are checked before any is published.
        limits: of the pieces, and of what is in flight.
        add: publishes a piece, which takes so many bytes in an MPUB.
        call: where to count what is published.

    Raises:
        ClientError: what a piece could not be published for; the others may be stored.
    """
    max_bytes = limits.max_message_bytes
    if isinstance(bodies, (list, tuple)):
        checked: Iterable[bytes] = await check_bodies(bodies, max_bytes)
    else:
        checked = (check_body(body, max_bytes) for body in bodies)
    size_bytes = 0
    sent: deque[PendingPublish] = deque()
    try:
        for piece, piece_bytes in pieces(checked, limits):
            sent.append(add(piece, piece_bytes))
            call.message_count += len(piece)
            call.size_bytes += piece_bytes - MPUB_EXTRA_BYTES * len(piece)
            size_bytes += piece_bytes
            await asyncio.sleep(0)  # It is sent while the next is cut.
            while size_bytes > limits.max_in_flight_bytes and len(sent) > 1:
                size_bytes -= sent[0].size_bytes
                await sent[0].future
                sent.popleft()
        while sent:
            await sent[0].future
            sent.popleft()
    except BaseException:
        # The others' outcome is told by nobody; let none of it be sent that has not been.
        for publication in sent:
            if not publication.future.cancel() and not publication.future.cancelled():
                publication.future.exception()
        raise
