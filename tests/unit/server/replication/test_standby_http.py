"""HTTP at a standby."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from tests.unit.server.replication.test_link import Owner

from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.replication.link import ReplicaLink, connect
from martlet.server.replication.standby_http import Forwarder, StandbyRoutes
from martlet.server.replication.trust import LinkTrust


async def own(request: Request) -> object:
    return "own"


async def forward(request: Request) -> object:
    return "forwarded"


def test_a_standby_answers_its_own_and_those_of_the_node_that_runs_then() -> None:
    of_node: Routes = {}
    routes = StandbyRoutes({"/ping": {"GET": own}}, lambda: of_node, forward)
    assert routes["/ping"]["GET"] is own
    assert routes["/log/topics"]["GET"] is forward
    of_node = {"/log/topics": {"GET": own}}
    assert routes["/log/topics"]["GET"] is own
    assert routes["/pub"]["POST"] is forward
    assert (list(routes), len(routes)) == (["/ping", "/log/topics"], 2)


class Primary:
    """A primary of an epoch that answers a request once it may."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.was_asked.set()
        await self.may_answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
        writer.close()

    async def connect(self, is_operators: bool) -> tuple[ReplicaLink, int]:
        trust, log = LinkTrust(), logging.getLogger("martlet")
        link = await connect(
            self.address, trust, lambda: ReplicaLink(Owner(), trust, log, is_acceptor=False)
        )
        return link, self.epoch


@asynccontextmanager
async def standby_of(primary: Primary) -> AsyncIterator[tuple[Forwarder, str]]:
    """Serve as a standby does; yields its forwarder and its URL."""
    forwarder = Forwarder(primary.connect, lambda: False, 1 << 20)

    async def answer(base: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await forwarder.forward(Request(base))
        except HttpError as error:
            return web.Response(status=error.status, text=str(error.fields["detail"]))
        assert isinstance(response, web.StreamResponse)
        return response

    server = await asyncio.start_server(primary.serve, "127.0.0.1", 0)
    primary.address = "{}:{}".format(*server.sockets[0].getsockname())
    async with server, RawTestServer(answer) as standby:
        yield forwarder, str(standby.make_url("/pub?topic=t"))
        await forwarder.close()


async def test_a_request_to_the_new_primary_goes_on_when_its_epoch_is_learned() -> None:
    """The primary may answer SPLICE before the standby has read of its election."""
    primary = Primary(epoch=3)
    async with standby_of(primary) as (forwarder, url), aiohttp.ClientSession() as client:
        request = asyncio.create_task(client.get(url))
        await primary.was_asked.wait()
        forwarder.epoch_began(3)
        primary.may_answer.set()
        answer = await request
        assert (answer.status, await answer.text()) == (200, "OK")


async def test_a_request_to_an_earlier_primary_ends_with_its_epoch() -> None:
    primary = Primary(epoch=3)
    async with standby_of(primary) as (forwarder, url), aiohttp.ClientSession() as client:
        request = asyncio.create_task(client.get(url))
        await primary.was_asked.wait()
        forwarder.epoch_began(4)
        answer = await request
        primary.may_answer.set()
        assert answer.status == 502
        assert "it may have been done: another replica is primary now" in await answer.text()
