"""Who may make which call: every call, by every kind of caller, over TCP and over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from docs.reference.generate import declared_operations
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.calling import Caller, caller
from tests.interop.certificates import Certificates
from tests.interop.operator_routes import other_address
from tests.interop.server.conftest import tls_of, trusting

from martlet.schema import access as declared_access
from martlet.schema.access import CallerClass
from martlet.testing import Broker
from martlet.text import MILLISECOND_NS

CALLS = {
    **declared_access.CALLS,
    **{name: operation.access for name, operation in declared_operations().items()},
}

TOKEN = "0123456789abcdef0123"
NAMES = {"topic": "wages", "channel": "c", "group": "c"}
ALL = set(CallerClass)
CLIENTS = ALL - {CallerClass.OPERATORS}
OWN = {CallerClass.OWN, CallerClass.CLIENTS}
SECRETS = {
    "all": ([EVERYTHING], CLIENTS),
    "publisher": ([{**EVERYTHING, "topic": "^wages$", "permissions": ["publish"]}], OWN),
    "consumer": (
        [{"topic": "^wages$", "channels": ["^c$"], "permissions": ["subscribe"]}],
        CLIENTS,
    ),
    "reader": (
        [{"topic": "^wages$", "channels": ["^d$"], "permissions": ["subscribe"]}],
        OWN | {CallerClass.READERS},
    ),
    "elsewhere": ([{**EVERYTHING, "topic": "^mails$"}], OWN),
    "both": (
        [
            {**EVERYTHING, "topic": "^wages$", "permissions": ["publish"]},
            {**EVERYTHING, "topic": "^mails$", "permissions": ["subscribe"]},
        ],
        OWN,
    ),
    "nowhere": ([{"topic": ".*", "channels": [], "permissions": ["subscribe"]}], OWN),
}
"""What the auth server gives for a secret, and whose calls it may then make."""


@pytest.fixture(scope="module")
def auth() -> Iterator[AuthServer]:
    given = {secret: Answer(allowed(*rules)) for secret, (rules, _) in SECRETS.items()}
    with AuthServer(given) as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


async def classes_of(client: Caller) -> set[CallerClass]:
    """Make each call, and return the classes of those that were not forbidden: all or none of one.

    The fields are none of a useful call, so that nothing happens where it is allowed.
    """
    found: dict[CallerClass, set[bool]] = {}
    for method, access in CALLS.items():
        answer = await client.call(method, **NAMES)
        assert answer.get("error", {}).get("code") != "UNKNOWN_METHOD"
        is_allowed = answer.get("error", {}).get("code") != "FORBIDDEN"
        found.setdefault(access.callers, set()).add(is_allowed)
    assert all(len(each) == 1 for each in found.values()), found
    return {callers for callers, allowed_ones in found.items() if True in allowed_ones}


@asynccontextmanager
async def spliced(broker: Broker, *, is_vouched_for: bool) -> AsyncIterator[socket.socket]:
    """A connection that a standby carries on, over a socket of this machine."""
    ours, theirs = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: broker.server.connect("192.0.2.7:80", is_vouched_for=is_vouched_for), theirs
    )
    yield ours


@asynccontextmanager
async def client_of(secret: str = "", **options: Any) -> AsyncIterator[Caller]:
    """A client of a broker with these options."""
    async with (
        Broker(**options) as broker,
        # Of a socket, the broker tells no address.
        caller(options.get("tcp_address") or broker.tcp_address, secret) as client,
    ):
        yield client


@pytest.mark.parametrize("secret", SECRETS)
async def test_under_auth_nobody_is_an_operator_over_tcp_and_permissions_count(
    secret: str, auth: AuthServer, tmp_path: Path
) -> None:
    path = tmp_path / "tcp"
    async with Broker(auth_http_addresses=(auth.address,), tcp_address=str(path)) as broker:
        async with caller(str(path), secret) as client:
            assert await classes_of(client) == SECRETS[secret][1]
        async with spliced(broker, is_vouched_for=True) as sock, caller(sock, secret) as client:
            assert await classes_of(client) == SECRETS[secret][1]


@pytest.mark.parametrize("has_tokens", [False, True])
async def test_clients_of_this_machine_are_operators_unless_there_are_tokens(
    has_tokens: bool, token_file: str, tmp_path: Path
) -> None:
    tokens = {"operator_token_file": token_file} if has_tokens else {}
    for where in ({}, {"tcp_address": str(tmp_path / "tcp")}):
        async with client_of(**tokens, **where) as client:
            assert await classes_of(client) == (CLIENTS if has_tokens else ALL)


async def test_clients_from_elsewhere_are_no_operators() -> None:
    host = other_address()
    async with Broker(tcp_address="0.0.0.0:0") as broker:
        port = broker.tcp_address.rpartition(":")[2]
        async with caller(f"{host}:{port}") as client:
            assert await classes_of(client) == CLIENTS
        async with caller(f"127.0.0.1:{port}") as client:
            assert await classes_of(client) == ALL


@pytest.mark.parametrize("is_vouched_for", [False, True])
async def test_of_a_standbys_client_only_the_standby_knows_what_it_is(
    is_vouched_for: bool, token_file: str
) -> None:
    expected = ALL if is_vouched_for else CLIENTS
    for more in ({}, {"operator_token_file": token_file}):
        async with (
            Broker(**more) as broker,
            spliced(broker, is_vouched_for=is_vouched_for) as sock,
            caller(sock) as client,
        ):
            assert await classes_of(client) == expected


@pytest.mark.parametrize(
    ("policy", "expected"), [("require-verify", ALL), ("require", CLIENTS), ("", CLIENTS)]
)
async def test_a_verified_certificate_is_an_operators_wherever_its_client_is(
    policy: str, expected: set[CallerClass], certificates: Certificates
) -> None:
    context = trusting(certificates, "client" if policy else "")
    authority = str(certificates.authority)
    async with (
        Broker(
            **tls_of(certificates), tls_root_ca_file=authority, tls_client_auth_policy=policy
        ) as broker,
        spliced(broker, is_vouched_for=False) as sock,
        caller(sock, tls=context) as client,
    ):
        assert await classes_of(client) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_by_old_tls_nobody_is_an_operator(
    version: ssl.TLSVersion, certificates: Certificates
) -> None:
    old = trusting(certificates)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    async with Broker(**tls_of(certificates)) as broker:
        async with caller(broker.tcp_address, tls=old) as client:
            assert await classes_of(client) == CLIENTS
        async with spliced(broker, is_vouched_for=True) as sock, caller(sock, tls=old) as client:
            assert await classes_of(client) == CLIENTS
        async with spliced(broker, is_vouched_for=True) as sock, caller(sock) as client:
            assert await classes_of(client) == ALL


async def statuses(broker: Broker, **headers: str) -> dict[str, tuple[int, Any]]:
    found = {}
    async with aiohttp.ClientSession(f"http://{broker.http_address}", headers=headers) as session:
        for method in CALLS:
            async with session.post(f"/call/{method}", data=json.dumps(NAMES)) as answer:
                body = await answer.json() if answer.status != 200 else {}
                found[method] = answer.status, body.get("code", body.get("message", ""))
    return found


async def test_over_http_operators_make_every_call_and_nobody_else_any(token_file: str) -> None:
    async with Broker() as broker:
        for method, (status, code) in (await statuses(broker)).items():
            assert status not in (401, 403), (method, code)
            if method.startswith("message."):
                # It has no subscription.
                assert code in ("NOT_SUBSCRIBED", "BAD_ARGUMENT")
        proxied = await statuses(broker, **{"X-Forwarded-For": "192.0.2.7"})
        assert {status for status, _ in proxied.values()} == {403}
    async with Broker(operator_token_file=token_file) as broker:
        assert {status for status, _ in (await statuses(broker)).values()} == {401}
        known = await statuses(broker, Authorization=f"Bearer {TOKEN}")
        assert not {401, 403} & {status for status, _ in known.values()}


async def test_the_refusal_says_how_an_operator_makes_the_call(token_file: str) -> None:
    async with client_of(operator_token_file=token_file) as client:
        error = (await client.call("topic.configure", topic="t", policy={}))["error"]
    assert error == {
        "code": "FORBIDDEN",
        "text": "topic.configure is for operators, which this client of TCP is not: make it over"
        " HTTP, as POST /call/topic.configure, with a token of --operator-token-file or on the"
        " broker's machine",
    }


async def test_a_call_that_is_not_declared_is_for_operators(
    auth: AuthServer, token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over both wires, and before it sees its fields."""
    for options, secret in (
        ({"operator_token_file": token_file}, ""),
        ({"auth_http_addresses": (auth.address,)}, "all"),
        ({}, ""),
    ):
        new_call = Mock(return_value={})
        async with Broker(**options) as broker:
            methods = {**broker.server.calls.methods, "new.call": new_call}
            monkeypatch.setattr(broker.server.calls, "methods", methods)
            async with caller(broker.tcp_address, secret) as client:
                answer = await client.call("new.call")
        is_forbidden = answer.get("error", {}).get("code") == "FORBIDDEN"
        assert is_forbidden is bool(options)
        assert new_call.called is not is_forbidden


async def test_a_publisher_neither_reads_nor_changes_what_it_publishes(auth: AuthServer) -> None:
    async with (
        Broker(auth_http_addresses=(auth.address,)) as broker,
        caller(broker.tcp_address, "all") as boss,
        caller(broker.tcp_address, "publisher") as clerk,
    ):
        assert (await boss.send("wages"))["status"] == "OK"
        assert (await clerk.send("wages"))["status"] == "OK"
        for method, fields in (
            ("topic.fetch", {"topic": "wages", "queue": 0, "offset": 0, "wait_ms": 0}),
            ("topic.offset", {"topic": "wages", "queue": 0, "time_ms": 0}),
            ("topic.describe", {"topic": "wages"}),
            ("topic.configure", {"topic": "wages", "policy": {"retention_ms": 1}}),
            ("delay.list", {"topic": "wages"}),
            ("channel.want", {"topic": "wages", "channel": "c", "policy": {"tags": ["t"]}}),
        ):
            answer = await clerk.call(method, **fields)
            assert answer["error"]["code"] == "FORBIDDEN", (method, answer)
        assert not broker.server.broker.topics["wages"].channels


async def test_a_consumer_publishes_nothing_by_a_dead_letter_topic_of_its_choice(
    auth: AuthServer,
) -> None:
    """It would reject messages of its channel into any topic."""
    async with (
        Broker(auth_http_addresses=(auth.address,)) as broker,
        caller(broker.tcp_address, "consumer") as client,
    ):
        wish = {"max_attempts": 1, "dead_letter_topic": "orders"}
        refused = await client.call("channel.want", topic="wages", channel="c", policy=wish)
        assert refused["error"]["code"] == "FORBIDDEN"
        channel = broker.server.broker.topics["wages"].channels["c"]
        assert channel.policy.dead_letter_topic == ""
        own = await client.call(
            "channel.want", topic="wages", channel="c", policy={"max_attempts": 1}
        )
        assert own["policy"]["max_attempts"] == 1


@pytest.mark.parametrize(
    "topic", [None, 7, ["wages"], {"wages": 1}, "", "a b", "\ud800", "w" * 2000]
)
@pytest.mark.parametrize("secret", ["all", "consumer", "publisher"])
async def test_under_auth_a_call_without_a_good_name_is_refused_for_that(
    topic: object, secret: str, auth: AuthServer
) -> None:
    async with client_of(secret, auth_http_addresses=(auth.address,)) as client:
        for method, access in CALLS.items():
            if access.callers in (CallerClass.READERS, CallerClass.CONSUMERS):
                answer = await client.call(method, topic=topic)
                assert answer["error"]["code"] in ("MISSING_ARGUMENT", "BAD_ARGUMENT", "BAD_NAME")
                if secret != "all":  # Else the method says what it misses first.
                    assert "topic" in answer["error"]["text"]


async def test_nothing_can_be_called_before_auth(auth: AuthServer) -> None:
    async with client_of(auth_http_addresses=(auth.address,)) as stranger:
        for method in ("transaction.list", "transaction.checks", "topic.describe"):
            answer = await stranger.call(method, group="g")
            assert answer["error"]["code"] == "FORBIDDEN"


async def test_a_transaction_is_visible_to_clients_that_may_publish_its_messages(
    auth: AuthServer,
) -> None:
    broker = Broker(auth_http_addresses=(auth.address,), transaction_check_after_ns=MILLISECOND_NS)
    async with (
        broker,
        caller(broker.tcp_address, "all") as boss,
        caller(broker.tcp_address, "elsewhere") as clerk,
    ):
        for id, topic in (("a", "orders"), ("b", "mails")):
            begin = {"begin": {"group": "g"}}
            assert (await boss.send(topic, transaction=id, branch="b", number=0, **begin))[
                "status"
            ] == "OK"
        for method in ("prepare", "commit", "rollback"):
            refused = await clerk.call(f"transaction.{method}", id="a")
            assert refused["error"]["code"] == "FORBIDDEN"
        asked = await clerk.call("transaction.checks", group="g")
        assert [each["id"] for each in asked["transactions"]] == ["b"]
        assert not (await clerk.call("transaction.checks", group="g", wait_ms=50))["transactions"]
        asked = await boss.call("transaction.checks", group="g")
        assert [(each["id"], each["checks"]) for each in asked["transactions"]] == [("a", 1)]
