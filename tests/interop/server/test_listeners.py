"""The listeners of a broker, and the options that HTTP shows and changes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import Wire

from martlet import __version__
from martlet.options import BrokerOptions, LogLevel
from martlet.server.build import build_server
from martlet.testing import Broker

pytestmark = pytest.mark.interop


@pytest.fixture
async def http(broker: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield session


async def config(http: aiohttp.ClientSession, name: str, value: str | None = None) -> object:
    method = "GET" if value is None else "PUT"
    async with http.request(method, f"/config/{name}", data=value) as response:
        assert response.status == 200, await response.text()
        return json.loads(await response.read())


async def test_broadcast_ports_are_those_of_the_listeners(
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
        build_server(options)
    assert not (tmp_path / "tcp").exists()
    assert not (tmp_path / "http").exists()


@pytest.mark.parametrize("option", ["tcp_address", "http_address"])
async def test_a_broker_that_cannot_listen_writes_nothing(tmp_path: Path, option: str) -> None:
    """It left a data folder, in the current folder where none was named."""
    anywhere = BrokerOptions(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for folder in (tmp_path, tmp_path / "new"):
            wanted: dict[str, Any] = {option: f"127.0.0.1:{port}", "data_path": str(folder)}
            with pytest.raises(OSError, match=rf"listen \(127.0.0.1:{port}\) failed"):
                build_server(anywhere.replace(**wanted))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /ping HTTP/1.1",
        "GET /nowhere HTTP/1.1",
        "DELETE /ping HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "GET /PING HTTP/1.1",
        "GET /metrics HTTP/1.1",
        "GET /log/topics HTTP/1.1",
        "GET /log/index?topic=t&format=binary HTTP/1.1",
        "GET /debug/pprof/ HTTP/1.1",
        "POST /pub?topic=t HTTP/1.1",
        "no request at all",
    ],
)
async def test_the_server_has_one_name_on_every_path(broker: Broker, request_line: str) -> None:
    """The own answers of aiohttp named aiohttp and Python."""
    host, _, port = broker.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"{request_line}\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 50)).decode()
    writer.close()
    names = [line for line in head.splitlines() if line.lower().startswith("server:")]
    assert names == [f"Server: martlet/{__version__}"]


async def test_an_ipv4_client_of_a_dual_stack_listener_is_shown_as_ipv4(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker(tcp_address=":0", http_address=":0") as broker:
        with caplog.at_level(logging.INFO):
            wire = await Wire.subscribed(f"127.0.0.1:{broker.server.tcp_port}", "t", "c")
            port = broker.server.http_port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"no request at all\r\n\r\n")
            await reader.read()
            writer.close()
            async with aiohttp.ClientSession() as http:
                url = f"http://127.0.0.1:{port}/stats?format=json&include_clients=true"
                async with http.get(url) as response:
                    report = await response.text()
            wire.close()
    logged = [record.getMessage() for record in caplog.records]
    assert any("127.0.0.1" in line for line in logged)
    assert not [line for line in [report, *logged] if "ffff" in line]
