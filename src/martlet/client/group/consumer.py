"""The pull consumer: a member of a group, to which queues of a topic are assigned."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from martlet.addresses import Address
from martlet.client.consumer.settings import HandlerSettings
from martlet.client.group.assignment.membership import BrokerMembership
from martlet.client.group.assignment.planner import Planner
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.failures import MAX_ATTEMPTS
from martlet.client.group.settings import (
    FlowLimits,
    MemberOptions,
    MembershipSettings,
    ProgressSettings,
    start_fields,
)
from martlet.client.keywords import apply_options
from martlet.client.settings import Addresses, ConnectionSettings


class PullConsumer(PullConsumerBase):
    """Handle the messages of the queues that its group assigns to it.

    ::

        async with PullConsumer("orders", group="billing") as consumer:
            async for message in consumer:
                ...

    or ``await consumer.run(handler, concurrency=10)``, or ``async for batch in
    consumer.batches()``.  Each queue belongs to one member of the group at a time; when members
    come or go, the group rebalances. The broker keeps the group's offset in each queue: the
    consumer commits it every ``commit_every_s``, and when a queue moves, up to the first message
    that is not done. So delivery is at least once.
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
        """Take the settings; ``async with`` connects.

        Args:
            topic: the topic's name.
            group: the group's name; the broker creates it if missing.
            addresses: of the brokers, as ``"host:port"``; the queues of all of them are assigned
                together. Without these and lookup daemons: 127.0.0.1:4150.
            connection: how to find and connect to brokers.
            membership: its membership in the group.
            progress: the start position in the queues, and the commits.
            limits: the limits of fetches, and of messages that are not done, for each queue.
            handling: the handling of messages whose handlers fail.
            options: any field of these settings by name, overriding its value there, such as
                ``start="first"``, ``lease_s=30``, ``lookup="host:4161"``, ``hooks=...``.

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
