"""A broker that follows a script: answers, stays silent, hangs up, sends messages."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from martlet.testing.ports import free_port

WITH_BODY = {"IDENTIFY", "AUTH", "PUB", "MPUB", "DPUB", "SEND"}


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">II", 4 + len(data), kind) + data


def message_frame(body: bytes, *, number: int = 0, attempts: int = 1, stamp: int = 0) -> bytes:
    return frame(2, struct.pack(">qH16s", stamp, attempts, b"%016x" % number) + body)


@dataclass
class Command:
    """A command as it came: its words, and the bodies of a publish."""

    words: list[str]
    bodies: list[bytes]
    peer: Peer

    @property
    def name(self) -> str:
        return self.words[0]


class Peer:
    """One connection, as the broker sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_gone = False

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def answer(self, data: bytes = b"OK") -> None:
        self.send(frame(0, data))

    def fail(self, data: bytes) -> None:
        """Answer an error, and hang up if a broker would."""
        self.send(frame(1, data))
        if data.split()[0] not in {b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"}:
            self.hang_up()

    def hang_up(self) -> None:
        self.is_gone = True
        self._writer.close()

    async def command(self) -> Command:
        words = (await self._reader.readuntil(b"\n")).decode().split()
        bodies: list[bytes] = []
        if words[0] in WITH_BODY:
            body = await self._reader.readexactly(await self._size())
            bodies = self._cut(body) if words[0] == "MPUB" else [body]
        return Command(words, bodies, self)

    async def _size(self) -> int:
        return int.from_bytes(await self._reader.readexactly(4), "big")

    def _cut(self, body: bytes) -> list[bytes]:
        position, bodies = 4, []
        for _ in range(int.from_bytes(body[:4], "big")):
            size = int.from_bytes(body[position : position + 4], "big")
            bodies.append(body[position + 4 : position + 4 + size])
            position += 4 + size
        assert position == len(body)
        return bodies


Script = Callable[[Command], Awaitable[bool]]
"""Handle a command, and return whether it did; otherwise the broker does as any broker."""


async def as_any_broker(_command: Command) -> bool:
    return False


def at(*wanted: str | bytes, act: Callable[[Peer], object], times: float = math.inf) -> Script:
    """Act at commands of these names and with these bodies, so often."""

    async def script(command: Command) -> bool:
        nonlocal times
        if not times or {command.name, *command.bodies}.isdisjoint(wanted):
            return False
        times -= 1
        act(command.peer)
        return True

    return script


def silent_at(*wanted: str | bytes) -> Script:
    return at(*wanted, act=lambda _peer: None)


class Mood:
    """A script that stores, refuses or holds publishes, or hangs up, as the test sets it."""

    def __init__(self, does: Literal["store", "refuse", "hang up", "hold"] = "store") -> None:
        self.does = does
        self.held: list[Command] = []

    async def __call__(self, command: Command) -> bool:
        if command.name not in {"PUB", "MPUB", "DPUB"} or self.does == "store":
            return False
        if self.does == "refuse":
            command.peer.fail(f"E_{command.name}_FAILED {command.name} failed disk full".encode())
        elif self.does == "hang up":
            command.peer.hang_up()
        else:
            self.held.append(command)
        return True

    def answer(self) -> None:
        while self.held:
            self.held.pop(0).peer.answer()


class ScriptedBroker:
    """Attributes: what came (without IDENTIFY and NOP), and the connections, in order."""

    def __init__(self, script: Script = as_any_broker, **features: object) -> None:
        self.commands: list[Command] = []
        self.identities: list[dict[str, object]] = []
        self.nops = 0
        self.peers: list[Peer] = []
        self.script = script
        self._features: dict[str, object] = {
            "max_rdy_count": 2500,
            "version": "scripted",
            "msg_timeout": 60_000,
        }
        self._features.update(features)
        self._news = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = free_port()  # It listens there again after ``go_away``.

    async def __aenter__(self) -> ScriptedBroker:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.go_away()

    async def listen(self) -> None:
        """Listen, again on the same port after ``go_away``."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def go_away(self) -> None:
        """Hang up everywhere and listen no more."""
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.hang_up()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def names(self) -> list[str]:
        return [command.name for command in self.commands]

    def named(self, *names: str) -> list[Command]:
        return [command for command in self.commands if command.name in names]

    def bodies(self) -> list[bytes]:
        return [body for command in self.commands for body in command.bodies]

    def ready_counts(self) -> list[int]:
        return [int(command.words[1]) for command in self.named("RDY")]

    def answered(self, name: str) -> list[int]:
        """The numbers of the messages that were answered so, by FIN or REQ."""
        return [int(command.words[1], 16) for command in self.named(name)]

    def deliver(self, *numbers: int, attempts: int = 1) -> None:
        """Send messages with these numbers to who connected last."""
        self.peers[-1].send(
            b"".join(
                message_frame(b"body %d" % number, number=number, attempts=attempts)
                for number in numbers
            )
        )

    async def until(self, condition: Callable[[], object], *, timeout_s: float = 100) -> None:
        """Wait until a command has come that makes it true."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: bool(condition()))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            assert await reader.readexactly(4) == b"  V2"
            while not peer.is_gone:
                await self._obey(await peer.command())
                async with self._news:
                    self._news.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _obey(self, command: Command) -> None:
        if command.name == "NOP":
            self.nops += 1
            return
        if command.name == "IDENTIFY":
            self.identities.append(json.loads(command.bodies[0]))
        else:
            self.commands.append(command)
        if await self.script(command):
            return
        if command.name == "IDENTIFY":
            command.peer.answer(json.dumps(self._features).encode())
        elif command.name in {"SUB", "PUB", "MPUB", "DPUB"}:
            command.peer.answer()
        elif command.name == "CLS":
            command.peer.answer(b"CLOSE_WAIT")
