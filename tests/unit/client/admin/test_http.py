"""Requests to brokers and lookup daemons: what goes out, and what failures look like."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.interop.certificates import Certificates

from martlet.client import Admin, Closed, Tls
from martlet.client.admin import AdminError, AdminNotFound, AdminSettings, AdminUnreachable
from martlet.client.admin.http import _is_for_operators
from martlet.server.http.access import ROUTES, Access, access_to
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
        self.answer = answer
        self._status = status

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, request.headers.get("Authorization")))
        return web.json_response(self.answer, status=self._status)


@asynccontextmanager
async def looked_up(*brokers: tuple[object, object]) -> AsyncIterator[str]:
    """A lookup daemon that knows brokers, by their hosts and HTTP ports."""
    producers = [{"broadcast_address": host, "http_port": port} for host, port in brokers]
    async with served(Recorded({"producers": producers})) as daemon:
        yield daemon


def host_and_port(address: str) -> tuple[str, int]:
    host, port = address.split(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("trusted", "token"),
    [
        ((), None),
        (("127.0.0.0/8",), "Bearer secret"),
        (("10.0.0.0/8", "localhost"), None),
    ],
)
async def test_the_token_goes_to_brokers_of_a_lookup_daemon_that_are_trusted(
    trusted: tuple[str, ...], token: str | None
) -> None:
    broker = Recorded({"replica": "a"})
    lookup = Recorded()
    async with served(broker) as address, served(lookup) as daemon:
        host, port = host_and_port(address)
        lookup.answer = {"producers": [{"broadcast_address": host, "http_port": port}]}
        settings = AdminSettings(operator_token="secret", trusted_brokers=trusted)
        async with Admin(lookupd_http_addresses=[daemon], settings=settings) as admin:
            await admin.http.call_each("topic.list", {})
            await admin.at(f"http://{address}").http.call_each("topic.list", {})
        assert lookup.requests == [("/nodes", None)]
        assert [sent for _, sent in broker.requests] == [token, token]


async def test_the_token_goes_to_a_named_broker_for_what_is_for_operators_alone() -> None:
    broker = Recorded()
    async with served(broker) as address, Admin(address, operator_token="secret") as admin:
        await admin.topics.list()
        await admin.nodes.health()
        await admin.http.post(f"http://{address}", "/topic/create", {"topic": "t"})
        await admin.http.call_each("topic.list", {})
        await admin.http.get(f"http://{address}", "/replica", {})
        await admin.http.get(f"http://{address}", "/channel/peek", {})
    assert [token for _, token in broker.requests] == [None] * 3 + ["Bearer secret"] * 3


def test_each_route_for_operators_gets_the_token() -> None:
    """As far as this client asks for it."""
    paths = [path for path in ROUTES if not path.startswith(("/log/", "/debug/"))]
    paths.remove("/channel/advance")
    for path in paths:
        assert _is_for_operators(path) is (access_to(path) is Access.OPERATORS), path


async def test_a_broker_that_gets_no_token_is_refused_with_the_reason() -> None:
    refused = Recorded({"message": "OPERATOR_TOKEN_MISSING"}, 401)
    async with (
        served(refused) as address,
        looked_up(host_and_port(address)) as daemon,
        Admin(lookupd_http_addresses=[daemon], operator_token="secret") as admin,
    ):
        with pytest.raises(AdminError, match=r"MISSING; no operator's token.*--trusted-broker"):
            await admin.http.call_each("topic.list", {})


@pytest.mark.parametrize(
    "host",
    [
        "{own}/admin/shutdown?confirm=yes&x=",
        "{own}/#",
        "x@{own}",
        "127.0.0.1/x",
        "127.0.0.1#",
        "127.0.0.1\r\nX-Y: z",
        "127.0.0.1%2f",
        "\uff11\uff12\uff17.0.0.1",
        "[127.0.0.1]",
        "2130706433",
        "",
        None,
        7,
    ],
)
async def test_a_broker_whose_address_is_none_is_not_asked(host: object) -> None:
    victim, broker = Recorded(), Recorded()
    async with served(victim) as own, served(broker) as good:
        host = host.format(own=own) if isinstance(host, str) else host
        async with (
            looked_up((host, host_and_port(own)[1]), host_and_port(good)) as daemon,
            Admin(lookupd_http_addresses=[daemon]) as admin,
        ):
            answers = await admin.topics.list()
    assert list(answers.values) == [f"http://{good}"]
    (error,) = answers.errors.values()
    assert "is not asked" in error.why
    assert victim.requests == []


@pytest.mark.parametrize("port", [0, -1, 65536, 10**30, "4151/x", None, True, 1.5])
async def test_a_broker_whose_port_is_none_is_not_asked(port: object) -> None:
    async with (
        looked_up(("127.0.0.1", port)) as daemon,
        Admin(lookupd_http_addresses=[daemon]) as admin,
    ):
        with pytest.raises(AdminError, match="is not asked"):
            await admin.topics.list()


def tls_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    return context


async def test_a_broker_that_wants_https_is_asked_there_and_gets_the_token_nowhere_else(
    certificates: Certificates,
) -> None:
    secure = Recorded({})
    async with served(secure, tls_context(certificates)) as https:
        plain = Recorded({"message": "TLS_REQUIRED", "https_port": host_and_port(https)[1]}, 403)
        async with (
            served(plain) as address,
            Admin(
                f"http://{address}",
                tls=Tls(ca_file=certificates.authority),
                operator_token="secret",
            ) as admin,
        ):
            for _ in range(2):
                await admin.http.call_each("topic.list", {})
            await admin.http.get(f"http://{address}", "/info", {})
    assert plain.requests == [("/call/topic.list", None)]
    assert [token for _, token in secure.requests] == ["Bearer secret"] * 2 + [None]


async def test_a_broker_that_wants_no_https_gets_the_token_once_it_asks_for_one(
    certificates: Certificates,
) -> None:
    tokens: list[str | None] = []

    async def broker(request: web.Request) -> web.Response:
        tokens.append(request.headers.get("Authorization"))
        return web.json_response({}, status=200 if tokens[-1] else 401)

    async with (
        served(broker) as address,
        Admin(
            f"http://{address}", tls=Tls(ca_file=certificates.authority), operator_token="secret"
        ) as admin,
    ):
        for _ in range(2):
            await admin.http.call_each("topic.list", {})
    assert tokens == [None, "Bearer secret", "Bearer secret"]


@pytest.mark.parametrize("port", [0, -1, 65536, "1", None, True])
async def test_a_refusal_without_an_https_port_is_one(port: object) -> None:
    refused = Recorded({"message": "TLS_REQUIRED", "https_port": port}, 403)
    async with served(refused) as address, Admin(address) as admin:
        with pytest.raises(AdminError, match="TLS_REQUIRED"):
            await admin.topics.list()
    assert len(refused.requests) == 1


async def test_https_needs_a_trusted_certificate(certificates: Certificates) -> None:
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
    counts = dict.fromkeys(("depth", "backend_depth", "message_count"), 0)
    topics = {**STATS, "topics": [{"topic_name": 1, "channels": [], **counts}]}
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


async def test_a_fetch_whose_answer_lacks_its_offsets_is_unintelligible() -> None:
    queue = {"queue": 0, "id_base": "0" * 16, "start_offset": 0, "end_offset": 1}
    described = {"topic": "t", "queues": [queue], "channels": []}

    async def broker(request: web.Request) -> web.Response:
        is_fetch = request.path.endswith("topic.fetch")
        return web.json_response({"status": "OFFSET_MOVED"} if is_fetch else described)

    async with served(broker) as address, Admin(address) as admin:
        with pytest.raises(AdminError, match=r"an unintelligible answer to topic\.fetch"):
            await admin.messages.read("t", 0)
