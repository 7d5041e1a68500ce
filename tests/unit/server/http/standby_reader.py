"""A primary and a standby in one process, and a reader that asks both over HTTP."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from tests.property.log.feed import feed
from tests.unit.broker.core import SEGMENT_BYTES, Core

from martlet.broker.recovery.restore import BrokerRecovery
from martlet.log.copy import CopiedLog, open_copy
from martlet.log.record import (
    FRAME_HEADER_BYTES,
    Header,
    frame_ends,
    payload,
    read_record,
)
from martlet.options import BrokerOptions
from martlet.server.data_folder import open_folder
from martlet.server.http.log_api import CopiedState, LogApi, standby_routes
from martlet.server.http.request import Routes
from martlet.server.http.server import HttpServer
from martlet.server.listening_socket import listen, shown

ID_BYTES = 16


class Pair:
    """A primary, which confirms what its standby has, and the standby.

    Attributes:
        core: the primary.
        copy, recovery, confirmed_position: of the standby.
        is_standby: whether it is one.
    """

    def __init__(self, folder: Path) -> None:
        self.dice = Random(1)
        self.core = Core()
        self.core.broker.await_confirmation(self.core.broker.log.position)
        log = logging.getLogger("test")
        self._folders = [open_folder(folder / name, BrokerOptions(), log, "id") for name in "ab"]
        self.copy: CopiedLog = open_copy(self._folders[1].storage)[0]
        self.recovery: BrokerRecovery | None = None
        self.confirmed_position = 0
        self.is_standby = True

    def ship(self, max_bytes: int = 1 << 40) -> None:
        """Bring the copy nearer to the primary's end."""
        feed(self.core.broker.log, self.copy, self.dice, max_bytes)

    def confirm(self) -> None:
        """The standby acknowledges what it has, and the primary confirms it."""
        self.confirmed_position = max(self.confirmed_position, self.copy.end_position)
        broker = self.core.broker
        broker.confirm(max(broker.confirmed_position, self.confirmed_position))

    def recover(self) -> BrokerRecovery:
        """Build the standby's state anew."""
        copy = self.copy
        self.recovery = BrokerRecovery(copy.storage, copy.segments, SEGMENT_BYTES, copy=copy)
        return self.recovery

    def take_in(self) -> None:
        """The standby's state follows what is confirmed."""
        if self.recovery is None or not self.recovery.is_usable:
            self.recover()
        assert self.recovery is not None
        if self.confirmed_position > self.recovery.position:
            self.recovery.follow(self.confirmed_position)

    def follow(self) -> None:
        """The standby gets everything, and takes it in."""
        self.ship()
        self.confirm()
        self.take_in()

    def save(self) -> bool:
        """Save the standby's checkpoint, where there is one."""
        assert self.recovery is not None
        job = self.copy.flush_job()
        job.run()
        self.copy.flushed(job)
        checkpoint = self.recovery.take_checkpoint(self.copy.durable_position)
        if checkpoint is not None:
            checkpoint.save(self.copy.storage)
            self.recovery.saved(checkpoint)
        return checkpoint is not None

    def retire(self) -> None:
        """The primary makes a checkpoint, and says in its log which segments nothing needs."""
        self.core.broker.write_journal()
        self.core.checkpoint()
        self.core.broker.write_journal()

    def reopen(self) -> None:
        """The standby's process is killed and starts again."""
        self.copy = open_copy(self.copy.storage)[0]
        self.recovery = None

    def current(self) -> CopiedState | None:
        if not self.is_standby:
            return None
        return CopiedState(self.copy, self.recovery, self.confirmed_position)

    def routes(self) -> tuple[Routes, Routes]:
        """The endpoints of the primary and of the standby."""
        primary, standby = self._folders
        return (
            LogApi(lambda: self.core.broker, primary).routes(),
            standby_routes(standby, self.current, list),
        )

    def close(self) -> None:
        for folder in self._folders:
            folder.close()


class HttpReader:
    """Ask the server at an address."""

    def __init__(self, address: str, session: aiohttp.ClientSession) -> None:
        self.address = address
        self._session = session

    async def get(self, path: str, **arguments: object) -> tuple[int, bytes]:
        return await self._ask("GET", path, arguments)

    async def json(self, path: str, **arguments: object) -> Any:
        status, body = await self.get(path, **arguments)
        assert status == 200, body
        return json.loads(body)

    async def post(self, path: str, data: bytes = b"", **arguments: object) -> tuple[int, bytes]:
        return await self._ask("POST", path, arguments, data=data)

    async def _ask(
        self, method: str, path: str, arguments: dict[str, object], **more: Any
    ) -> tuple[int, bytes]:
        url = f"http://{self.address}{path}"
        params = {name: str(value) for name, value in arguments.items()}
        async with self._session.request(method, url, params=params, **more) as answer:
            return answer.status, await answer.read()


def records_of(data: bytes) -> Iterator[tuple[Header, memoryview]]:
    """The records of an answer, each of which must verify."""
    at = 0
    while at < len(data):
        header, record = read_record(data, at, int.from_bytes(data[at + 16 : at + 24], "little"))
        yield header, record
        at += header.length


def messages_of(data: bytes) -> dict[int, bytes]:
    """By offset: the id and the body of each message of some records."""
    messages: dict[int, bytes] = {}
    for header, record in records_of(data):
        begin, frames = 0, payload(header, record)
        for number, end in enumerate(frame_ends(header, record).tolist()):
            message = frames[begin + FRAME_HEADER_BYTES - ID_BYTES : end]
            messages[header.first_offset + number] = bytes(message)
            begin = end
    return messages


@asynccontextmanager
async def serving(*routes: Routes) -> AsyncIterator[list[HttpReader]]:
    """A reader of each server."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        readers = []
        for route in routes:
            server = HttpServer(route)
            sock = listen("127.0.0.1:0", "--http-address")
            await server.start(sock)
            stack.push_async_callback(server.stop)
            readers.append(HttpReader(shown(sock), session))
        yield readers
