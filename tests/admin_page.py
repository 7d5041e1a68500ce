"""The admin page inside a test, in front of real brokers and a lookup daemon."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from html.parser import HTMLParser
from typing import Any, NamedTuple

import aiohttp
import jinja2
import pytest
from jinja2.bccache import Bucket, BytecodeCache
from yarl import URL

from martlet.client import Producer
from martlet.console.server import AdminServer
from martlet.lookup.daemon import Lookup
from martlet.options import LookupOptions
from martlet.options.admin import AdminOptions
from martlet.testing import Broker, BrokerProcess

INTERVAL_NS = 100_000_000
"""The least that the option allows: tests wait for looks."""
LOOPBACK = "127.0.0.1:0"
EVENTS = {"Accept": "text/event-stream"}


class Compiled(BytecodeCache):
    """The templates that a page of this process has compiled: to do that takes most of its time."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if code := self._code.get(bucket.key):
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


COMPILED = Compiled()


class Answer(NamedTuple):
    """What a page answers."""

    status: int
    text: str
    headers: Mapping[str, str]


class Page:
    """A running page, and a client of it.

    Args:
        server: of the page.
        session: of the client.
    """

    def __init__(self, server: AdminServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session
        self.url = f"http://{server.address}{server.options.prefix}"

    async def ask(self, method: str, path: str, data: Any = None, **headers: str) -> Answer:
        """Send a request whose path is encoded, and follow no redirect."""
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method, url, data=data, headers=headers, allow_redirects=False
        ) as answer:
            return Answer(answer.status, await answer.text(), answer.headers)

    async def get(self, path: str, status: int = 200) -> str:
        """Return a page, which is answered with that status."""
        async with self.session.get(self.url + path) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def act(self, action: str, status: int = 200, **fields: Any) -> str:
        """Send the form of an action, and return the page that follows."""
        form = aiohttp.FormData([("action", action)])
        for name, value in fields.items():
            for each in [value] if isinstance(value, str) else value:
                form.add_field(name, each)
        async with self.session.post(f"{self.url}/act", data=form) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    @asynccontextmanager
    async def events(self, path: str) -> AsyncIterator[AsyncIterator[str]]:
        """Follow a page: yields its region after each look at the brokers."""
        async with self.session.get(self.url + path, headers=EVENTS) as answer:
            assert answer.content_type == "text/event-stream"
            yield _events(answer)


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    lines: list[str] = []
    async for line in answer.content:
        if line.strip():
            lines.append(line.decode().removeprefix("data: "))
        else:
            yield "".join(lines)
            lines = []


async def until(regions: AsyncIterator[str], text: str) -> str:
    """Return the first region that has a text; a test's time limit is its end."""
    async for region in regions:
        if text in region:
            return region
    raise AssertionError(f"the stream ended without {text!r}")


@asynccontextmanager
async def page_of(
    brokers: Sequence[str | Broker | BrokerProcess] = (), *, lookup: str = "", **options: Any
) -> AsyncIterator[Page]:
    """Start the page for brokers, some by their HTTP addresses, or for a lookup daemon."""
    addresses = [one if isinstance(one, str) else one.http_address for one in brokers]
    settings = AdminOptions(
        nsqd_http_addresses=tuple(addresses),
        lookupd_http_addresses=(lookup,) if lookup else (),
        **{"http_address": LOOPBACK, "poll_interval_ns": INTERVAL_NS, **options},
    )
    server = AdminServer(settings, logging.getLogger("martlet"))
    with pytest.MonkeyPatch.context() as patch:
        cached = partial(jinja2.Environment, bytecode_cache=COMPILED)
        patch.setattr("martlet.console.site.jinja2.Environment", cached)
        await server.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Page(server, session)
    finally:
        await server.stop()


@asynccontextmanager
async def lookup_daemon() -> AsyncIterator[Lookup]:
    daemon = Lookup(LookupOptions(tcp_address=LOOPBACK, http_address=LOOPBACK))
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.stop()


@asynccontextmanager
async def broker_of(count: int, *, lookup: str = "") -> AsyncIterator[Broker]:
    """A broker with so many messages in the topic orders, with the channel work."""
    lookups: dict[str, Any] = {"lookupd_tcp_addresses": (lookup,)} if lookup else {}
    async with Broker(broadcast_address="127.0.0.1", **lookups) as broker:
        await change(broker.http_address, "/topic/create?topic=orders")
        await change(broker.http_address, "/channel/create?topic=orders&channel=work")
        await publish(broker, "orders", count)
        yield broker


@asynccontextmanager
async def looked_up(count: int, **options: Any) -> AsyncIterator[tuple[Lookup, Broker, Page]]:
    """A lookup daemon, a broker with so many messages that it knows, and a page that asks it."""
    async with (
        lookup_daemon() as lookup,
        broker_of(count, lookup=lookup.tcp_address) as broker,
        page_of(lookup=lookup.http_address, **options) as page,
    ):
        yield lookup, broker, page


@asynccontextmanager
async def two_brokers(*, lookup: str = "") -> AsyncIterator[list[Broker]]:
    """Two brokers with 3 and 2 messages."""
    async with broker_of(3, lookup=lookup) as first, broker_of(2, lookup=lookup) as second:
        yield [first, second]


async def publish(broker: Broker, topic: str, count: int) -> None:
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many(topic, [b"a body"] * count)


@asynccontextmanager
async def consumer_of(broker: Broker, **identity: str) -> AsyncIterator[None]:
    """Connect a consumer of work that says of itself what it likes, and takes no message."""
    host, _, port = broker.tcp_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        words = json.dumps(identity).encode()
        writer.write(b"  V2IDENTIFY\n" + struct.pack(">l", len(words)) + words)
        writer.write(b"SUB orders work\n")
        for _ in range(2):
            (size,) = struct.unpack(">l", await reader.readexactly(4))
            answer = await reader.readexactly(size)
            assert answer[:4] == b"\0\0\0\0", answer
        yield
    finally:
        writer.close()
        await writer.wait_closed()


async def change(address: str, path: str) -> None:
    """Tell a broker something over HTTP, as an operator does."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address}{path}") as answer,
    ):
        assert answer.status == 200, await answer.text()


async def counts(broker: Broker, topic: str) -> dict[str, Any]:
    """Return what a broker says of a topic; an empty dictionary if it has none."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{broker.http_address}/stats?format=json&topic={topic}") as answer,
    ):
        topics = (await answer.json())["topics"]
    return dict(topics[0]) if topics else {}


class Links(HTMLParser):
    """Collects the addresses that a page links to, loads and posts to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "action", "data-plot", "hx-sse:connect") and value:
                self.found.add(value)
