"""A connection that calls, with no code of Martlet's client."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from martlet.protocol.nsq import commands

ANSWER = 17


class Caller:
    """A connection that calls, and hears one answer at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(50):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            frame = await self._reader.readexactly(size)
        return int.from_bytes(frame[:4], "big"), frame[4:]

    async def identify(self, **fields: Any) -> None:
        identity = {"feature_negotiation": True, "martlet": True, **fields}
        self.writer.write(commands.MAGIC + commands.identify(identity))
        await self.frame()

    async def call(self, method: str, **fields: Any) -> dict[str, Any]:
        self.writer.write(commands.call(1, method, fields))
        kind, body = await self.frame()
        assert kind == ANSWER
        size = int.from_bytes(body[4:8], "big")
        return dict(json.loads(body[8 : 8 + size]))

    async def send(self, topic: str, **options: Any) -> dict[str, Any]:
        self.writer.write(commands.send(topic, [b"x"], options))
        return dict(json.loads((await self.frame())[1]))


@asynccontextmanager
async def caller(
    where: str | socket.socket, secret: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Caller]:
    """Connect to an address, to the path of a Unix socket, or over a socket, and identify."""
    if isinstance(where, socket.socket):
        opened = await asyncio.open_connection(sock=where)
    elif "/" in where:
        opened = await asyncio.open_unix_connection(where)
    else:
        host, _, port = where.rpartition(":")
        opened = await asyncio.open_connection(host, int(port))
    made = Caller(*opened)
    await made.identify(tls_v1=tls is not None)
    if tls is not None:
        await made.writer.start_tls(tls, server_hostname="localhost")
        assert (await made.frame())[1] == b"OK"
    if secret:
        made.writer.write(commands.auth(secret.encode()))
        await made.frame()
    try:
        yield made
    finally:
        made.writer.close()
        await made.writer.wait_closed()
