"""Connect and reconnect, with a longer delay after each failure.

Brokers that refuse a client they have never accepted are not tried again. Those that have accepted
it before are tried for a while, since a refusing broker may be in the middle of a change (new
flags, a new certificate, an auth server that starts).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from martlet.addresses import Address
from martlet.client.errors import ConnectFailed, ConnectionLost, ConnectRefused
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.connection import Connection
from martlet.client.transport.identity import Identity
from martlet.unreachable import Outage

logger = logging.getLogger("martlet.client")

PATIENCE_S = 60.0
"""The time for which brokers may refuse a client that they have accepted before."""


_HASTE = Backoff(max_s=0.5)
"""The delays while a broker is sought that was lost elsewhere."""
STEADY_HEARTBEATS = 2.0
"""The number of heartbeat intervals after which a connection counts as useful."""


class Dialer:
    """Connect to the first of some addresses that answers.

    A connection lost before it was useful counts as a failure, so that a broker that accepts and
    closes connections is not tried a thousand times a second. A connection that lasted for two
    heartbeats counts as useful too, since a consumer may be idle for days.

    Args:
        are_found: whether lookup daemons, and not the application, named the addresses.

    Attributes:
        last_error: why there is no connection, after a failed attempt.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        identity: Identity,
        *,
        backoff: Backoff,
        connect_timeout_s: float,
        are_found: bool = False,
    ) -> None:
        self.last_error: Exception | None = None
        self.on_failure: Callable[[], None] | None = None
        self.on_connected: Callable[[str], object] | None = None
        self.on_lost: Callable[[str, Exception], object] | None = None
        self._addresses = list(addresses)
        self._outages = {
            address: Outage(f"cannot connect to {address}", f"connected to {address}")
            for address in addresses
        }
        self._identity = identity
        self._backoff = backoff
        self._connect_timeout_s = connect_timeout_s
        self._are_found = are_found
        self._failures = 0
        self._useful = False
        self._connected_at_s = 0.0
        self._next = 0
        self._hastened = asyncio.Event()
        self._hastened_at_s = -inf
        self._was_taken = False
        self._refused_since_s: dict[Address, float] = {}
        """The brokers whose last answer was a refusal."""

    async def dial(self) -> Connection:
        """Connect, without a time limit.

        The addresses are tried one after the other, beginning with the one that worked last; only
        when all have failed is there a delay before the next round.

        Raises ConnectRefused: every broker refuses this client permanently.
        """
        while True:
            await self._pause()
            address = self._addresses[self._next]
            try:
                connection = await Connection.open(
                    address, self._identity, timeout_s=self._connect_timeout_s
                )
            except ConnectFailed as error:
                if self._is_hopeless(address, error):
                    self.last_error = error
                    raise
                why = self._describe(error).removeprefix(f"{address}: ")
                self._outages[address].failed(why)
                self.failed(error)
            else:
                if not self._outages[address].over():
                    logger.info("connected to %s", address)
                self._useful = False
                self._connected_at_s = asyncio.get_running_loop().time()
                self._was_taken = True
                self._refused_since_s.clear()
                if self.on_connected is not None:
                    self.on_connected(str(address))
                return connection

    async def _pause(self) -> None:
        """Wait before the next attempt, or until it is hastened."""
        rounds = self._failures // len(self._addresses)
        delay_s = self._backoff.delay_s(rounds)
        if self._hastened_for_s < self._backoff.max_s:
            delay_s = min(delay_s, _HASTE.delay_s(rounds))
        self._hastened.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._hastened.wait()

    def hasten(self) -> None:
        """Try again at once, and then often, but only once in the longest delay."""
        if self._hastened_for_s >= self._backoff.max_s:
            self._hastened_at_s = asyncio.get_running_loop().time()
            self._failures = 0
            self._hastened.set()

    @property
    def _hastened_for_s(self) -> float:
        """The time since it was hastened."""
        return asyncio.get_running_loop().time() - self._hastened_at_s

    def _describe(self, error: ConnectFailed) -> str:
        """Describe a failed attempt, with a remedy if there is one."""
        if not (self._are_found and isinstance(error.__cause__, socket.gaierror)):
            return str(error)
        return (
            f"{error}: lookup names that host, which does not resolve here; start its broker"
            " with --broadcast-address=NAME, a name or an address by which clients reach it"
        )

    def _is_hopeless(self, address: Address, error: ConnectFailed) -> bool:
        """Return whether a retry is useless after this broker's error."""
        now_s = asyncio.get_running_loop().time()
        if not isinstance(error, ConnectRefused):
            self._refused_since_s.pop(address, None)
            return False
        self._refused_since_s.setdefault(address, now_s)
        if len(self._refused_since_s) < len(self._addresses):
            return False
        latest_s = max(self._refused_since_s.values())
        return not self._was_taken or now_s - latest_s >= PATIENCE_S

    def failed(self, error: Exception) -> None:
        """Count a failed attempt, or a connection that was not useful."""
        self.last_error = error
        self._failures += 1
        self._next = (self._next + 1) % len(self._addresses)
        if self.on_failure is not None:
            self.on_failure()

    def lost(self, error: ConnectionLost) -> None:
        """Note that the connection was lost; reconnect at once if it had been useful."""
        logger.warning("connection lost: %s; connecting again", error)
        self.last_error = error
        if self.on_lost is not None:
            self.on_lost(str(self._addresses[self._next]), error)
        if self._useful:
            return
        stood_s = asyncio.get_running_loop().time() - self._connected_at_s
        if stood_s < STEADY_HEARTBEATS * self._identity.heartbeat_interval_ms / 1000:
            self._failures += 1
        else:
            self._failures = 0

    def succeeded(self) -> None:
        """Note that the connection was useful: the broker executed a request."""
        self._useful = True
        self._failures = 0
