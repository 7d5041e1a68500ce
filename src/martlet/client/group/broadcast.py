"""The broadcasting consumer: every one gets all messages of a topic."""

from __future__ import annotations

import os
from collections.abc import Iterable

from martlet.addresses import Address
from martlet.client.addresses import Addresses
from martlet.client.consumer.handling.failure_policy import Delay
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.broadcast_session import BroadcastSession
from martlet.client.group.failures import RETRY, OnGivingUp
from martlet.client.group.flow_limits import FlowLimits
from martlet.client.group.queues.offset_file import OffsetFile
from martlet.client.group.rebalance_listener import OnQueues
from martlet.client.group.start_position import Start, check_start
from martlet.client.hooks import Hooks
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.identity import Compression, Identity, TlsChoice


class BroadcastConsumer(PullConsumerBase[BroadcastSession]):
    """Handles all messages of a topic, whoever else does.

    ::

        async with BroadcastConsumer("prices", offsets="prices.offsets") as consumer:
            async for message in consumer:
                ...

    and whatever else a `PullConsumer` can.  Where it is in each queue is kept in a file of its own,
    and the broker knows nothing of it: what it has not fetched goes when every channel is done with
    it and the topic's retention is over.  Where that has happened it is logged, and it goes on with
    what there is.
    """

    def __init__(
        self,
        topic: str,
        addresses: Addresses | None = None,
        *,
        offsets: str | os.PathLike[str] | None,
        lookup: str | Iterable[str] | None = None,
        lookup_poll_s: float = 60.0,
        start: Start = "last",
        limits: FlowLimits | None = None,
        auto_commit: bool = True,
        commit_every_s: float = 5.0,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        retry: Delay = RETRY,
        max_attempts: int = 0,
        on_giving_up: OnGivingUp | None = None,
        backoff: Backoff | None = None,
        connect_timeout_s: float = 5.0,
        close_timeout_s: float = 10.0,
        identity: Identity | None = None,
        tls: TlsChoice | None = None,
        compression: Compression | None = None,
        auth_secret: str | bytes | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Take the settings; nothing is connected before ``async with``.

        The other arguments are those of `PullConsumer`.

        Args:
            topic: the topic's name.
            addresses: where brokers listen.
            offsets: the file in which offsets are kept, one for each consumer; None for none: it
                begins at ``start`` each time.
            start: where to begin in a queue that the file does not know.
            limits: how much of each queue is fetched, and is here and not done.
            max_attempts: after so many a message is given up, which loses it here unless
                ``on_giving_up`` keeps it; 0, for never, is the default.

        Raises:
            BadOffsetFile: the file cannot be read, or is another topic's.
            ValueError: something is out of its limits; the text says what.
        """
        super().__init__(
            topic,
            addresses,
            lookup=lookup,
            lookup_poll_s=lookup_poll_s,
            limits=limits or FlowLimits(),
            commit_every_s=commit_every_s if auto_commit else 0.0,
            leave_timeout_s=0.0,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            retry=retry,
            max_attempts=max_attempts,
            on_giving_up=on_giving_up,
            backoff=backoff,
            connect_timeout_s=connect_timeout_s,
            close_timeout_s=close_timeout_s,
            identity=(identity or Identity()).secured(tls, compression, auth_secret),
            hooks=hooks,
        )
        self._start = check_start(start)
        self._file = OffsetFile(offsets, topic) if offsets is not None else None

    def _post(self, address: Address) -> BroadcastSession:
        return BroadcastSession(
            address, self._dialer(address), self._settings, self._file, self._start
        )
