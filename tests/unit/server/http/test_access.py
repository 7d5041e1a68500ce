"""Who may use which route."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from martlet.options import BrokerOptions
from martlet.server.http.access import ROUTES, Access, Operators, access_to, names_in, route_of
from martlet.server.http.request import HttpError, Request, Routes
from martlet.server.listeners import Listeners
from martlet.server.observability.histogram import LoopLag
from martlet.server.replication.process import ReplicaProcess
from martlet.server.replication.standby_http import own_routes
from martlet.testing import Broker
from martlet.testing.ports import free_port

TOKEN, OTHER = "0123456789abcdef", "fedcba9876543210"
NSQDS = {
    *("/ping", "/info", "/stats", "/pub", "/mpub", "/config/:name"),
    *(f"/topic/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause")),
    *(f"/channel/{verb}" for verb in ("create", "delete", "empty", "pause", "unpause")),
}
"""The routes of nsqd 1.3.0 but for those below /debug."""


async def routes_of_a_replica(folder: Path) -> list[Routes]:
    """Return the routes of a primary and those of a standby."""
    options = BrokerOptions(
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        data_path=str(folder / "a"),
        replica_name="a",
        replica_address=(address := f"127.0.0.1:{free_port()}"),
        initial_replicas=f"a={address}",
        metadata=f"sqlite:{folder / 'replicas.db'}",
    )
    process = ReplicaProcess(options)
    going = asyncio.create_task(process.run())
    await asyncio.wait_for(process.node.is_serving.wait(), 50)
    assert process.node.server is not None

    async def refuse(request: Request) -> object:
        raise AssertionError(request)

    routes = [
        process.node.server.routes(),
        process.node.log_routes,
        own_routes(lambda: process.node.status, LoopLag(), 0, refuse),
    ]
    process.stop()
    await going
    return routes


async def test_every_route_is_classed_and_no_other(tmp_path: Path) -> None:
    async with Broker() as broker:
        paths = set(broker.server.routes())
    paths.update(*await routes_of_a_replica(tmp_path))
    assert paths == set(ROUTES)


def test_nsqds_routes_and_those_for_monitoring_are_open_and_no_others() -> None:
    opened = {path for path, access in ROUTES.items() if access is Access.EVERYONE}
    assert opened - NSQDS == {
        *("/metrics", "/health/live", "/health/ready", "/replica/primary"),
        "/v1/openapi.json",
    }
    assert opened > NSQDS


@pytest.mark.parametrize(
    ("path", "access"),
    [
        ("/pub", Access.EVERYONE),
        ("/config/log_level", Access.EVERYONE),
        ("/v1/topics/t/messages", Access.CLIENTS),
        ("/v1/topics/t/channels/c/receive", Access.CLIENTS),
        ("/v1/topics/t/channels/c/peek", Access.OPERATORS),
        ("/v1/topics/t/channels/c/d/receive", Access.OPERATORS),
        ("/call/delay.list", Access.OPERATORS),
        ("/channel/peek", Access.OPERATORS),
        ("/channel/peek#", Access.OPERATORS),
        ("/debug", Access.OPERATORS),
        ("/debug/pprof/heap", Access.OPERATORS),
        ("/CALL/delay.list", Access.OPERATORS),
        ("/config/a/b", Access.OPERATORS),
        ("/unknown", Access.OPERATORS),
        ("", Access.OPERATORS),
    ],
)
def test_what_is_not_known_is_for_operators(path: str, access: Access) -> None:
    assert access_to(path) is access


@dataclass
class Asked:
    """What a check looks at in a request."""

    is_local: bool = False
    has_certificate: bool = False
    tls_version: str = ""
    is_vouched_for: bool | None = None
    is_of_foreign_page: bool = False
    is_of_other_site: bool = False
    is_of_browser: bool = False
    method: str = "POST"
    host: str = "evil.example"
    sent: list[str] = field(default_factory=list)
    path: str = "/call/delay.list"

    def headers(self, name: str) -> list[str]:
        assert name == "Authorization"
        return self.sent


def answer(operators: Operators, **fields: Any) -> str:
    request = cast(Request, Asked(**fields))
    try:
        operators.check(request)
    except HttpError as error:
        challenged = " and how" if "WWW-Authenticate" in error.headers else ""
        return f"{error.status}{challenged} {error.message.partition(':')[0]}"
    return "yes"


def bearer(token: str) -> list[str]:
    return [f"Bearer {token}"]


def test_without_tokens_clients_of_the_machine_are_operators() -> None:
    operators = Operators()
    assert answer(operators, is_local=True) == "yes"
    assert answer(operators) == "403 OPERATORS_ONLY"
    assert answer(operators, sent=bearer("")) == "403 OPERATORS_ONLY"
    assert answer(operators, has_certificate=True) == "403 OPERATORS_ONLY"
    assert answer(operators, path="/pub") == "yes"


def test_a_strangers_page_in_a_browser_of_the_machine_is_no_operator() -> None:
    page: dict[str, Any] = {"is_of_foreign_page": True}
    assert answer(Operators(), is_local=True, **page) == "403 FOREIGN_PAGE"
    certified = Operators((TOKEN,), has_certificates=True)
    assert answer(certified, has_certificate=True, **page) == "401 and how OPERATOR_TOKEN_MISSING"
    assert answer(certified, has_certificate=True, sent=bearer(TOKEN), **page) == "yes"
    assert answer(Operators(), is_local=True, path="/pub", **page) == "yes"


def test_nsqds_routes_refuse_changes_by_a_page_of_another_site() -> None:
    page: dict[str, Any] = {
        "is_of_browser": True,
        "is_of_other_site": True,
        "path": "/topic/delete",
    }
    for operators in (Operators(), Operators((TOKEN,))):
        assert answer(operators, **page) == "403 FOREIGN_PAGE"
        assert answer(operators, **page, sent=bearer(TOKEN)) == "403 FOREIGN_PAGE"
        assert answer(operators, **page, method="GET") == "yes"
        # The standby that has forwarded it has checked it.
        assert answer(operators, **page, is_vouched_for=False) == "yes"


def test_routes_for_clients_answer_all_but_pages_of_other_sites() -> None:
    path = "/v1/topics/t/channels/c/receive"
    for operators in (Operators(), Operators((TOKEN,))):
        assert answer(operators, path=path) == "yes"
        assert answer(operators, path=path, is_of_other_site=True) == "403 FOREIGN_PAGE"
        # By a name that is not the machine's: a page whose name leads here, or a client elsewhere.
        local = answer(operators, path=path, is_of_foreign_page=True, is_local=True)
        assert local == "403 FOREIGN_PAGE"
        assert answer(operators, path=path, is_of_foreign_page=True) == "yes"
        # The standby that has forwarded it has checked it.
        assert answer(operators, path=path, is_of_other_site=True, is_vouched_for=False) == "yes"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:4151"}, 200),
        ({"Host": "[::1]:4151"}, 200),
        ({"Host": "broker-1:4151"}, 200),
        ({"Host": "rebound.example:4151"}, 403),
        ({"Host": "127.0.0.1.rebound.example"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_browsers_show_by_their_headers_whose_page_asks(
    headers: dict[str, str], status: int
) -> None:
    async with Broker() as broker, aiohttp.ClientSession() as session:
        url = f"http://{broker.http_address}/log/topics"
        async with session.get(url, headers=headers) as response:
            assert response.status == status
            if status == 403:
                assert "FOREIGN_PAGE: /log/topics" in (await response.json())["message"]


def test_with_tokens_each_of_them_opens_and_nothing_else() -> None:
    operators = Operators((TOKEN, OTHER))
    assert answer(operators, sent=bearer(TOKEN)) == "yes"
    assert answer(operators, sent=[f"bearer  {OTHER} "]) == "yes"
    assert answer(operators, is_local=True) == "401 and how OPERATOR_TOKEN_MISSING"
    for wrong in ("", TOKEN[:-1], TOKEN + "0", f"{TOKEN} {OTHER}", "tökens-of-others"):
        assert answer(operators, sent=bearer(wrong)) == "401 and how OPERATOR_TOKEN_WRONG"
    assert answer(operators, sent=[f"Basic {TOKEN}"]) == "401 and how OPERATOR_TOKEN_WRONG"
    assert answer(operators, sent=[TOKEN]) == "401 and how OPERATOR_TOKEN_WRONG"
    assert answer(operators, sent=bearer(TOKEN) * 2) == "401 and how OPERATOR_TOKEN_WRONG"
    assert answer(operators, path="/metrics") == "yes"


def test_a_verified_certificate_is_an_operators_where_the_options_say_so() -> None:
    assert answer(Operators(has_certificates=True), has_certificate=True) == "yes"
    assert answer(Operators((TOKEN,), has_certificates=True), has_certificate=True) == "yes"
    for old in ("TLSv1", "TLSv1.1"):
        named = {"has_certificate": True, "sent": bearer(TOKEN), "tls_version": old}
        assert answer(Operators((TOKEN,), has_certificates=True), **named) == "403 TLS_TOO_OLD"
        assert not Operators(has_certificates=True).include(
            is_local=True, has_certificate=True, tls_version=old
        )
    assert answer(Operators(has_certificates=True)) == "403 OPERATORS_ONLY"
    assert answer(Operators((TOKEN,)), has_certificate=True) == "401 and how OPERATOR_TOKEN_MISSING"


@pytest.mark.parametrize("tokens", [(), (TOKEN,)])
def test_the_word_of_a_standby_decides_about_what_it_forwards(tokens: tuple[str, ...]) -> None:
    operators = Operators(tokens, has_certificates=True)
    assert answer(operators, is_vouched_for=True) == "yes"
    # The connection is the standby's: its address and its certificate are no client's.
    refused = answer(operators, is_vouched_for=False, is_local=True, has_certificate=True)
    assert refused.startswith("401" if tokens else "403")


def test_the_start_says_who_is_an_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("martlet")
    caplog.set_level(logging.INFO)
    Operators.load(BrokerOptions(), log)
    assert caplog.messages == [
        "HTTP: the routes that nsqd does not have answer clients on this machine, as there is no"
        " --operator-token-file"
    ]
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o600)
    caplog.clear()
    options = BrokerOptions(
        operator_token_file=str(path),
        tls_cert="cert.pem",
        tls_key="key.pem",
        tls_client_auth_policy="require-verify",
        tls_root_ca_file="ca.pem",
    )
    Operators.load(options, log)
    assert caplog.messages == [
        "HTTP: the routes that nsqd does not have answer clients with 1 token of"
        f" --operator-token-file={path}, and clients with a certificate of --tls-root-ca-file"
    ]
    caplog.clear()
    unserved = BrokerOptions(operator_token_file=str(path), http_address="")
    Operators.load(unserved, log)
    assert caplog.messages == []
    path.chmod(0o644)
    Operators.load(options, log)
    assert caplog.messages[0].endswith(f"can read --operator-token-file={path}: chmod o-r")


@pytest.mark.parametrize(
    ("policy", "authority"), [("require", "ca.pem"), ("require-verify", ""), ("", "ca.pem")]
)
def test_certificates_that_no_named_authority_verifies_are_nobodys(
    policy: str, authority: str
) -> None:
    options = BrokerOptions(
        tls_cert="cert.pem",
        tls_key="key.pem",
        tls_client_auth_policy=policy,
        tls_root_ca_file=authority,
    )
    operators = Operators.load(options, logging.getLogger("martlet"))
    assert answer(operators, has_certificate=True) == "403 OPERATORS_ONLY"


@pytest.mark.parametrize(
    ("name", "why"), [("none", "cannot be read"), ("short", "the token of line 1 has 5 characters")]
)
def test_a_wrong_token_file_ends_the_start(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "short").write_text("short")
    options = BrokerOptions(operator_token_file=f"{tmp_path}/{name}", tcp_address="127.0.0.1:0")
    with pytest.raises(OSError, match=f"--operator-token-file=.*/{name}.*{why}"):
        Listeners(options, None, logging.getLogger("martlet"))


CHANNEL = "/v1/topics/:topic/channels/:channel"


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/topics/orders/messages", "/v1/topics/:topic/messages"),
        ("/v1/topics/a/channels/b/receive", f"{CHANNEL}/receive"),
        ("/v1/topics/a/channels/b/x/receive", f"{CHANNEL}/x/receive"),
        ("/v1/topics//messages", "/v1/topics//messages"),
        ("/v1/topics/a/channels//receive", "/v1/topics/:topic/channels//receive"),
        ("/v1/topics/", "/v1/topics/"),
        ("/v1/openapi.json", "/v1/openapi.json"),
        ("/V1/topics/a/messages", "/V1/topics/a/messages"),
        ("/pub", "/pub"),
    ],
)
def test_names_stand_for_themselves(path: str, route: str) -> None:
    assert route_of(path) == route


def test_the_names_are_those_in_the_path() -> None:
    assert names_in("/v1/topics/a/messages") == ["a"]
    assert names_in("/v1/topics/a/channels/b/receive") == ["a", "b"]
