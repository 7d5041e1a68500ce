"""Brokers that register too slowly."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from tests.admin_page import lookup_daemon
from tests.polling import until

from martlet.lookup import connection
from martlet.protocol import lookup as v1

BROKER = {"broadcast_address": "b", "hostname": "b", "tcp_port": 1, "http_port": 2, "version": "1"}


@pytest.mark.parametrize("begun", [b"", b"  V", b"  V1", b"  V1PING\n", b"  V1IDENTIFY\n\0\0"])
async def test_a_connection_without_identify_is_not_kept(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "COMMAND_S", 0.01)
    async with lookup_daemon() as daemon:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
        writer.write(begun)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        await until(lambda: not daemon._connections)


async def test_a_command_that_does_not_end_has_a_time_limit_and_silence_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with lookup_daemon() as daemon:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.tcp_port)
        writer.write(b"  V1" + v1.identify(BROKER) + v1.register("t"))
        await until(lambda: daemon.registry.knows("t"))
        (broker,) = daemon._connections
        assert broker._limit is None
        monkeypatch.setattr(connection, "COMMAND_S", 0.01)
        writer.write(b"REGIS")
        await until(lambda: not daemon._connections)
        writer.close()
        reader.feed_eof()
