"""Brokers that a lookup daemon alone names: which are asked, and which get the operator's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.answering import answering

from martlet.pipeline.audit import AuditOptions, audit
from martlet.pipeline.job import JobFailed
from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import BrokerRefused
from martlet.reader.options import ReadOptions

TOKEN = "0123456789abcdef"
LISTING = {"broker": "b", "data_path": "/nowhere", "topics": []}


class Recorded:
    """A server that answers everything with the same, and keeps the tokens that come."""

    def __init__(self, answer: Any, status: int) -> None:
        self.answer = answer
        self.tokens: list[str | None] = []
        self.address = ""
        self._status = status

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.tokens.append(request.headers.get("Authorization"))
        return web.json_response(self.answer, status=self._status)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


Serve = Callable[..., Awaitable[Recorded]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(answer: Any = LISTING, status: int = 200) -> Recorded:
            server = Recorded(answer, status)
            server.address = await stack.enter_async_context(answering(server.handle))
            return server

        yield start


def node(host: object, port: object, *topics: str) -> dict[str, object]:
    return {"broadcast_address": host, "http_port": port, "tcp_port": 1, "topics": topics}


async def poll(lookup: Recorded, token_file: Path, **options: str) -> None:
    named = {"lookup": lookup.address, "topic": "t", "timeoutMs": "0"}
    named["operatorTokenFile"] = str(token_file)
    brokers = QueryBrokers(ReadOptions.parse(named | options, "batch"))
    try:
        await asyncio.to_thread(lambda: brokers.poll(patient=True))
    finally:
        brokers.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return path


@pytest.mark.parametrize(
    ("trusted", "token"),
    [("", None), ("10.0.0.0/8, localhost", None), ("mq1, 127.0.0.0/8", f"Bearer {TOKEN}")],
)
async def test_a_query_sends_the_token_to_brokers_that_are_trusted(
    serve: Serve, token_file: Path, trusted: str, token: str | None
) -> None:
    broker = await serve()
    lookup = await serve({"producers": [node("127.0.0.1", broker.port)]})
    await poll(lookup, token_file, trustedBrokers=trusted)
    assert (lookup.tokens, broker.tokens) == ([None], [token])


async def test_a_query_sends_the_token_to_brokers_that_its_options_name(
    serve: Serve, token_file: Path
) -> None:
    broker, stranger = await serve(), await serve()
    nodes = [node("127.0.0.1", server.port) for server in (broker, stranger)]
    await poll(await serve({"producers": nodes}), token_file, addresses=broker.address)
    assert (broker.tokens, stranger.tokens) == ([f"Bearer {TOKEN}"], [None])


async def test_a_query_that_is_refused_for_want_of_trust_says_so(
    serve: Serve, token_file: Path
) -> None:
    broker = await serve({"message": "OPERATOR_TOKEN_MISSING"}, 401)
    lookup = await serve({"producers": [node("127.0.0.1", broker.port, "t")]})
    with pytest.raises(BrokerRefused, match=r"no operator's token.*option trustedBrokers"):
        await poll(lookup, token_file)


@pytest.mark.parametrize("host", ["{own}/x?y=", "u@127.0.0.1", "127.0.0.1#", "127.1", "\uff11", 7])
async def test_a_query_asks_no_broker_whose_address_is_none(
    serve: Serve, token_file: Path, host: object
) -> None:
    victim = await serve()
    host = host.format(own=victim.address) if isinstance(host, str) else host
    lookup = await serve({"producers": [node(host, victim.port, "other")]})
    await poll(lookup, token_file)
    assert victim.tokens == []
    lookup.answer = {"producers": [node(host, victim.port, "t")]}
    with pytest.raises(BrokerRefused, match="is no host name or IP address"):
        await poll(lookup, token_file)
    assert victim.tokens == []


def test_a_wrong_broker_to_trust_is_an_error_of_the_option() -> None:
    with pytest.raises(ValueError, match="option trustedBrokers: 'a/b' is no network"):
        ReadOptions.parse({"addresses": "a:1", "topic": "t", "trustedBrokers": "a/b"}, "batch")


async def test_an_audit_asks_no_broker_whose_address_is_none(serve: Serve) -> None:
    victim = await serve()
    lookup = await serve({"producers": [node(f"{victim.address}/x?y=", 80)]})
    options = AuditOptions(lookupd_http_addresses=(lookup.address,), topics=("t",))
    with pytest.raises(JobFailed, match="is no host name or IP address"):
        await asyncio.to_thread(audit, options)
    assert victim.tokens == []
