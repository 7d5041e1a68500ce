"""The brokers of a pull consumer, known by their ids: it consumes from each on one connection.

Several addresses may lead to one broker: that of each replica, or several of the same process. The
session at each address keeps a connection. One of them is active and fetches; the others are spare,
and one of those becomes active when it is lost.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakValueDictionary

from martlet.addresses import Address
from martlet.client.transport.active import ActiveLinks
from martlet.client.transport.connection import Connection


class KnownBroker:
    """A broker."""

    def __init__(self, address: str, broker_id: str = "", *, has_replicas: bool = False) -> None:
        self.name = address
        """The first address at which it was reached, as ``host:port``; its queues have it."""
        self.id = broker_id
        """Empty if it does not report one."""
        self.addresses = {address: None}
        """All at which it was reached, as ``host:port``."""
        self.has_replicas = has_replicas
        """Whether it goes on at another address when its process ends."""


class ReachedBroker:
    """A connection to a broker, until it is lost."""

    def __init__(self, broker: KnownBroker, address: Address, connection: Connection) -> None:
        self.broker = broker
        self.connection: Connection | None = connection
        """None once it is lost."""
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the connection is active."""
        self._address = address

    def __str__(self) -> str:
        return str(self._address)


class KnownBrokers:
    """Choose the active connection to each broker."""

    def __init__(self) -> None:
        self._reached: list[ReachedBroker] = []
        self._by_id = WeakValueDictionary[str, KnownBroker]()
        """Those that a session has reached the last time."""
        self._active = ActiveLinks[KnownBroker, ReachedBroker]()

    def reached(
        self, address: Address, connection: Connection, before: KnownBroker
    ) -> ReachedBroker:
        """Add a new connection to an address; ``before`` was there the last time."""
        broker = self._recognise(str(address), connection, before)
        reached = ReachedBroker(broker, address, connection)
        self._reached.append(reached)
        self._choose(broker)
        return reached

    def _recognise(self, address: str, connection: Connection, before: KnownBroker) -> KnownBroker:
        features = connection.features
        if not features.broker_id:
            return before if not before.id else KnownBroker(address)
        broker = self._by_id.get(features.broker_id)
        if broker is None:
            broker = KnownBroker(address, features.broker_id)
            self._by_id[broker.id] = broker
        broker.has_replicas = features.has_replicas
        broker.addresses[address] = None
        return broker

    def _choose(self, broker: KnownBroker) -> None:
        links = [reached for reached in self._reached if reached.broker is broker]
        active = self._active.choose(broker, links)
        if active is not None:
            active.turn.set_result(None)

    def copies(self, reached: ReachedBroker) -> list[tuple[str, Connection]]:
        """The connections to other processes with the broker's id, which may have ended."""
        assert reached.connection is not None
        features = reached.connection.features
        return [
            (str(other), other.connection)
            for other in self._reached
            if other.connection is not None and features.is_copy_of(other.connection.features)
        ]

    async def wait_turn(self, reached: ReachedBroker) -> None:
        """Wait until a connection is active. Raises ConnectionLost."""
        connection = reached.connection
        assert connection is not None
        ends: list[asyncio.Future[Any]] = [reached.turn, connection.lost]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not reached.turn.done():
            raise await connection.wait_lost()

    def lost(self, reached: ReachedBroker) -> bool:
        """Remove a lost connection, whose queues were dropped.

        Returns whether it was active, and none is left to its broker.
        """
        reached.connection = None
        self._reached.remove(reached)
        if not self._active.release(reached.broker, reached):
            return False
        self._choose(reached.broker)
        return reached.broker not in self._active.of
