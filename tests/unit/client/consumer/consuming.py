"""Consumers and their handlers, for the length of a block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import pytest
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.client import BroadcastConsumer, Consumer, FailureBackoff, PullConsumer

NEVER = FailureBackoff(max_s=0)
Raised = TypeVar("Raised", bound=Exception)


@asynccontextmanager
async def running(
    consumer: Consumer | PullConsumer | BroadcastConsumer, handler: Any, **how: Any
) -> AsyncIterator[None]:
    """The handler runs meanwhile."""
    task = asyncio.create_task(consumer.run(handler, **how))
    yield
    consumer.stop()
    await task


async def refused(
    client: AbstractAsyncContextManager[object], error: type[Raised], says: str | None = None
) -> Raised:
    """Enter a client that cannot connect, and return the error."""
    with pytest.raises(error, match=says) as caught:
        async with client:
            pass
    return caught.value


@asynccontextmanager
async def consuming(
    broker: ScriptedBroker | None = None,
    *,
    run: Any = None,
    concurrency: int = 1,
    on: Any = "loop",
    **settings: Any,
) -> AsyncIterator[tuple[ScriptedBroker, Consumer]]:
    """A broker, and a consumer of it; ``run`` is a handler that runs meanwhile."""
    async with broker or ScriptedBroker() as started:
        async with Consumer("t", "c", started.address, **settings) as consumer:
            if run is None:
                yield started, consumer
                return
            if on == "loop":
                async with running(consumer, run, concurrency=concurrency):
                    yield started, consumer
                return
            task = asyncio.create_task(consumer.run(run, concurrency=concurrency, on=on))
            yield started, consumer
        with suppress(asyncio.CancelledError):
            await task
