"""Clients that do all right while others make mistakes, and notice when these are felt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from tests.crash.wire import Wire, http, pub

from martlet.testing import BrokerProcess


@asynccontextmanager
async def others(process: BrokerProcess, max_s: float = 50.0) -> AsyncIterator[None]:
    """Two clients that do all right meanwhile, and complain where anything is slow or lost."""
    producer = await Wire.open(process.tcp_address)
    consumer = await Wire.subscribed(process.tcp_address, "others", "c#ephemeral")
    consumer.send(b"RDY 10\n")

    async def go_on() -> None:
        for number in count():
            body, began_s = b"%d" % number, time.monotonic()
            producer.send(pub("others", body))
            await producer.ok()
            got = await consumer.message()
            assert got.body == body
            consumer.send(b"FIN %b\n" % got.id)
            assert time.monotonic() - began_s < max_s
            await asyncio.sleep(0.01)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        ended = task.done()
        task.cancel()
        outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        producer.close()
        consumer.close()
        if ended:
            assert isinstance(outcome, BaseException)
            raise outcome


@asynccontextmanager
async def undisturbed(process: BrokerProcess) -> AsyncIterator[None]:
    """Whatever is done meanwhile, other clients do not notice, and the process stays the same."""
    before = process.process_id
    async with others(process):
        yield
    assert process.process_id == before
    assert await http(process.http_address, "/ping") == b"OK"
