"""The pull consumer: a member of a group, to which queues of a topic are allocated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self

from martlet.addresses import Address
from martlet.client.addresses import Addresses
from martlet.client.consumer.handling.failure_policy import Delay
from martlet.client.group.assignment.membership import BrokerMembership
from martlet.client.group.assignment.plan import AllocationChoice, AllocationStrategy, RoomResolver
from martlet.client.group.assignment.planner import Planner
from martlet.client.group.base import PullConsumerBase
from martlet.client.group.failures import MAX_ATTEMPTS, RETRY, OnGivingUp
from martlet.client.group.flow_limits import FETCH_MESSAGES, MIB, FlowLimits
from martlet.client.group.rebalance_listener import OnQueues
from martlet.client.group.start_position import Start, check_start, start_fields
from martlet.client.hooks import Hooks
from martlet.client.names import check_name, check_tags
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.identity import Compression, Identity, TlsChoice

Strategy = Literal[
    "sticky",
    "averagely",
    "averagely-by-circle",
    "consistent-hash",
    "by-config",
    "by-machine-room",
    "machine-room-nearby",
]
"""How queues are shared out among the members: see `martlet.allocation`."""


MAX_STRATEGY_LENGTH = 80
"""Of the name of a strategy, for brokers."""


class PullConsumer(PullConsumerBase[BrokerMembership]):
    """Handles the messages of the queues that its group allocates to it.

    ::

        async with PullConsumer("orders", group="billing") as consumer:
            async for message in consumer:
                ...

    or ``await consumer.run(handler, concurrency=10)``, or ``async for batch in
    consumer.batches()``.  Each queue belongs to one member of the group at a time; who comes or
    goes has queues shared out anew.  Where the group is in a queue is an offset that the broker
    keeps: it is told every ``commit_every_s``, and when a queue goes, up to where everything is
    done.  So a message can come twice, and none is missed.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        addresses: Addresses | None = None,
        *,
        lookup: str | Iterable[str] | None = None,
        lookup_poll_s: float = 60.0,
        strategy: Strategy | AllocationStrategy = "sticky",
        room: str = "",
        rooms: RoomResolver | None = None,
        queues: Sequence[int] = (),
        start: Start = "last",
        tags: str | Iterable[str] = (),
        max_messages: int = 1000,
        max_bytes: int = 100 * MIB,
        max_span: int = 2000,
        fetch_messages: int = FETCH_MESSAGES,
        fetch_bytes: int = MIB,
        fetch_wait_s: float = 15.0,
        auto_commit: bool = True,
        commit_every_s: float = 5.0,
        lease_s: float = 120.0,
        leave_timeout_s: float = 10.0,
        on_assigned: OnQueues | None = None,
        on_revoked: OnQueues | None = None,
        retry: Delay = RETRY,
        max_attempts: int = MAX_ATTEMPTS,
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

        Args:
            topic: the topic's name.
            group: the group's; the broker creates what there is not.
            addresses: where brokers listen, as ``"host:port"``; the queues of all of them are
                shared out together.  A broker at 127.0.0.1:4150 where neither these nor lookup
                daemons are given.
            lookup: where lookup daemons serve HTTP, as ``"host:4161"`` or URLs; messages come from
                every broker that they know to have the topic, now or later.
            lookup_poll_s: how many seconds may pass until they are asked again.
            strategy: how queues are shared out; all members must name the same.  Or a function
                of one's own, the same at all members; see `AllocationStrategy`.
            room: the machine room, or zone, that this consumer is in.
            rooms: says which room brokers and members are in, in the place of what brokers
                (``--topology-zone``) and members (``room``) tell; see `RoomResolver`.
            queues: which it wants, for ``by-config`` and for that alone.
            start: where a group begins that is new: ``"first"`` for all that is stored, ``"last"``
                for what comes from now on, a time, an offset.  An older one goes on where it was.
            tags: take messages with one of these tags alone; it is the group's, so all members must
                want the same.
            max_messages, max_bytes, max_span, fetch_messages, fetch_bytes, fetch_wait_s: how much
                of each queue is fetched, and is here and not done; see `FlowLimits`.
            auto_commit: tell the broker by itself how far the queues have come, every
                ``commit_every_s`` and when a queue goes; without it ``await consumer.commit()``
                alone does, so that what was not committed comes again, to whoever has the queue.
            commit_every_s: how often.
            lease_s: when nothing is heard of this consumer for so long, its queues go to others.
            leave_timeout_s: how long handlers may take to end when their queue goes to another.
            on_assigned, on_revoked: told of queues (a list of `QueueId`) that have come, before
                anything is fetched, and that go, after their handlers have ended; functions or
                coroutine functions, which are waited for.
            retry: how long a message waits when its handler has failed, by its attempts.
            max_attempts: after so many a message goes to the group's dead-letter topic,
                ``<topic>.<group>.dead`` unless its policy names another; 0 for never.
            on_giving_up: gets each such message in the place of that topic.  When it raises, the
                message is not done, and is tried again.
            backoff: how long to wait before connecting again.
            connect_timeout_s: how long one attempt to connect may take.
            close_timeout_s: how long it may take to close.
            identity: what to tell the brokers of this client.
            tls, compression, auth_secret: in the place of the identity's; see `Identity`.
            hooks: what to call for logs, metrics and traces.

        Raises:
            ValueError: something is out of its limits; the text says what.
        """
        if lease_s < 1:
            raise ValueError(f"lease_s={lease_s}: 1 is the least")
        if (strategy == "by-config") != bool(queues):
            raise ValueError(
                f"strategy={strategy!r} with queues={list(queues)}: by-config needs the queues that"
                " this member wants, and no other strategy takes any"
            )
        if strategy == "by-config" and rooms is not None:
            raise ValueError(
                "by-config goes by no rooms: leave out rooms, or take another strategy"
            )
        choice = _chosen(strategy, rooms)
        identity = (identity or Identity()).secured(tls, compression, auth_secret)
        self._group = check_name(group, "channel")
        self._joining: dict[str, Any] = {
            "client_id": identity.client_id,
            "strategy": choice.name,
            "room": room,
            "queues": list(queues),
            "lease_ms": round(lease_s * 1000),
            **start_fields(check_start(start)),
        }
        if wanted := check_tags(tags):
            self._joining["wanted_tags"] = list(wanted)
        self._planner = Planner(topic, identity.client_id, choice)
        super().__init__(
            topic,
            addresses,
            lookup=lookup,
            lookup_poll_s=lookup_poll_s,
            limits=FlowLimits(
                max_messages=max_messages,
                max_bytes=max_bytes,
                max_span=max_span,
                fetch_messages=fetch_messages,
                fetch_bytes=fetch_bytes,
                fetch_wait_s=fetch_wait_s,
            ),
            commit_every_s=commit_every_s if auto_commit else 0.0,
            leave_timeout_s=leave_timeout_s,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            retry=retry,
            max_attempts=max_attempts,
            on_giving_up=on_giving_up,
            backoff=backoff,
            connect_timeout_s=connect_timeout_s,
            close_timeout_s=close_timeout_s,
            identity=identity,
            hooks=hooks,
            group=group,
        )

    @property
    def group(self) -> str:
        """The group's name."""
        return self._group

    def _post(self, address: Address) -> BrokerMembership:
        return BrokerMembership(
            address,
            self._dialer(address),
            self._settings,
            self._group,
            self._joining,
            self._planner,
        )

    async def __aenter__(self) -> Self:
        """Connect: see `PullConsumerBase.__aenter__`."""
        try:
            return await super().__aenter__()
        except BaseException:
            await self._planner.close()
            raise

    async def _close(self, besides: Iterable[asyncio.Task[object]] = ()) -> None:
        try:
            await super()._close(besides)
        finally:
            await self._planner.close()


def _chosen(strategy: str | AllocationStrategy, rooms: RoomResolver | None) -> AllocationChoice:
    if isinstance(strategy, str):
        return AllocationChoice(strategy, None, rooms)
    name = getattr(strategy, "__name__", type(strategy).__name__)
    return AllocationChoice(f"custom:{name}"[:MAX_STRATEGY_LENGTH], strategy, rooms)
