"""The brokers that tests of the client run with, their messages, and answers that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from tests.interop.cutting_proxy import CuttingProxy
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.client import Message, PulledMessage
from martlet.testing import BrokerProcess

Taken = TypeVar("Taken", Message, PulledMessage)

BOTH = [
    pytest.param(BrokerProcess, id="martlet"),
    pytest.param(NsqdProcess, id="nsqd", marks=NEEDS_NSQD),
]


@asynccontextmanager
async def losing_answers(proxy: CuttingProxy) -> AsyncIterator[None]:
    """The broker does what it gets meanwhile, and its answers are lost with the connection."""
    proxy.swallow()
    yield
    await asyncio.wait_for(proxy.swallowed.wait(), 50)
    proxy.go_on()


async def take(consumer: AsyncIterable[Taken], count: int) -> list[Taken]:
    """Receive and finish some messages; return them."""
    messages: list[Taken] = []
    async with asyncio.timeout(60):
        async for message in consumer:
            message.finish()
            messages.append(message)
            if len(messages) == count:
                return messages
    raise AssertionError(f"the consumer ended after {len(messages)} messages")
