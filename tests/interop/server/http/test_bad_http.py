"""Bad, slow and too large HTTP: its client gets an error, and others do not notice.

Answers of nsqd to well-formed requests are in test_http.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.crash.wire import GONE, channels_of, drain, http, u32
from tests.interop.bystanders import undisturbed
from tests.interop.server.nsq.bad_input_cases import LIMITS

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    with BrokerProcess(None, *LIMITS, "--log-level=error") as process:
        yield process


@pytest.fixture
async def broker(process: BrokerProcess) -> AsyncIterator[BrokerProcess]:
    async with undisturbed(process):
        yield process


async def raw_http(broker: BrokerProcess, data: bytes) -> bytes:
    """All that is answered to these bytes until the broker closes or keeps silent."""
    host, _, port = broker.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answered = b""
    try:
        writer.write(data)
        async with asyncio.timeout(2):
            while piece := await reader.read(1 << 16):
                answered += piece
    except (TimeoutError, *GONE):
        pass
    finally:
        writer.transport.abort()
    return answered


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"  V2PUB t\n" + u32(1) + b"x",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /ping HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /pub?topic=h HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /pub?topic=h HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /pub?topic=h HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /pub?topic=h HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /pub?topic=h HTTP/1.1\r\nContent-Length: many\r\n\r\n",
    ],
    ids=[
        "zeros",
        "another protocol",
        "no path",
        "a version of the future",
        "a long path",
        "many headers",
        "a long header",
        "a length below zero",
        "a length that is no number",
        "a length above the limit",
        "a chunk without a length",
        "TLS",
        "a header without a colon",
        "a length of letters",
    ],
)
async def test_http_garbage_gets_a_client_error(broker: BrokerProcess, data: bytes) -> None:
    answered = await raw_http(broker, data)
    assert answered[:10] in (b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 5"), answered[:200]
    assert ("h", "c") not in await channels_of(broker.http_address)


async def test_slow_http_clients_do_not_hold_up_others(broker: BrokerProcess) -> None:
    host, _, port = broker.http_address.rpartition(":")
    head = b"POST /pub?topic=late HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    pairs = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
    for octet in head + b"ab":
        for _, writer in pairs:
            writer.write(bytes([octet]))
        await asyncio.sleep(0.001)
    assert await http(broker.http_address, "/ping") == b"OK"
    for number, (_, writer) in enumerate(pairs):
        writer.transport.abort() if number else writer.write(b"c")
    assert (await pairs[0][0].readuntil(b"OK")).startswith(b"HTTP/1.1 200 OK")
    pairs[0][1].close()
    got = await drain(broker.tcp_address, broker.http_address, "late", "c")
    assert [message.body for message in got] == [b"abc"]
