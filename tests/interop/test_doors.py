"""The doors of a broker, and the options that may be looked at and changed through one of them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from martlet.options import BrokerOptions, LogLevel
from martlet.server.server import Server
from martlet.testing import Broker

pytestmark = pytest.mark.interop


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield session


async def config(http: aiohttp.ClientSession, name: str, value: str | None = None) -> object:
    method = "GET" if value is None else "PUT"
    async with http.request(method, f"/config/{name}", data=value) as response:
        assert response.status == 200, await response.text()
        return json.loads(await response.read())


async def test_broadcast_ports_are_those_of_the_doors(
    broker: Broker, http: aiohttp.ClientSession
) -> None:
    assert await config(http, "broadcast_tcp_port") == broker.server.tcp_port
    assert await config(http, "broadcast_http_port") == broker.server.http_port


async def test_broadcast_ports_may_be_given() -> None:
    async with (
        Broker(broadcast_tcp_port=1, broadcast_http_port=2) as broker,
        aiohttp.ClientSession(f"http://{broker.http_address}") as http,
    ):
        assert await config(http, "broadcast_tcp_port") == 1
        assert await config(http, "broadcast_http_port") == 2
        async with http.get("/info") as response:
            info = await response.json()
    assert (info["tcp_port"], info["http_port"]) == (
        broker.server.tcp_port,
        broker.server.http_port,
    )


async def test_the_log_level_is_changed_while_the_broker_runs(http: aiohttp.ClientSession) -> None:
    logger = logging.getLogger("martlet")
    before = logger.level
    try:
        assert await config(http, "log_level", "DEBUG") == LogLevel.DEBUG
        assert logger.level == logging.DEBUG
        assert await config(http, "log_level", "warn") == LogLevel.WARN
        assert logger.level == logging.WARNING
        assert await config(http, "log_level") == LogLevel.WARN
    finally:
        logger.setLevel(before)


async def test_half_a_surrogate_pair_is_replaced_in_an_address(
    http: aiohttp.ClientSession,
) -> None:
    assert await config(http, "nsqlookupd_tcp_addresses", r'["\ud800"]') == ["\ufffd"]
    assert await config(http, "nsqlookupd_tcp_addresses", r'["\ud83d\ude00"]') == ["\U0001f600"]
    assert await config(http, "nsqlookupd_tcp_addresses", "[]") == []


async def test_a_start_that_fails_leaves_no_socket_behind(tmp_path: Path) -> None:
    (tmp_path / "broker.json").write_text('{"broker": "x", "version": 999}', encoding="utf-8")
    options = BrokerOptions(
        tcp_address=str(tmp_path / "tcp"),
        http_address=str(tmp_path / "http"),
        data_path=str(tmp_path),
    )
    with pytest.raises(OSError, match="999"):
        await Server(options).start()
    assert not (tmp_path / "tcp").exists()
    assert not (tmp_path / "http").exists()
