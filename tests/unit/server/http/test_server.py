"""What a server of HTTP logs, and which pages of other sites it refuses."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import aiohttp
import pytest
from tests.admin_page import lookup_daemon

from martlet.lookup.daemon import Lookup
from martlet.server.http import server as http_server
from martlet.server.http.request import Request
from martlet.server.http.server import HttpServer
from martlet.testing import Broker

FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    # A name of the page's own that leads to this machine.
    {"Origin": "http://rebound.example:4151", "Host": "rebound.example:4151"},
    {"Sec-Fetch-Site": "same-origin", "Host": "rebound.example:4151"},
)
OTHERS: tuple[dict[str, str], ...] = (
    {},
    {"Host": "broker.example:4151"},  # a program that names the broker by its name
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://app.example"},  # behind a proxy
    {"Sec-Fetch-Site": "none"},
)
CHANGES = (
    ("POST", "/pub?topic=t"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/pause?topic=t&channel=c"),
    ("POST", "/channel/unpause?topic=t&channel=c"),
    ("POST", "/channel/empty?topic=t&channel=c"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/topic/pause?topic=t"),
    ("POST", "/topic/unpause?topic=t"),
    ("POST", "/topic/empty?topic=t"),
    ("POST", "/topic/delete?topic=t"),
    ("PUT", "/config/log_level"),
)
DAEMONS_CHANGES = (
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/topic/tombstone?topic=t&node=x:1"),
    ("POST", "/topic/delete?topic=t"),
)


async def status(address: str, route: tuple[str, str], headers: dict[str, str]) -> int:
    method, path = route
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", data=b"INFO", headers=headers) as answer,
    ):
        text = await answer.text()
        assert (answer.status == 403) == ("FOREIGN_PAGE" in text), text
        return answer.status


@pytest.mark.parametrize(
    ("running", "changes", "read"),
    [(Broker, CHANGES, "/stats"), (lookup_daemon, DAEMONS_CHANGES, "/nodes")],
    ids=["broker", "lookup daemon"],
)
async def test_pages_of_other_sites_change_nothing(
    running: Callable[[], AbstractAsyncContextManager[Broker | Lookup]],
    changes: tuple[tuple[str, str], ...],
    read: str,
) -> None:
    async with running() as server:
        for headers in FOREIGN:
            for route in changes:
                assert await status(server.http_address, route, headers) == 403, (route, headers)
            assert await status(server.http_address, ("GET", read), headers) == 200
        for headers in OTHERS:
            for route in changes:
                assert await status(server.http_address, route, headers) == 200, (route, headers)


async def test_pages_under_a_strange_name_change_nothing_at_brokers_of_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name of a page may lead to any address (DNS rebinding), also to one in a network."""
    monkeypatch.setattr(Request, "is_local", False)
    receive = ("POST", "/v1/topics/t/channels/c/receive")
    async with Broker(allowed_hosts=("App.example",), broadcast_address="b.example") as broker:
        for headers in FOREIGN:
            for route in (*CHANGES, receive):
                assert await status(broker.http_address, route, headers) == 403, (route, headers)
        own = [
            {"Origin": f"http://{host}", "Host": host}
            for host in ("app.example", "b.example:4151", "10.0.0.1:4151", "[fd00::1]:1", "broker")
        ]
        # A program names it as it likes, behind a load balancer too.
        for headers in (*own, *OTHERS, {"Host": "balancer.example"}):
            for route in (*CHANGES[:4], receive):
                assert await status(broker.http_address, route, headers) == 200, (route, headers)


async def test_reads_of_the_admin_page_are_logged_at_debug_level_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "martlet.server.http.server")
    async with Broker() as broker:
        for route in (("GET", "/stats"), ("GET", "/replica"), ("POST", "/topic/create?topic=t")):
            await status(broker.http_address, route, {"User-Agent": "martlet-admin"})
        await status(broker.http_address, ("GET", "/stats"), {})
        await status(broker.http_address, ("GET", "/log/topics"), FOREIGN[0])
    lines = [
        (record.levelname, record.getMessage().rpartition(" (")[0])
        for record in caplog.records
        if record.name == "martlet.server.http.server"
    ]
    assert lines == [
        ("DEBUG", "200 GET /stats"),
        ("DEBUG", "404 GET /replica"),
        ("INFO", "200 POST /topic/create?topic=t"),
        ("INFO", "200 GET /stats"),
        ("INFO", "403 GET /log/topics"),
    ]


async def test_a_connection_without_a_request_outlasts_a_change_of_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was closed after 0.3 s, and what its client sent meanwhile was dropped."""
    hangs = asyncio.Event()

    async def one(request: Request) -> object:
        return "one"

    async def hang(request: Request) -> object:
        hangs.set()
        return await asyncio.get_running_loop().create_future()

    async def two(request: Request) -> object:
        return "two"

    monkeypatch.setattr(http_server, "_STOP_S", 0.05)
    server = HttpServer({"/role": {"GET": one}, "/hang": {"GET": hang}})
    sock = socket.create_server(("127.0.0.1", 0))
    host, port = sock.getsockname()
    await server.start(sock)
    idle, idle_writer = await asyncio.open_connection(host, port)
    busy, busy_writer = await asyncio.open_connection(host, port)

    async def ask() -> bytes:
        idle_writer.write(b"GET /role HTTP/1.1\r\nHost: x\r\n\r\n")
        head = await idle.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        return await idle.readexactly(3)

    async with asyncio.timeout(50):
        assert await ask() == b"one"
        busy_writer.write(b"GET /hang HTTP/1.1\r\nHost: x\r\n\r\n")
        await hangs.wait()
        changing = asyncio.create_task(
            server.answer_by({"/role": {"GET": two}}, ends_requests=True)
        )
        await asyncio.sleep(0)
        assert await ask() == b"two"
        await changing
        assert await ask() == b"two"
        assert await busy.read() == b"", "its request was of the role before"
    for writer in (idle_writer, busy_writer):
        writer.close()
    await server.stop()


@pytest.mark.parametrize("depth", [100_000, 900, 300])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_json_of_any_depth_is_no_error_of_the_broker(depth: int, opening: str) -> None:
    routes = (
        ("PUT", "/config/nsqlookupd_tcp_addresses"),
        ("POST", "/v1/topics/t/messages"),
        ("POST", "/v1/topics/t/channels/c/receive"),
        ("POST", "/v1/topics/t/channels/c/finish"),
        ("POST", "/log/reach"),
        *(("POST", f"/call/{name}") for name in ("topic.configure", "topic.fetch", "log.find")),
    )
    closing = "]" if opening == "[" else "}"
    inner = "" if opening == "[" else "1"
    values = [opening * depth, opening * depth + inner + closing * depth]
    async with Broker() as broker, aiohttp.ClientSession() as session:
        for method, path in routes:
            for value in values:
                for body in (value, f'{{"topic": {value}}}', f'{{"messages": {value}}}'):
                    async with session.request(
                        method,
                        f"http://{broker.http_address}{path}",
                        data=body.encode(),
                        headers={"Content-Type": "application/json"},
                    ) as answer:
                        assert answer.status < 500, (path, body[:40], await answer.text())
