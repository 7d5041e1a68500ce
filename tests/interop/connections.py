"""Connections of the package's client, for tests that send single commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from martlet.addresses import Address
from martlet.client import Identity
from martlet.client.transport.connection import Connection
from martlet.testing import Broker, BrokerProcess


async def connect(broker: Broker | BrokerProcess, **identity: Any) -> Connection:
    return await Connection.open(Address.parse(broker.tcp_address), Identity(**identity))


@asynccontextmanager
async def connected(broker: Broker | BrokerProcess) -> AsyncIterator[Connection]:
    connection = await connect(broker)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_lost()
