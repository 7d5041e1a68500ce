"""The pull consumer: a member of a group, to which queues of a topic are allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from martlet.addresses import Address
from martlet.client.addresses import Addresses
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.group.assignment.membership import BrokerMembership
from martlet.client.group.assignment.planner import Planner
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.failures import MAX_ATTEMPTS
from martlet.client.group.flow_limits import FlowLimits
from martlet.client.group.settings import MemberOptions, MembershipSettings, ProgressSettings
from martlet.client.group.start_position import start_fields
from martlet.client.settings import ConnectionSettings, apply_options


class PullConsumer(PullConsumerBase):
    """Handles the messages of the queues that its group allocates to it.

    ::

        async with PullConsumer("orders", group="billing") as consumer:
            async for message in consumer:
                ...

    or ``await consumer.run(handler, concurrency=10)``, or ``async for batch in
    consumer.batches()``.  Each queue belongs to one member of the group at a time; when members
    come or go, queues are allocated anew.  The group's position in a queue is an offset that the
    broker keeps: it is committed every ``commit_every_s``, and when a queue goes, up to where
    everything is done.  So a message can come twice, and none is missed.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        addresses: Addresses | None = None,
        *,
        connection: ConnectionSettings | None = None,
        membership: MembershipSettings | None = None,
        progress: ProgressSettings | None = None,
        limits: FlowLimits | None = None,
        handling: HandlerSettings | None = None,
        **options: Unpack[MemberOptions],
    ) -> None:
        """Take the settings; nothing is connected before ``async with``.

        Args:
            topic: the topic's name.
            group: the group's; the broker creates it if there is none.
            addresses: where brokers listen, as ``"host:port"``; the queues of all of them are
                allocated together.  A broker at 127.0.0.1:4150 where neither these nor lookup
                daemons are given.
            connection: how brokers are found and connected to.
            membership: how it is a member of the group.
            progress: where to begin in the queues, and how to commit.
            limits: how much is fetched, and may be here and not be done, of each queue.
            handling: what becomes of messages whose handlers fail.
            options: any field of these settings by its name, in the place of its value there, such
                as ``start="first"``, ``lease_s=30``, ``lookup="host:4161"``, ``hooks=...``.

        Raises:
            TypeError: there is no such option.
            ValueError: a setting is out of its limits; the text says which.
        """
        settings = apply_options(
            type(self),
            options,
            connection or ConnectionSettings(),
            membership or MembershipSettings(),
            progress or ProgressSettings(),
            limits or FlowLimits(),
            handling or HandlerSettings(),
        )
        connection, membership, progress, limits, handling = settings
        if handling.max_attempts is None:
            handling = replace(handling, max_attempts=MAX_ATTEMPTS)
        client_id = connection.identity.client_id
        self._joining = {
            "client_id": client_id,
            **membership.fields(),
            **start_fields(progress.start),
        }
        self._planner = Planner(topic, client_id, membership.allocation)
        super().__init__(
            topic,
            group,
            addresses,
            connection=connection,
            progress=progress,
            limits=limits,
            handling=handling,
            leave_timeout_s=membership.leave_timeout_s,
        )

    @property
    def group(self) -> str:
        """The group's name."""
        return self._name

    def _make_session(self, address: Address) -> BrokerMembership:
        return BrokerMembership(
            address,
            self._dialer(address),
            self._settings,
            self._name,
            self._joining,
            self._planner,
        )

    async def _hang_up(self, timeout_s: float) -> None:
        try:
            await super()._hang_up(timeout_s)
        finally:
            await self._planner.close()
