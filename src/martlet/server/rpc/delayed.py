"""The calls that list and cancel delayed messages (see `martlet.schema.delayed`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from martlet.broker.delayed.delayed_messages import ListingPosition
from martlet.properties.model import Properties
from martlet.schema.delayed import (
    CANCEL,
    LIST,
    CancelDelayed,
    Cancelled,
    DelayedMessage,
    DelayedPage,
    ListDelayed,
)
from martlet.server.rpc.registry import served
from martlet.text import MILLISECOND_NS

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.delayed.bucket import Delayed
    from martlet.server.rpc.registry import Caller, Methods

_LISTED = 100
_MAX_LISTED = 1000


class DelayCalls:
    """The calls about delayed messages."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {**served(LIST, self.list), **served(CANCEL, self.cancel)}

    async def list(self, caller: Caller, request: ListDelayed) -> DelayedPage:
        """List the delayed messages of a topic; a batch may go beyond the limit."""
        delays = self._broker.delays
        topic = self._broker.find_topic(request.topic)
        behind = ListingPosition(*map(int, request.behind.split("-"))) if request.behind else None
        max_count = min(request.limit or _LISTED, _MAX_LISTED)
        listed: list[tuple[ListingPosition, Delayed]] = []
        for some in delays.listing(topic, behind, max_count):
            if some is not None:
                listed = some
            await asyncio.sleep(0)
        return DelayedPage(
            topic=topic.name,
            count=sum(delays.pending_of(part.id) for part in topic.at_queues),
            messages=tuple(_message(message) for _, message in listed),
            next="-".join(map(str, listed[-1][0])) if len(listed) >= max_count else "",
        )

    def cancel(self, caller: Caller, request: CancelDelayed) -> Cancelled:
        """Cancel delayed messages. Answers which of them were waiting and are cancelled."""
        topic = self._broker.find_topic(request.topic)
        ids = list(map(str, request.ids or (request.id,)))
        cancelled = self._broker.delays.cancel(topic, [one.encode() for one in dict.fromkeys(ids)])
        return Cancelled(
            cancelled=tuple(one for one in ids if one.encode() in cancelled),
            not_waiting=tuple(one for one in ids if one.encode() not in cancelled),
        )


def _message(message: Delayed) -> DelayedMessage:
    properties = Properties.unpack(message.properties)
    return DelayedMessage(
        id=message.id,
        deliver_at_ms=-(-message.deliver_at_ns // MILLISECOND_NS),
        stored_at_ms=message.stored_at_ns // MILLISECOND_NS,
        body_bytes=message.size_bytes,
        tag=properties.tag,
        keys=properties.keys,
    )
