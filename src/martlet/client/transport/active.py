"""Several connections to one broker, of which one is active: that to its newest run.

So clients leave a paused primary, which still believes it is one, once its successor answers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from martlet.client.errors import ConnectionLost
from martlet.client.transport.connection import Connection

logger = logging.getLogger("martlet.client")


def warn_of_copies(
    address: str,
    connection: Connection,
    others: Iterable[tuple[str, Connection | None]],
    effect: str,
) -> None:
    """Log each other process that has a broker's id, and may be connected.

    Args:
        others: all connections, with their addresses.
        effect: what follows for this client.
    """
    for other, its_connection in others:
        if its_connection is None or not connection.features.is_copy_of(its_connection.features):
            continue
        logger.warning(
            "%s and %s both have the broker id %s: unless the first one has ended, their data"
            " folders are copies; %s, and consumer groups refuse both",
            *(other, address, connection.features.broker_id, effect),
        )


class BrokerAddress(Protocol):
    """An address at which a broker may be reached."""

    connection: Connection | None
    """None while there is none."""


BrokerT = TypeVar("BrokerT")
LinkT = TypeVar("LinkT", bound=BrokerAddress)


class ActiveLinks(Generic[BrokerT, LinkT]):
    """The active link of each broker that is connected."""

    def __init__(self) -> None:
        self.of: dict[BrokerT, LinkT] = {}

    def choose(self, broker: BrokerT, links: Iterable[LinkT]) -> LinkT | None:
        """Choose among the links that reach a broker.

        Where the active one is not connected to the newest run, its connection is aborted; choose
        again once it is released.

        Returns:
            the link that becomes active; None if none does.
        """
        connected = [(link.connection.features.epoch, link) for link in links if link.connection]
        if not connected:
            return None
        epoch, newest = max(connected, key=lambda epoch_and_link: epoch_and_link[0])
        active = self.of.get(broker)
        if active is None:
            self.of[broker] = newest
            return newest
        if active.connection is not None and epoch > active.connection.features.epoch:
            active.connection.abort(ConnectionLost(f"{active}: the broker is at {newest} now"))
        return None

    def release(self, broker: BrokerT, link: LinkT) -> bool:
        """Note that a link is lost. Returns whether it was active."""
        if self.of.get(broker) is not link:
            return False
        del self.of[broker]
        return True
