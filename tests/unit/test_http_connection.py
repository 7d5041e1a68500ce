"""Clients of HTTP that are slow, send nonsense or go away, at each server that has HTTP."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import lookup_daemon, page_of
from tests.polling import until

from martlet import http_connection
from martlet.console import server as admin_server
from martlet.server.http.request import Request
from martlet.server.http.server import HttpServer
from martlet.testing import Broker

SOON_S = 0.01
JSON = "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"
NONSENSE = (
    b"X\r\n\r\n",
    b"\0" * 100,
    b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3" + b"\0" * 60,  # the beginning of TLS
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    b"GET /ping HTTP/1.1\r\nHost: x:port\r\n\r\n",
    b"GET /ping HTTP/1.1\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /topic/create?topic=\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data\r\n"
    b"Content-Length: 3\r\n\r\nabc",
)
BODIES = {
    "broker": ("/pub?topic=t", "/mpub?topic=t", "/v1/topics/t/messages", "/call/topic.list"),
    "admin": ("/act", "/api/topics"),
}


@asynccontextmanager
async def http_of(server: str) -> AsyncIterator[str]:
    """The address of a server's HTTP."""
    if server == "broker":
        async with Broker() as broker:
            yield broker.http_address
    elif server == "lookup":
        async with lookup_daemon() as daemon:
            yield daemon.http_address
    else:
        async with page_of(["127.0.0.1:1"]) as page:
            yield page.server.address


@asynccontextmanager
async def opened(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the connection ends; whether it does so without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def reset(writer: asyncio.StreamWriter) -> None:
    """Go away as a process that is killed."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def has_errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The texts of errors and tracebacks, of this package and of all others."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR or record.exc_info
    ]


@pytest.mark.parametrize("server", ["broker", "lookup", "admin"])
@pytest.mark.parametrize("begun", [b"", b"GET /ping HTTP/1.1\r\nHost: localhost\r\n"])
async def test_a_head_that_does_not_end_has_a_time_limit(
    server: str, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_of(server) as address:
        monkeypatch.setattr(http_connection, "HEAD_S", SOON_S)
        async with opened(address) as (reader, writer):
            writer.write(begun)
            assert await is_closed(reader)


@pytest.mark.parametrize("server", ["broker", "lookup", "admin"])
async def test_further_lines_of_a_head_gain_no_time(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_of(server) as address:
        monkeypatch.setattr(http_connection, "HEAD_S", 2 * SOON_S)
        async with opened(address) as (reader, writer):
            writer.write(b"GET /ping HTTP/1.1\r\n")
            end = asyncio.create_task(is_closed(reader))
            while not end.done():
                writer.write(b"X-More: 1\r\n")
                await asyncio.sleep(SOON_S)
            assert end.result()


@pytest.mark.parametrize("server", ["broker", "lookup", "admin"])
async def test_a_second_request_that_does_not_end_has_the_limit_too(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_of(server) as address, opened(address) as (reader, writer):
        writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nOK")
        monkeypatch.setattr(http_connection, "HEAD_S", SOON_S)
        writer.write(b"GET /ping HT")
        assert await is_closed(reader)


@pytest.mark.parametrize(
    ("server", "path"), [(server, path) for server, paths in BODIES.items() for path in paths]
)
@pytest.mark.parametrize("framing", ["Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked"])
async def test_a_body_that_does_not_end_has_a_time_limit(
    server: str, path: str, framing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "BODY_S", SOON_S)
    async with http_of(server) as address, opened(address) as (reader, writer):
        begun = framing if "Length" in framing else f"{framing}\r\n\r\n5\r\nab"
        writer.write(f"POST {path} HTTP/1.1\r\n{JSON}{begun}".encode())
        assert await is_closed(reader)


async def test_a_form_in_parts_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BODY_S", SOON_S)
    async with http_of("admin") as address, opened(address) as (reader, writer):
        writer.write(
            b"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
            b"Content-Type: multipart/form-data; boundary=a\r\n\r\n--a\r\n"
        )
        assert await is_closed(reader)


async def test_a_body_has_time_for_the_bytes_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BODY_S", 0)
    monkeypatch.setattr(http_connection, "BODY_BYTES_PER_S", 0.001)
    async with Broker() as broker, opened(broker.http_address) as (reader, writer):
        head = b"POST /pub?topic=t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
        writer.write(head + b"a")
        await until(lambda: broker.server.listeners._http_servers[0]._busy)
        writer.write(b"b")
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("server", ["broker", "lookup", "admin"])
@pytest.mark.parametrize("end", ["close", "half", "reset"])
async def test_nonsense_is_no_error_of_the_server(
    server: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_of(server) as address:
        for data in NONSENSE:
            async with opened(address) as (reader, writer):
                writer.write(data)
                if end == "half":
                    writer.write_eof()
                if end == "reset":
                    await writer.drain()
                    reset(writer)
                    continue
                assert (await reader.readline()).split()[1:2] != [b"500"], data
        async with opened(address) as (reader, writer):
            writer.write(b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    assert not has_errors(caplog)


async def test_a_client_that_goes_away_before_its_answer_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    begun, gone, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def long(request: Request) -> object:
        with request.when_gone(gone.set):
            begun.set()
            await gone.wait()
        try:
            return await request.stream([memoryview(b"x" * 1000)], "text/plain", 100)
        finally:
            done.set()

    server = HttpServer({"/long": {"GET": long}})
    with socket.create_server(("127.0.0.1", 0)) as sock:
        await server.start(sock)
        async with opened("{}:{}".format(*sock.getsockname())) as (_, writer):
            writer.write(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            await begun.wait()
            reset(writer)
            await done.wait()
            await until(lambda: "499 GET /long" in caplog.text)
        await server.stop()
    assert not has_errors(caplog)


async def test_an_error_of_the_server_is_still_one(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Request) -> object:
        raise ConnectionRefusedError("another server's")

    server = HttpServer({"/broken": {"GET": broken}})
    with socket.create_server(("127.0.0.1", 0)) as sock:
        await server.start(sock)
        async with opened("{}:{}".format(*sock.getsockname())) as (reader, writer):
            writer.write(b"GET /broken HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 500 ")
        await server.stop()
    assert has_errors(caplog) == ["panic in HTTP handler - GET /broken"]


async def test_a_tab_that_was_closed_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = asyncio.Event()

    async def page(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        done.set()
        response = web.StreamResponse()
        await response.prepare(request)
        return response

    patched: dict[str, Any] = {"/": page}
    monkeypatch.setattr(admin_server, "_PAGES", {**admin_server._PAGES, **patched})
    async with http_of("admin") as address, opened(address) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await done.wait()
        assert await reader.read() == b""
    assert not has_errors(caplog)
