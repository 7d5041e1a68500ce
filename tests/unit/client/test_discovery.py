"""What lookup daemons that misbehave can do: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import repeat

import pytest
from aiohttp import web

from martlet.client import discovery
from martlet.client.address import Address
from martlet.client.discovery import Discovery

Answer = Callable[[web.StreamResponse], Awaitable[object]]


@asynccontextmanager
async def daemon(answer: Answer) -> AsyncIterator[str]:
    """A lookup daemon that writes its answers in chunks, so that their size is not announced."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await answer(response)
        return response

    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1")
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def look(*daemons: str) -> tuple[list[Address], bool]:
    found: list[tuple[list[Address], bool]] = []
    await Discovery("t", daemons, 60.0, lambda *told: found.append(told)).look()
    return found[0]


async def good(response: web.StreamResponse) -> None:
    await response.write(b'{"producers": [{"broadcast_address": "b", "tcp_port": 4150}]}')


async def endless(response: web.StreamResponse) -> None:
    for piece in repeat(b" " * 65536):
        await response.write(piece)


async def deep(response: web.StreamResponse) -> None:
    await response.write(b"[" * 100_000)


@pytest.mark.parametrize("bad", [endless, deep])
async def test_a_bad_answer_is_no_answer(bad: Answer, caplog: pytest.LogCaptureFixture) -> None:
    async with daemon(good) as one, daemon(bad) as two, asyncio.timeout(discovery.ANSWER_S - 1):
        assert await look(one) == ([Address("b", 4150)], True)
        assert await look(one, two) == ([Address("b", 4150)], False)
    assert f"{two} does not answer: an answer" in caplog.text
