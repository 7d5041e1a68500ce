"""A page in front of two brokers; a module with other brokers has fixtures of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.admin_page import Page, page_of, two_brokers

from martlet.testing import Broker


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    async with two_brokers() as both:
        yield both


@pytest.fixture
async def page(brokers: list[Broker]) -> AsyncIterator[Page]:
    async with page_of([broker.http_address for broker in brokers]) as one_page:
        yield one_page
