"""Requests to brokers and lookup daemons: what goes out, and what failures look like."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.interop.certificates import Certificates

from martlet.client import Admin, Closed, Tls
from martlet.client.admin import AdminError, AdminNotFound, AdminUnreachable
from martlet.testing.ports import free_port

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATS = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": None}


@asynccontextmanager
async def served(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve HTTP, or HTTPS; yields the address."""

    async def respond(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    server = TestServer(app, host="127.0.0.1", scheme="https" if context else "http")
    await server.start_server(ssl=context)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


class Recorded:
    """A server that answers everything with the same, and keeps the requests."""

    def __init__(self, answer: Any = STATS, status: int = 200) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self._answer = answer
        self._status = status

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, request.headers.get("Authorization")))
        return web.json_response(self._answer, status=self._status)


async def test_the_token_goes_to_brokers_alone() -> None:
    broker = Recorded()
    async with served(broker) as address:
        host, port = address.split(":")
        producers = [{"broadcast_address": host, "http_port": int(port)}]
        lookup = Recorded({"producers": producers})
        async with (
            served(lookup) as daemon,
            Admin(lookupd_http_addresses=[daemon], operator_token="secret") as admin,
        ):
            answers = await admin.topics.list()
    assert answers.values == {f"http://{address}": ()}
    assert lookup.requests == [("/nodes", None)]
    assert [token for _, token in broker.requests] == ["Bearer secret"]


async def test_https_needs_a_trusted_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    broker = Recorded()
    async with served(broker, context) as address:
        async with Admin(address, tls=Tls(ca_file=certificates.authority)) as admin:
            assert list((await admin.topics.list()).values) == [f"https://{address}"]
        async with Admin(f"https://{address}", tls=True) as admin:
            with pytest.raises(AdminUnreachable, match="certificate verify failed"):
                await admin.topics.list()
        wrong_name = Tls(ca_file=certificates.authority, server_name="elsewhere.example")
        async with Admin(address, tls=wrong_name) as admin:
            with pytest.raises(AdminUnreachable, match=r"elsewhere\.example"):
                await admin.topics.list()
    assert len(broker.requests) == 1


@pytest.mark.parametrize(
    ("answer", "status", "kind", "why"),
    [
        ({"message": "TOPIC_NOT_FOUND"}, 404, AdminNotFound, "there is no topic 't'"),
        ({"message": "no such", "code": "NOT_FOUND"}, 404, AdminNotFound, "no such"),
        ({"message": "NOT_FOUND"}, 404, AdminError, "it has no /topic/pause: is that the right"),
        ({"message": "REFUSED the disk is full"}, 503, AdminError, "the disk is full"),
        ([], 500, AdminError, "status 500"),
    ],
)
async def test_a_refusal_has_its_text(
    answer: object, status: int, kind: type[AdminError], why: str
) -> None:
    async with served(Recorded(answer, status)) as address, Admin(address) as admin:
        with pytest.raises(AdminError, match=why) as refused:
            await admin.topics.pause("t")
    assert type(refused.value) is kind
    assert list(refused.value.errors) == [f"http://{address}"]


async def test_an_unexpected_answer_names_the_path_and_the_field() -> None:
    topics = {**STATS, "topics": [{"topic_name": 1, "channels": []}]}
    async with served(Recorded(topics)) as address, Admin(address) as admin:
        with pytest.raises(AdminError, match=r"unintelligible answer to /stats: .*topic_name: '1'"):
            await admin.topics.list()


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.channels.peek("t", "c"),
        lambda admin: admin.dead_letters.show("t", "c"),
        lambda admin: admin.dead_letters.purge("t", "c", all=True),
        lambda admin: admin.delayed.list("t"),
        lambda admin: admin.channels.replay("t", "c", beginning=True),
        lambda admin: admin.channels.configure("t", "c"),
        lambda admin: admin.transactions.list(),
        lambda admin: admin.nodes.list(),
        lambda admin: admin.replicas.show(),
    ],
)
@pytest.mark.parametrize("answer", [{}, [], None, {"messages": [{}], "count": "x"}])
async def test_any_unexpected_answer_is_an_error_of_the_broker(
    call: Callable[[Admin], Awaitable[object]], answer: object
) -> None:
    async with served(Recorded(answer)) as address, Admin(address) as admin:
        with pytest.raises(AdminError, match="unintelligible answer") as failed:
            await call(admin)
    assert list(failed.value.errors) == [f"http://{address}"]


async def test_a_broker_too_slow_is_given_up() -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        response.content_length = 100
        await response.prepare(request)
        return response

    async with served(stall) as address, Admin(address, request_timeout_s=0.2) as admin:
        with pytest.raises(AdminError, match="no answer in time"):
            await admin.topics.list()


async def test_the_failure_that_tells_more_is_raised() -> None:
    missing = Recorded({"message": "TOPIC_NOT_FOUND"}, 404)
    down = f"127.0.0.1:{free_port()}"
    async with served(missing) as address, Admin([address, down]) as admin:
        with pytest.raises(AdminUnreachable, match=down) as failed:
            await admin.topics.empty("t")
    assert {type(error) for error in failed.value.errors.values()} == {
        AdminNotFound,
        AdminUnreachable,
    }


async def test_addresses_given_twice_are_asked_once() -> None:
    broker = Recorded()
    async with served(broker) as address, Admin([address, f"http://{address}/"]) as admin:
        await admin.topics.list()
    assert len(broker.requests) == 1


async def test_it_is_used_in_its_block() -> None:
    admin = Admin("127.0.0.1:4151")
    with pytest.raises(Closed, match="async with Admin"):
        await admin.topics.list()
    async with admin:
        pass
    with pytest.raises(Closed, match="async with Admin"):
        await admin.topics.list()
