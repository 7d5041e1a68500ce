"""Lookup daemons that misbehave do no harm."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import repeat
from typing import Any

import pytest
from aiohttp import web
from tests.answering import answering
from tests.polling import until

from martlet.addresses import Address
from martlet.client import Consumer, Producer, PullConsumer
from martlet.client.transport import discovery
from martlet.client.transport.discovery import Discovery, KnownTopics

Answer = bytes | Callable[[web.StreamResponse], Awaitable[object]]


@asynccontextmanager
async def daemon(answer: Answer) -> AsyncIterator[str]:
    """A lookup daemon that writes its answers in chunks, so that their size is not announced."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await (response.write(answer) if isinstance(answer, bytes) else answer(response))
        return response

    async with answering(handle) as address:
        yield address


@asynccontextmanager
async def not_found(*bodies: bytes | None) -> AsyncIterator[str]:
    """A server that answers these one after the other, with 404 where they list no brokers;
    None for NSQ's answer to bytes that are no command, in segments of TCP as nsqd sends it.
    """
    left = iter(bodies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = next(left)
        if body is None:
            writer.write(b"\0\0\0\x0e")
            await asyncio.wait_for(reader.read(), 50)  # The client has given up by then.
            writer.write(b"E_BAD_PROTOCOL")
        else:
            status = b"200 OK" if b"producers" in body else b"404 Not Found"
            head = b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            writer.write(head % (status, len(body)) + body)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def look(*daemons: str) -> tuple[list[Address], bool]:
    """Return the addresses once each daemon was asked once."""
    received: list[tuple[list[Address], bool]] = []
    watch = asyncio.create_task(
        Discovery("t", daemons, 60.0, lambda *args: received.append(args)).watch()
    )
    await until(lambda: len(received) == len(daemons))
    watch.cancel()
    await asyncio.wait([watch])
    return received[-1]


GOOD = b'{"producers": [{"broadcast_address": "b", "tcp_port": 4150}]}'


async def endless(response: web.StreamResponse) -> None:
    for piece in repeat(b" " * 65536):
        await response.write(piece)


@pytest.mark.parametrize("bad", [endless, b"[" * 100_000], ids=["endless", "deep"])
async def test_a_bad_answer_is_no_answer(bad: Answer, caplog: pytest.LogCaptureFixture) -> None:
    async with daemon(GOOD) as one, daemon(bad) as two, asyncio.timeout(discovery.ANSWER_S - 1):
        assert await look(one) == ([Address("b", 4150)], True)
        assert await look(one, two) == ([Address("b", 4150)], False)
    assert f"{two} does not answer: an answer" in caplog.text


ODD: list[Any] = [
    {"broadcast_address": "b", "tcp_port": 4150},
    {"broadcast_address": "", "tcp_port": 4150},
    {"broadcast_address": "c", "tcp_port": 70_000},
    {"broadcast_address": "c", "tcp_port": "4150"},
    {"broadcast_address": "c/x?y=", "tcp_port": 4150},
    {"broadcast_address": "u@c", "tcp_port": 4150},
    {"broadcast_address": "c\r\n", "tcp_port": 4150},
    {"broadcast_address": "\uff11.0.0.1", "tcp_port": 4150},
    {"broadcast_address": 7, "tcp_port": 4150},
    "nonsense",
]
MANY = [{"broadcast_address": f"b{n}", "tcp_port": 1} for n in range(1500)]


@pytest.mark.parametrize(
    ("bad", "count"),
    [
        (json.dumps({"producers": ODD}), 1),
        ("null", 0),
        ('{"producers": {"broadcast_address": "b"}, "channels": 3}', 0),
        (json.dumps({"producers": MANY}), 1000),
    ],
    ids=["odd", "null", "other", "very many"],
)
async def test_the_sound_part_of_an_answer_counts(bad: str, count: int) -> None:
    async with daemon(bad.encode()) as one:
        addresses, is_all = await look(one)
    assert len(addresses) == count
    assert not is_all, "so nothing is let go of because of it"


async def test_a_slow_daemon_does_not_delay_the_others() -> None:
    """The other is asked again and again meanwhile, and its answers are used at once."""
    go = asyncio.Event()
    polls = 0

    async def slow(_response: web.StreamResponse) -> None:
        await go.wait()

    async def quick(response: web.StreamResponse) -> None:
        nonlocal polls
        polls += 1
        await response.write(GOOD)

    received: list[tuple[list[Address], bool]] = []
    async with daemon(slow) as one, daemon(quick) as two, asyncio.timeout(discovery.ANSWER_S - 1):
        search = Discovery("t", [one, two], 60.0, lambda *args: received.append(args))
        watch = asyncio.create_task(search.watch())
        await search.first_found()
        assert received == [([Address("b", 4150)], False)]
        search.poll_now()
        await until(lambda: polls == 2)
        watch.cancel()
        await asyncio.wait([watch])
        go.set()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            b'{"message": "NOT_FOUND"}',
            "it has no /lookup; give the HTTP address of a lookup daemon",
        ),
        (b"<html>", "it has no /lookup; give the HTTP address of a lookup daemon"),
        (None, "that is a TCP port; give the lookup daemon's HTTP address"),
    ],
)
async def test_a_server_that_is_no_lookup_daemon_is_logged(
    body: bytes | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the HTTP or TCP port of a broker: it was taken for a daemon without the topic."""
    async with not_found(body) as address:
        assert await look(address) == ([], False)
    assert f"{address} does not answer: {why}, whose port is usually 4161" in caplog.text


async def test_a_topic_that_no_broker_has_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[bytes] = [b'{"message": "TOPIC_NOT_FOUND"}'] * 2
    answers += [GOOD, *[b'{"producers": []}'] * 2]
    looks = 0

    def on_found(_addresses: list[Address], is_all: bool) -> None:
        nonlocal looks
        assert is_all
        looks += 1
        search.poll_now()

    async with not_found(*answers) as address, asyncio.timeout(discovery.ANSWER_S):
        search = Discovery("typo", [address], 60.0, on_found)
        watch = asyncio.create_task(search.watch())
        await until(lambda: looks == len(answers))
        watch.cancel()
        await asyncio.wait([watch])
    line = f"http://{address}: no broker with topic 'typo' is known there; polling again every 60 s"
    assert caplog.messages == [line, line], "once before there was one, and once after that"


async def test_a_daemon_that_does_not_list_topics_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        topics = KnownTopics([address])
        assert [await topics.poll() for _ in range(3)] == [[], [], []]
    assert len(caplog.messages) == 1
    assert f"{address} does not answer: connection refused" in caplog.text


UNRESOLVED = b'{"producers": [{"broadcast_address": "nowhere.invalid", "tcp_port": 4150}]}'


def resolve(host: object, *_rest: object, **_options: object) -> list[object]:
    """Stand in for `socket.getaddrinfo`: it knows this machine alone."""
    if host == "nowhere.invalid":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    return [address]


@pytest.mark.parametrize("make", [Consumer, PullConsumer, Producer])
async def test_a_broadcast_address_that_does_not_resolve_is_logged_with_what_to_do(
    make: type[Consumer | PullConsumer | Producer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = () if make is Producer else ("t", "c")
    async with daemon(UNRESOLVED) as address, AsyncExitStack() as stack:
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        enter = asyncio.create_task(stack.enter_async_context(make(*names, lookup=address)))
        await until(lambda: "cannot connect to nowhere.invalid:4150" in caplog.text)
        enter.cancel()
        await asyncio.wait([enter])
    assert "start its broker with --broadcast-address=NAME" in caplog.text


async def test_of_an_address_that_the_application_gave_no_lookup_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with Consumer("t", "c", "nowhere.invalid:4150"):
        pass
    assert "cannot connect to nowhere.invalid:4150" in caplog.text
    assert "--broadcast-address" not in caplog.text


SLOW_IMPORT = """
import asyncio, sys, threading
from importlib.abc import MetaPathFinder
from martlet.client import Admin, ClientError, Consumer, Producer

going_on = threading.Event()

class SlowFinder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "aiohttp":
            sys.meta_path.remove(self)
            print("the loop goes on" if going_on.wait(20) else "the loop has stopped")

async def main():
    sys.meta_path.insert(0, SlowFinder())
    asyncio.get_running_loop().call_later(0.3, going_on.set)
    try:
        async with CLIENT:
            print("it was entered")
    except ClientError as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("client", "outcome"),
    [
        ("Producer(lookup='127.0.0.1:1', timeout_s=0.1)", "no broker within 0.1 s: the lookup"),
        ("Consumer('t', 'c', lookup='127.0.0.1:1')", "it was entered"),
        ("Admin('127.0.0.1:1')", "it was entered"),
    ],
)
def test_the_import_of_aiohttp_stops_no_loop_and_takes_no_time_of_a_limit(
    client: str, outcome: str
) -> None:
    command = [sys.executable, "-c", SLOW_IMPORT.replace("CLIENT", client)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert first == "the loop goes on"
    assert second.startswith(outcome)
