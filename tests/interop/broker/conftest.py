"""A connection to each test's broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.interop.connections import connected

from martlet.client.transport.connection import Connection
from martlet.testing import Broker


@pytest.fixture
async def connection(broker: Broker) -> AsyncIterator[Connection]:
    async with connected(broker) as connection:
        yield connection
