"""The broadcast consumer: each one gets all messages of a topic."""

from __future__ import annotations

import os
from typing import Unpack

from martlet.addresses import Address
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.broadcast_session import BroadcastProgress, BroadcastSession
from martlet.client.group.queues.offset_file import OffsetFile
from martlet.client.group.settings import FlowLimits, ProgressSettings, PullOptions
from martlet.client.keywords import apply_options
from martlet.client.settings import Addresses, ConnectionSettings


class BroadcastConsumer(PullConsumerBase):
    """Handle all messages of a topic, independently of other consumers.

    ::

        async with BroadcastConsumer("prices", offsets="prices.offsets") as consumer:
            async for message in consumer:
                ...

    It pulls as a `PullConsumer` does, without a group: its offsets are in a file of its own, and
    the broker keeps no state for it. Messages that it has not fetched are removed when every
    channel is done with them and the topic's retention is over; the consumer logs that, and
    continues with the remaining ones.
    """

    def __init__(
        self,
        topic: str,
        addresses: Addresses | None = None,
        *,
        offsets: str | os.PathLike[str] | None,
        connection: ConnectionSettings | None = None,
        progress: ProgressSettings | None = None,
        limits: FlowLimits | None = None,
        handling: HandlerSettings | None = None,
        **options: Unpack[PullOptions],
    ) -> None:
        """Take the settings; ``async with`` connects.

        The other arguments are those of `PullConsumer`.

        Args:
            topic: the topic's name.
            addresses: of the brokers.
            offsets: the file of offsets, one for each consumer; None to begin at ``start`` each
                time.
            connection, progress, limits, handling: settings.
            options: any field of these settings by name.

        Raises:
            BadOffsetFile: the file cannot be read, or has the offsets of another topic.
            TypeError: there is no such option.
            ValueError: a setting is out of its limits; the text says which.
        """
        settings = apply_options(
            type(self),
            options,
            connection or ConnectionSettings(),
            progress or ProgressSettings(),
            limits or FlowLimits(),
            handling or HandlerSettings(),
        )
        connection, progress, limits, handling = settings
        super().__init__(
            topic,
            None,
            addresses,
            connection=connection,
            progress=progress,
            limits=limits,
            handling=handling,
            leave_timeout_s=0.0,
        )
        file = OffsetFile(offsets, topic) if offsets is not None else None
        self._progress = BroadcastProgress(progress.start, file)

    def _make_session(self, address: Address) -> BroadcastSession:
        return BroadcastSession(address, self._dialer(address), self._settings, self._progress)
