"""The session of one transaction: all its requests go to one broker, over any connections.

A request may be repeated, since the broker recognises it by its name or number. So after a lost
connection a caller waits for the next one to the same broker, until the timeout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from martlet.client.errors import (
    CallRefused,
    Closed,
    ConnectionLost,
    NotSupported,
    Refused,
    TransactionRefused,
    TransactionUnclear,
    WrongBroker,
)
from martlet.client.producer.broker_link import BrokerLink
from martlet.client.producer.broker_pool import BrokerPool
from martlet.client.producer.in_flight import InFlightQueue
from martlet.client.producer.pending import OrderKey
from martlet.client.producer.routing import broker_of_key, rank
from martlet.client.transport.connection import Connection
from martlet.client.transport.identity import Features
from martlet.names import PUBLISH_AGAIN

T = TypeVar("T")
_AGAIN_S = 0.1
"""The pause in seconds before a step is repeated that a primary has refused while it hands over."""


def broker_of_transaction(links: Sequence[BrokerLink], transaction_id: str) -> InFlightQueue | None:
    """Return a transaction's broker, connected or not: at another one it would begin again.

    It is found by the addresses, since the id of a broker that was never connected is not known.
    """
    key = ("%transaction", transaction_id)
    link = max(links, key=lambda link: rank(str(link), key), default=None)
    return None if link is None else link.queue


class PinnedSession:
    """The broker of one transaction.

    Args:
        broker: as ``host:port``, or its id; empty to choose it by the transaction's id.
    """

    def __init__(self, pool: BrokerPool, timeout_s: float, broker: str) -> None:
        self._pool = pool
        self._timeout_s = timeout_s
        self._broker = broker
        self._bound_to = ""
        """The name of the broker to which something was sent."""

    @property
    def is_bound(self) -> bool:
        """Whether anything was sent."""
        return bool(self._bound_to)

    def lightest(self) -> InFlightQueue | None:
        """Choose the broker with the least in flight, of those with transactions. Raises
        NotSupported: there are brokers, and none of them is a Martlet broker.
        """
        up = [link for link in self._pool.links if link.is_active]
        able = [link.queue for link in up if link.queue.takes_sends]
        if up and not able:
            names = ", ".join(map(str, up))
            raise NotSupported(f"{names}: no Martlet broker, so there are no transactions")
        return min(able, key=lambda broker: (broker.is_slow, broker.size_bytes), default=None)

    def check_broker(self, transaction_id: str, key: OrderKey) -> None:
        """Check that messages with an order key belong to the transaction's broker. Raises
        WrongBroker: they do not.
        """
        brokers = {link.queue for link in self._pool.links}
        if len(brokers) < 2:
            return
        broker = broker_of_key(brokers, key)
        chosen = self._chosen(transaction_id)
        if broker is not None and chosen is not None and chosen is not broker:
            topic, order_key = key
            raise WrongBroker(
                f"messages of topic {topic!r} with the order key {order_key!r} go to {broker.name},"
                f" and transaction {transaction_id!r} is at {chosen.name}: a transaction is at one"
                f" broker; begin one with broker={broker.name!r} for them, or use a producer of one"
                " broker"
            )

    def _chosen(self, transaction_id: str) -> InFlightQueue | None:
        """Return the broker, if it is known by now."""
        links = self._pool.links
        name = self._bound_to or self._broker
        if not name:
            return broker_of_transaction(links, transaction_id)
        named = (link.queue for link in links if name in (str(link), link.queue.broker_id))
        broker = next(named, None)
        if broker is None and self._pool.is_fixed and not self._bound_to:
            names = ", ".join(map(str, links))
            raise WrongBroker(f"there is no broker {self._broker!r}; there are {names}")
        return broker

    async def send(self, transaction_id: str, command: bytes) -> None:
        """Send a SEND until it is answered. Raises TransactionRefused and TransactionUnclear."""

        async def ask(connection: Connection) -> None:
            if not connection.features.extensions:
                raise NotSupported(f"{connection.address} is no Martlet broker")
            try:
                data = await connection.ask(command)
            except Refused as error:
                raise TransactionRefused(transaction_id, error.code, error.text) from error
            try:
                reply: dict[str, Any] = json.loads(data)
                status = str(reply["status"])
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                text = f"{connection.address} answered {data[:80]!r}; it may have been done or not"
                raise TransactionUnclear(transaction_id, text) from error
            if status != "OK":
                text, state = str(reply.get("text", "")), str(reply.get("state", ""))
                raise TransactionRefused(transaction_id, status, text, state)

        await self._until_answered(transaction_id, ask)

    async def call(self, transaction_id: str, method: str, **fields: Any) -> Mapping[str, Any]:
        """Call until it is answered. Raises TransactionRefused and TransactionUnclear."""
        return await self.ask(transaction_id, method, id=transaction_id, **fields)

    async def features(self, transaction_id: str) -> Features:
        """Return the broker's answer to IDENTIFY. Raises TransactionUnclear and NotSupported."""

        async def ask(connection: Connection) -> Features:
            if not connection.features.extensions:
                raise NotSupported(f"{connection.address} is no Martlet broker")
            return connection.features

        return await self._until_answered(transaction_id, ask)

    async def ask(self, transaction: str, method: str, /, **fields: Any) -> Mapping[str, Any]:
        """Call the broker of a transaction, with fields that need not name it."""
        transaction_id = transaction

        async def ask(connection: Connection) -> Mapping[str, Any]:
            try:
                return (await connection.call(method, **fields)).fields
            except CallRefused as error:
                state = str(error.fields.get("state", ""))
                raise TransactionRefused(transaction_id, error.code, error.text, state) from error

        return await self._until_answered(transaction_id, ask)

    async def _until_answered(
        self, transaction_id: str, ask: Callable[[Connection], Awaitable[T]]
    ) -> T:
        trouble: object = ""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                while True:
                    connection = await self._connected(transaction_id)
                    try:
                        return await ask(connection)
                    except ConnectionLost as error:
                        trouble = error
                    except TransactionRefused as error:
                        if error.state == "committing" and error.code == "TRY_AGAIN":
                            # A large commit goes on: the broker has just said so.
                            limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                            continue
                        if error.code != "REFUSED" or not str(error).endswith(PUBLISH_AGAIN):
                            raise
                        trouble = error
                        # The connection ends with the hand-over, unless that is given up.
                        await asyncio.wait([connection.lost], timeout=_AGAIN_S)
        except TransactionUnclear:  # A TimeoutError, too.
            raise
        except TimeoutError as error:
            chosen = self._chosen(transaction_id)
            where = chosen.name if chosen is not None else "no broker"
            raise TransactionUnclear(
                transaction_id,
                f"transaction {transaction_id!r}: no answer from {where} within"
                f" {self._timeout_s:g} s ({trouble or self._pool.trouble}); it may have been"
                " done or not",
            ) from error

    async def _connected(self, transaction_id: str) -> Connection:
        """Wait until the broker is connected, and return the connection."""
        while True:
            if self._pool.is_closed:
                raise Closed("the producer has been closed")
            if self._pool.refusal is not None:
                raise self._pool.refusal
            broker = self._chosen(transaction_id)
            link = self._pool.active_link(broker) if broker is not None else None
            if broker is not None and link is not None:
                connection = link.connection
                if connection is not None and connection.is_alive:
                    self._bound_to = broker.home_name
                    return connection
            await self._pool.changed()
