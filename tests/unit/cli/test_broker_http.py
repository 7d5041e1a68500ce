"""How commands ask brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.answering import answering

from martlet.cli.broker_http import BrokerHttpOptions
from martlet.options import OptionError

TOKEN = "0123456789abcdef"


@asynccontextmanager
async def server(answer: object, tokens: list[str]) -> AsyncIterator[str]:
    """A server that keeps the tokens that it gets. Yields its address."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        tokens.append(request.headers.get("Authorization", ""))
        return web.json_response(answer)

    async with answering(handle) as address:
        yield address


async def test_brokers_get_the_token_and_lookup_daemons_do_not(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    at_broker: list[str] = []
    at_daemon: list[str] = []
    answer = {"topic": "t", "pending_count": 0, "messages": [], "next": ""}
    async with server(answer, at_broker) as broker:
        host, _, port = broker.rpartition(":")
        lookup_answer = {"producers": [{"broadcast_address": host, "http_port": int(port)}]}
        async with server(lookup_answer, at_daemon) as daemon:
            options = BrokerHttpOptions(
                lookupd_http_addresses=(daemon,),
                operator_token_file=str(path),
                trusted_brokers=("127.0.0.0/8",),
            )
            async with options.admin() as admin:
                await admin.delayed.list("t")
    assert at_daemon == [""]
    assert at_broker == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize("text", ["", " ", "a", "a:1,b:2", "a:1/", "http://", "http:///x", "a:٣"])
def test_an_address_that_is_none_is_refused_at_once(text: str) -> None:
    with pytest.raises(OptionError, match=r"--address=.* is not <addr>:<port>"):
        BrokerHttpOptions(nsqd_http_addresses=(text,))
    with pytest.raises(OptionError, match=r"--lookup=.* is not <addr>:<port>"):
        BrokerHttpOptions(lookupd_http_addresses=("a:1", text))


def test_a_url_needs_no_port() -> None:
    url = "https://broker.example/martlet"
    assert BrokerHttpOptions(nsqd_http_addresses=(url,)).nsqd_http_addresses == (url,)


def test_trusted_brokers_are_checked_and_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(OptionError, match=r"--trusted-broker: '10.0.0.0/99' is no network"):
        BrokerHttpOptions(nsqd_http_addresses=("a:1",), trusted_brokers=("10.0.0.0/99",))
    monkeypatch.setenv("MARTLET_TRUSTED_BROKER", "mq1, 10.0.0.0/8")
    options = BrokerHttpOptions(nsqd_http_addresses=("a:1",))
    assert options.trusted_brokers == ("mq1", "10.0.0.0/8")
