"""A broker logs once that it cannot register at a lookup daemon, and what to do."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.answering import answering
from tests.polling import until

from martlet.server import lookup_peer
from martlet.testing import Broker


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(lookup_peer, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(lookup_peer, "_MAX_PAUSE_S", 0.001)
    caplog.set_level(logging.INFO)


def logged(caplog: pytest.LogCaptureFixture, address: str) -> list[str]:
    """Return the log lines about a daemon."""
    return [message for message in caplog.messages if address in message]


def as_daemon(
    http_address: str,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Answer as a lookup daemon that serves HTTP at an address."""
    host, _, port = http_address.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        answer = b'{"broadcast_address": "%b", "http_port": %b}' % (host.encode(), port.encode())
        writer.write(len(answer).to_bytes(4) + answer)
        await reader.read()
        writer.close()
        await writer.wait_closed()

    return serve


@asynccontextmanager
async def bad_daemon(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Give this answer to each broker. Yields the address, and what brokers have said first."""
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.readline())
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as daemon:
        yield "{}:{}".format(*daemon.sockets[0].getsockname()), said


async def test_a_closed_port_is_logged_once_and_so_is_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = 0
    connect = asyncio.open_connection

    async def open_connection(
        host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        nonlocal attempts
        attempts += 1
        return await connect(host, port)

    monkeypatch.setattr(asyncio, "open_connection", open_connection)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # and does not listen yet
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with Broker(lookupd_tcp_addresses=(address,)):
            await until(lambda: attempts >= 5)
            async with await asyncio.start_server(as_daemon("127.0.0.1:4161"), sock=listener):
                await until(lambda: "registered after" in caplog.text)
    assert logged(caplog, address)[:3] == [
        f"LOOKUP({address}): adding peer",
        f"LOOKUP connecting to {address}",
        f"LOOKUPD({address}): cannot register: connection refused; is a lookup daemon running"
        " there? (trying again)",
    ]
    assert "failed attempts" in logged(caplog, address)[-2] + logged(caplog, address)[-1]
    assert caplog.text.count("cannot register") == 1


async def test_a_redirect_of_a_daemon_is_not_followed(caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    async def redirect(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response(status=301, headers={"Location": "/elsewhere"})

    async with (
        answering(redirect) as address,
        await asyncio.start_server(as_daemon(address), "127.0.0.1", 0) as daemon,
    ):
        port = daemon.sockets[0].getsockname()[1]
        async with Broker(lookupd_tcp_addresses=(f"127.0.0.1:{port}",)) as broker:
            await until(lambda: "peer info" in caplog.text)
            broker.server.broker.topic("t")
            await until(lambda: "the channels of t are not known" in caplog.text)
    assert asked == ["/channels"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "that is an HTTP port; give the lookup daemon's TCP address, whose port is usually"
            " 4160",
        ),
        (b"", "the connection was closed"),
    ],
)
async def test_a_bad_answer_is_logged_in_words(
    answer: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bad_daemon(answer) as (address, _), Broker(lookupd_tcp_addresses=(address,)):
        line = f"LOOKUPD({address}): cannot register: {why} (trying again)"
        await until(lambda: line in caplog.messages)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"broadcast_address": 5, "http_port": 4161}',
        b'{"broadcast_address": "127.0.0.1", "http_port": null}',
        b"[" * 100_000,
    ],
    ids=["address", "port", "deep"],
)
async def test_a_daemon_that_answers_nonsense_is_tried_again(answer: bytes) -> None:
    framed = len(answer).to_bytes(4) + answer
    async with bad_daemon(framed) as (address, said), Broker(lookupd_tcp_addresses=(address,)):
        await until(lambda: len(said) > 1)
