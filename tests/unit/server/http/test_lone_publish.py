"""The fast path of ``POST /pub`` answers as aiohttp does, and leaves it all that is not common."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from tests.interop.server.http.test_http_bodies import Wire

from martlet.server.http import lone_publish
from martlet.server.http.server import _Protocol
from martlet.testing import Broker

HEAD = "POST /pub?topic=t HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"


def request(body: bytes, head: str = HEAD) -> bytes:
    return (head % len(body)).encode() + body


class Caller(Wire):
    """A connection over HTTP."""

    async def ask(self, *pieces: bytes) -> bytes:
        """Send bytes, in pieces that come apart, and return the answer without its date."""
        for piece in pieces:
            await self.send(piece)
            await asyncio.sleep(0.02)
        return await self.next()

    async def next(self) -> bytes:
        head, body = await self.whole_answer()
        return re.sub(rb"Date: [^\r]*", b"Date", head) + body


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(max_msg_size=5000) as made:
        made.server.broker.topic("t")
        yield made


@pytest.fixture
async def caller(broker: Broker) -> AsyncIterator[Caller]:
    host, _, port = broker.server.listeners.http_address.rpartition(":")
    made = Caller(*await asyncio.open_connection(host, int(port)))
    yield made
    made.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the topics of requests that the fast path answered."""
    taken: list[str] = []
    answer = _Protocol._answer_lone

    def note(self: _Protocol, request: lone_publish.LoneRequest, publish: object) -> bool:
        done = answer(self, request, publish)  # type: ignore[arg-type]
        if done:
            taken.append(request.topic)
        return done

    monkeypatch.setattr(_Protocol, "_answer_lone", note)
    return taken


async def test_it_answers_as_aiohttp_does(broker: Broker, caller: Caller, fast: list[str]) -> None:
    body = b"a body\r\n\r\nGET / HTTP/1.1\r\n"
    answers = [await caller.ask(request(body)) for _ in range(3)]
    assert fast == ["t"] * 3
    slow = HEAD.replace("Host: here", "Host: here\r\nX-Other: 1")
    assert await caller.ask(request(body, slow)) == answers[0] == answers[2]
    assert await caller.ask(request(body)) == answers[0], "by aiohttp, from now on"
    assert fast == ["t"] * 3
    assert broker.server.broker.topic("t").message_count == 5


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ((request(b"")), b"MSG_EMPTY"),
        (request(b"x" * 5001), b"MSG_TOO_BIG"),
        (request(b"x", HEAD.replace("=t", "=bad*name")), b"INVALID_TOPIC"),
        (request(b"x", HEAD.replace("?topic=t", "")), b"MISSING_ARG_TOPIC"),
        (request(b"x", HEAD.replace("=t", "=t&defer=x")), b"INVALID_DEFER"),
        (request(b"x", HEAD.replace("Host: here", "Host: here\r\nBad Name: x")), b"400"),
        (request(b"x", HEAD.replace("Host: here", "Host: here\r\nHost: there")), b""),
        (request(b"x", HEAD.replace("Length: %d", "Length: %d\r\nContent-Length: 2")), b"400"),
        (request(b"x", HEAD.replace("1.1", "1.0")), b"OK"),
        (request(b"x", HEAD.replace("Host: here", "Host: here\r\nConnection: close")), b"OK"),
        (request(b"x", HEAD.replace("Host: here", "Host: here\r\nMartlet-Tag: x")), b"OK"),
        (request(b"x", HEAD.replace("Host: here", "Host: here\r\nX: " + "x" * 2000)), b"OK"),
        (request(b"x", HEAD.replace("=t", "=new")), b"OK"),
        (request(b"x", HEAD.replace("POST", "GET")), b"METHOD_NOT_ALLOWED"),
    ],
)
async def test_uncommon_requests_are_aiohttps(
    broker: Broker, caller: Caller, fast: list[str], pieces: bytes, answer: bytes
) -> None:
    assert answer in await caller.ask(pieces)
    assert not fast


async def test_requests_in_pieces_or_many_at_once(
    broker: Broker, caller: Caller, fast: list[str]
) -> None:
    assert b"200 OK" in await caller.ask(request(b"one"))
    both = request(b"two") + request(b"three")
    assert b"200 OK" in await caller.ask(both)
    assert b"200 OK" in await caller.next()
    assert fast == ["t"]
    assert broker.server.broker.topic("t").message_count == 3


async def test_a_request_inside_of_another_is_none(
    broker: Broker, caller: Caller, fast: list[str]
) -> None:
    inner = request(b"smuggled")
    outer = f"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: {len(inner)}\r\n\r\n"
    assert b"200 OK" in await caller.ask(outer.encode(), inner)
    assert not fast
    assert broker.server.broker.topic("t").message_count == 1


async def test_a_connection_that_publishes_is_not_idle(
    broker: Broker, caller: Caller, fast: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols: list[_Protocol] = []
    received = _Protocol.data_received

    def keep(self: _Protocol, data: bytes) -> None:
        protocols.append(self)
        received(self, data)

    monkeypatch.setattr(_Protocol, "data_received", keep)
    await caller.ask(request(b"x"))
    (protocol,) = protocols
    protocol._next_keepalive_close_time = 0.0
    await caller.ask(request(b"x"))
    assert protocol._next_keepalive_close_time > asyncio.get_running_loop().time()
    assert fast == ["t"] * 2
