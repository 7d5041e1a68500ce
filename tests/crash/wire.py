"""NSQ's protocol over a plain socket, for tests that want to see and send every byte.

Nothing of Martlet's own client or codecs is used here: a mistake in them must not hide one of the
broker.
"""

from __future__ import annotations

import asyncio
import json
import struct
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Self

RESPONSE, ERROR, MESSAGE = 0, 1, 2
ANSWER_S = 60.0
"""How long any answer may take."""
HEARTBEAT = b"_heartbeat_"
GONE = (ConnectionError, asyncio.IncompleteReadError)
"""Errors of a connection whose broker has gone."""


class Frame(NamedTuple):
    """A frame as it came."""

    type: int
    data: bytes


class Message(NamedTuple):
    """A message as it came."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class Refused(Exception):
    """The broker answered with an error."""


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def pub(topic: str, body: bytes) -> bytes:
    return b"PUB %b\n%b%b" % (topic.encode(), u32(len(body)), body)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    return b"DPUB %b %d\n%b%b" % (topic.encode(), delay_ms, u32(len(body)), body)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    inner = u32(len(bodies)) + b"".join(u32(len(body)) + body for body in bodies)
    return b"MPUB %b\n%b%b" % (topic.encode(), u32(len(inner)), inner)


def message(frame: Frame) -> Message:
    assert frame.type == MESSAGE, frame
    timestamp_ns, attempts, id = struct.unpack_from(">qH16s", frame.data)
    return Message(timestamp_ns, attempts, id, frame.data[26:])


class Wire:
    """A connection to a broker's TCP port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._head: tuple[int, int] | None = None

    @classmethod
    async def open(cls, address: str, *, magic: bytes = b"  V2") -> Self:
        host, _, port = address.rpartition(":")
        wire = cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))
        wire.send(magic)
        return wire

    @classmethod
    async def subscribed(cls, address: str, topic: str, channel: str, **fields: object) -> Self:
        """A connection that consumes."""
        wire = await cls.open(address)
        try:
            if fields:
                await wire.identify(**fields)
            wire.send(f"SUB {topic} {channel}\n".encode())
            await wire.ok()
        except BaseException:
            wire.close()
            raise
        return wire

    async def identify(self, **fields: object) -> None:
        body = json.dumps(fields).encode()
        self.send(b"IDENTIFY\n" + u32(len(body)) + body)
        await self.ok()

    def send(self, data: bytes) -> None:
        """Send, unless the connection has gone, which reading shows."""
        if not self.writer.is_closing():
            self.writer.write(data)

    async def frame(self) -> Frame:
        """The next frame, heartbeats included. May be cancelled and called again."""
        async with asyncio.timeout(ANSWER_S):
            if self._head is None:
                self._head = struct.unpack(">II", await self.reader.readexactly(8))
            size, type = self._head
            data = await self.reader.readexactly(size - 4)
        self._head = None
        return Frame(type, data)

    async def answer(self) -> Frame:
        """The next frame that is no heartbeat; heartbeats are answered."""
        while (frame := await self.frame()) == Frame(RESPONSE, HEARTBEAT):
            self.send(b"NOP\n")
        return frame

    async def ok(self) -> None:
        frame = await self.answer()
        if frame != Frame(RESPONSE, b"OK"):
            raise Refused(frame.data.decode(errors="replace"))

    async def message(self) -> Message:
        return message(await self.answer())

    async def silent(self, seconds: float) -> bool:
        """Whether nothing but heartbeats comes for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.answer()
        except TimeoutError:
            return True
        return False

    async def ended(self) -> bytes:
        """All that still comes until the broker closes the connection."""
        async with asyncio.timeout(ANSWER_S):
            try:
                return await self.reader.read(-1)
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.transport.abort()


class HttpRefused(Exception):
    """Another status than 200, with the message of a JSON answer, or the whole of another."""

    def __init__(self, status: int, text: str) -> None:
        if text.startswith("{"):
            text = json.loads(text)["message"]
        super().__init__(f"{status} {text}")


def http_now(address: str, target: str, body: bytes | None = None) -> bytes:
    """GET, or POST where there is a body, and wait. Raises HttpRefused, OSError."""
    request = urllib.request.Request(f"http://{address}{target}", body)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        with error:
            raise HttpRefused(error.code, error.read().decode(errors="replace")) from None


async def http(address: str, target: str, body: bytes | None = None) -> bytes:
    """GET, or POST where there is a body, beside what else runs."""
    return await asyncio.to_thread(http_now, address, target, body)


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll a broker until a condition holds."""
    async with asyncio.timeout(ANSWER_S):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def channels_of(address: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the stats of each channel."""
    report = json.loads(await http(address, "/stats?format=json"))
    return {
        (topic["topic_name"], channel["channel_name"]): channel
        for topic in report["topics"]
        for channel in topic["channels"]
    }


async def drain(
    address: str,
    http_address: str,
    topic: str,
    channel: str,
    *,
    idle_s: float = 0.3,
    rdy: int = 100,
) -> list[Message]:
    """Finish all that a channel has, until it says that nothing is left."""
    wire = await Wire.subscribed(address, topic, channel)
    wire.send(f"RDY {rdy}\n".encode())
    got: list[Message] = []
    while True:
        try:
            async with asyncio.timeout(idle_s):
                frame = await wire.answer()
        except TimeoutError:
            state = (await channels_of(http_address))[topic, channel]
            if not (state["depth"] or state["in_flight_count"] or state["deferred_count"]):
                break
            continue
        got.append(message(frame))
        wire.send(b"FIN %b\n" % got[-1].id)
    wire.close()
    return got
