"""The connection that tests of crashes use."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.crash.wire import Wire


async def test_a_broker_that_dies_before_it_answers_leaves_no_socket_open() -> None:
    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\n")
        writer.close()

    async with await asyncio.start_server(die, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        with pytest.raises(asyncio.IncompleteReadError):
            await Wire.subscribed(f"{host}:{port}", "topic", "channel")
        with pytest.raises(asyncio.IncompleteReadError):
            await Wire.subscribed(f"{host}:{port}", "topic", "channel", heartbeat_interval=1000)
        gc.collect()
