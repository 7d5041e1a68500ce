"""Bodies of requests, and other input, byte by byte over plain sockets."""

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime

import pytest
from tests import brokers

from martlet.log.record import MAX_LONE_BODY_BYTES
from martlet.testing import Broker

LIMIT = 1 << 16


class Wire:
    """A connection to the HTTP port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def whole_answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        async with asyncio.timeout(50):
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            return head, await self._reader.readexactly(int(length[1])) if length else b""

    async def answer(self) -> tuple[int, str]:
        """Status and body of the next answer."""
        head, body = await self.whole_answer()
        return int(head.split()[1]), body.decode()

    async def head(self) -> tuple[str, dict[str, str]]:
        """The first line of the next answer, and its headers."""
        async with asyncio.timeout(50):
            first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        return first, dict(line.split(": ", 1) for line in lines if line)

    async def rest(self) -> bytes:
        """All until the broker closes the connection."""
        async with asyncio.timeout(50):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


broker = brokers.here(max_msg_size=LIMIT, max_body_size=LIMIT)


async def connect(broker: Broker) -> Wire:
    host, _, port = broker.http_address.rpartition(":")
    return Wire(*await asyncio.open_connection(host, int(port)))


@pytest.fixture
async def wire(broker: Broker) -> AsyncIterator[Wire]:
    wire = await connect(broker)
    yield wire
    wire.close()


def stored(broker: Broker, topic: str) -> int:
    stored_topic = broker.server.broker.topics.get(topic)
    return stored_topic.queue.end_offset if stored_topic else 0


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_body_may_come_in_chunks(broker: Broker, wire: Wire) -> None:
    await wire.send(b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (b"one ", b"message", b" in pieces"):
        await wire.send(chunk(piece))
        await asyncio.sleep(0)
    assert stored(broker, "t") == 0
    await wire.send(b"0\r\n\r\n")
    assert await wire.answer() == (200, "OK")
    topic = broker.server.broker.topics["t"]
    assert (topic.message_count, topic.message_bytes) == (1, len("one message in pieces"))


@pytest.mark.parametrize(("path", "text"), [("pub", "MSG_TOO_BIG"), ("mpub", "BODY_TOO_BIG")])
async def test_an_endless_body_is_refused_early(
    broker: Broker, wire: Wire, path: str, text: str
) -> None:
    head = f"POST /{path}?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(head.encode())
    for _ in range(LIMIT // 1024 + 1):
        await wire.send(chunk(b"x" * 1024))
    assert await wire.answer() == (413, json.dumps({"message": text}, separators=(",", ":")))
    assert stored(broker, "t") == 0


async def test_a_body_at_the_limit_is_taken_in_chunks_too(broker: Broker, wire: Wire) -> None:
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(head + chunk(b"x" * LIMIT) + b"0\r\n\r\n")
    assert await wire.answer() == (200, "OK")


async def test_expect_100_continue_is_answered_at_once(broker: Broker, wire: Wire) -> None:
    await wire.send(
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        b"Content-Length: %d\r\n\r\n" % (LIMIT + 1)
    )
    assert (await wire.answer())[0] == 413
    assert await wire.rest() == b""  # it is closed: what the client would send is no request
    wire = await connect(broker)
    await wire.send(
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        b"Content-Length: 2\r\n\r\n"
    )
    assert await wire.answer() == (100, "")
    await wire.send(b"hi")
    assert await wire.answer() == (200, "OK")
    assert stored(broker, "t") == 1
    wire.close()


@pytest.mark.parametrize("head", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_breaks_off_is_not_stored(
    broker: Broker, wire: Wire, head: bytes
) -> None:
    begun = chunk(b"half") if b"chunked" in head else b"half"
    made = asyncio.Event()  # the topic is made before the body is read
    broker.server.broker.on_topic = lambda topic: made.set()
    await wire.send(b"POST /mpub?topic=t HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n" + begun)
    await asyncio.wait_for(made.wait(), 50)
    wire.abort()
    other = await connect(broker)
    await other.send(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await other.answer() == (200, "OK")
    other.close()
    assert stored(broker, "t") == 0


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
async def test_an_encoded_body_is_stored_as_it_comes(
    broker: Broker, wire: Wire, encoding: str
) -> None:
    body = gzip.compress(b"not to be opened by the broker")
    await wire.send(
        b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Encoding: %b\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (encoding.encode(), len(body), body)
    )
    assert await wire.answer() == (200, "OK")
    assert broker.server.broker.topics["t"].message_bytes == len(body)


async def test_a_connection_outlives_a_body_that_was_a_little_too_long(wire: Wire) -> None:
    size = LIMIT + 1
    head = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    await wire.send(head + b"x" * size + b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await wire.answer() == (413, '{"message":"MSG_TOO_BIG"}')
    assert await wire.answer() == (200, "OK")


@pytest.mark.parametrize("body_bytes", [1, MAX_LONE_BODY_BYTES, MAX_LONE_BODY_BYTES + 1])
async def test_one_by_one_and_at_once_messages_of_every_size_are_stored(
    broker: Broker, body_bytes: int
) -> None:
    request = b"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % body_bytes
    request += b"x" * body_bytes
    wires = [await connect(broker) for _ in range(8)]
    for together in (wires[:1], wires):  # eight at once go into one batch
        for wire in together:
            await wire.send(request)
        assert [await wire.answer() for wire in together] == [(200, "OK")] * len(together)
    for wire in wires:
        wire.close()
    topic = broker.server.broker.topics["t"]
    assert (topic.message_count, topic.message_bytes) == (9, 9 * body_bytes)


@pytest.mark.parametrize(
    ("version", "more", "connection_header"),
    [
        ("1.1", "", None),
        ("1.1", "Connection: close\r\n", "close"),
        ("1.0", "", None),
        ("1.0", "Connection: keep-alive\r\n", "keep-alive"),
    ],
)
async def test_ok_has_its_headers_on_every_kind_of_connection(
    wire: Wire, version: str, more: str, connection_header: str | None
) -> None:
    ask = f"POST /pub?topic=t HTTP/{version}\r\nHost: x\r\n{more}Content-Length: 1\r\n\r\nx"
    await wire.send(ask.encode())
    head, headers = await wire.head()
    assert head.endswith("200 OK")
    assert headers.pop("Connection", None) == connection_header
    assert headers.pop("Server").startswith("martlet/")
    assert parsedate_to_datetime(headers.pop("Date")).year >= 2024
    assert headers == {
        "X-NSQ-Content-Type": "nsq; version=1.0",
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": "2",
    }


async def test_a_broker_that_takes_no_writes_says_so_everywhere(broker: Broker, wire: Wire) -> None:
    async def ask(request: str) -> tuple[int, str]:
        await wire.send(f"{request} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx".encode())
        return await wire.answer()

    assert await ask("POST /pub?topic=t") == (200, "OK")
    broker.server.broker.log.flush_failed(OSError(5, "Input/output error"))
    status, body = await ask("GET /ping")
    assert status == 500
    assert body.startswith("NOK - flushing the log failed: [Errno 5] Input/output error")
    for request in ("POST /pub?topic=t", "POST /mpub?topic=t", "POST /pub?topic=new"):
        status, body = await ask(request)
        assert status == 503
        assert json.loads(body)["message"].startswith("PUB_FAILED flushing the log failed")
    status, body = await ask("POST /channel/create?topic=t&channel=c")
    assert status == 503
    assert json.loads(body)["message"].startswith("REFUSED flushing the log failed")
    status, body = await ask("GET /stats?format=json")
    assert json.loads(body)["health"].startswith("NOK - ")
    assert [topic["topic_name"] for topic in json.loads(body)["topics"]] == ["t"]
