"""One address of a producer's broker: connect, and reconnect whenever the connection is lost.

Several addresses may lead to one broker: that of each replica, of which one serves it, or several
of the same process. One of the connections to a broker is active, and the broker's batches are in
flight there; the others are spare (`martlet.client.producer.broker_pool` decides).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from martlet.client.errors import ConnectionLost, ConnectRefused
from martlet.client.hooks import Hooks
from martlet.client.producer.accumulator import Accumulator
from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.stats import BrokerStats, Health
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.connection import Connection
from martlet.client.transport.dialer import Dialer
from martlet.text import counted

logger = logging.getLogger("martlet.client")

REFUSED_PAUSE_S = 60.0
"""The time before a broker that refuses this client is tried again."""
CLOSE_S = 2.0
"""The time for a broker to read the output before the connection is aborted."""


class BrokerLink:
    """Keep an address connected, and retry batches lost with an active connection.

    Attributes:
        queue: the batches in flight at the broker that is there, or was last.
        is_active: whether the broker's batches are in flight on this connection.
        on_down: called when it is lost, after batches in flight were put back.
        refusal: the error of a broker that refuses this client.
        health_when_down: the broker's health while there is no connection.
    """

    def __init__(
        self, accumulator: Accumulator, name: str, dialer: Dialer, backoff: Backoff, hooks: Hooks
    ) -> None:
        self.queue: InFlightQueue = accumulator.add_broker(name)
        self.is_active = False
        self.connection: Connection | None = None
        self.on_up: Callable[[BrokerLink], None] = lambda _link: None
        self.on_down: Callable[[BrokerLink], None] = lambda _link: None
        self.refusal: ConnectRefused | None = None
        self.on_refused: Callable[[BrokerLink], None] = lambda _link: None
        self.health_when_down = Health.CONNECTING
        self._name = name
        self._accumulator = accumulator
        self._dialer = dialer
        self._dialer.on_failure = self._failed
        self._on_retried = hooks.on_retried
        self._backoff = backoff
        self._answers_seen = 0
        self._silent_checks = 0

    def __str__(self) -> str:
        return self._name

    @property
    def can_write(self) -> bool:
        """Whether the broker is connected, and reads the output."""
        connection = self.connection
        return connection is not None and connection.is_alive and connection.can_write

    @property
    def health(self) -> Health:
        """The broker's health."""
        if self.connection is None:
            return self.health_when_down
        return Health.SILENT if self.queue.is_slow else Health.CONNECTED

    @property
    def last_error(self) -> Exception | None:
        """Why the last connection was lost or could not be made."""
        return self._dialer.last_error

    async def keep(self) -> None:
        """Connect and reconnect until cancelled."""
        while True:
            try:
                connection = await self._dialer.dial()
            except ConnectRefused as refusal:
                logger.error("%s", refusal)
                self.refusal = refusal
                self.health_when_down = Health.REFUSING
                self.on_refused(self)
                await asyncio.sleep(REFUSED_PAUSE_S)
                # Only now: a producer that all brokers refuse at its start is closed before.
                logger.info("%s: trying again to connect, after a refusal", self)
                continue
            self.refusal = None
            self.connection = connection
            self.on_up(self)
            error = await connection.wait_lost()
            self.connection = None
            queue = self.queue
            was_held = self.is_active and queue.is_held
            is_refusing = (
                self.is_active and queue.refusals > 0 and len(self._accumulator.brokers) > 1
            )
            self.health_when_down = Health.REFUSING if is_refusing else Health.FAILING
            self._dialer.lost(error)
            if self.is_active:
                self._put_back(error)
            self.on_down(self)
            if is_refusing:
                # There are other brokers; this one is tried again in a while.
                await asyncio.sleep(self._backoff.delay_s(queue.refusals))
            elif was_held:
                # A message that was sent alone may cause this each time.
                self._dialer.failed(error)

    def activate(self) -> None:
        """Send the broker's batches on this connection from now on."""
        assert self.connection is not None
        assert not self.queue.is_up
        self.is_active = True
        self._answers_seen, self._silent_checks = -1, 0
        self.queue.name = self._name
        self.queue.on_answer = self._dialer.succeeded
        takes_sends = bool(self.connection.features.extensions)
        self._accumulator.connected(self.queue, takes_sends=takes_sends)

    def _put_back(self, error: ConnectionLost) -> None:
        """Retry the batches in flight on a connection that is lost."""
        self.is_active = False
        self.queue.is_slow = False
        count = self._accumulator.put_back(self.queue, error)
        if count:
            logger.info(
                "%s not answered and will be sent again",
                counted(count, "message was", "messages were"),
            )
            if self._on_retried is not None:
                self._on_retried(self._name, count)

    def hasten(self) -> None:
        """Try again to connect, soon: a broker that was lost elsewhere may be here now."""
        self._dialer.hasten()

    def check_answers(self, may_cut: bool) -> None:
        """Check whether the broker has answered anything since the last check.

        After one check without an answer the producer prefers other brokers; after two, if allowed,
        it aborts the connection, so that batches in flight go to others.
        """
        queue = self.queue
        seen = queue.stored_count + queue.refused_count
        if self.connection is None or not queue.batches or seen != self._answers_seen:
            self._answers_seen = seen if queue.batches else -1
            self._silent_checks = 0
            queue.is_slow = False
            return
        self._silent_checks += 1
        queue.is_slow = True
        if self._silent_checks > 1 and may_cut:
            self.connection.abort(
                ConnectionLost(f"{self}: the broker does not answer what is published")
            )

    def _failed(self) -> None:
        self.health_when_down = Health.FAILING

    def stats(self) -> BrokerStats:
        """Return the broker's statistics."""
        queue = self.queue
        return BrokerStats(
            address=self._name,
            health=self.health,
            in_flight_messages=queue.message_count,
            in_flight_bytes=queue.size_bytes,
            stored=queue.stored_count,
            refused=queue.refused_count,
            lost=queue.lost_count,
            last_error=None if self.last_error is None else str(self.last_error),
        )

    async def close(self) -> None:
        """Close the connection after all output is sent, or after a while."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        connection.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await connection.wait_lost()
        except TimeoutError:
            connection.abort()
            await connection.wait_lost()
