"""AUTH against a real auth server: the same story is played to Martlet and, where there is one, to
nsqd, and each must answer it alike.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.wire import (
    ERROR,
    RESPONSE,
    Frame,
    Wire,
    dpub,
    http,
    message,
    mpub,
    pub,
    u32,
)
from tests.interop.agent import Agent
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.certificates import Certificates
from tests.interop.server.conftest import Brokers, trusting
from tests.interop.upgraded_wire import UpgradedWire
from tests.polling import until

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[4]
OK = Frame(RESPONSE, b"OK")
ANNA = Frame(
    RESPONSE,
    b'{"identity":"anna","identity_url":"https://example.com/anna","permission_count":1}',
)
FAILED = Frame(ERROR, b"E_AUTH_FAILED AUTH failed")


def auth(secret: bytes) -> bytes:
    return b"AUTH\n" + u32(len(secret)) + secret


def frame_of(code: str) -> Frame:
    return Frame(ERROR, code.encode())


@pytest.fixture(scope="module")
def server() -> Iterator[AuthServer]:
    with AuthServer({"all": Answer(allowed(EVERYTHING))}) as server:
        yield server


@pytest.fixture(autouse=True)
def forget_what_was_asked(server: AuthServer) -> None:
    server.asked.clear()


@pytest.fixture
def broker(start: Brokers, server: AuthServer) -> BrokerProcess:
    return start(f"--auth-http-address={server.address}")


@pytest.fixture
def martlet(start_martlet: Brokers, server: AuthServer) -> BrokerProcess:
    return start_martlet(f"--auth-http-address={server.address}")


async def answers(broker: BrokerProcess, *commands: bytes) -> list[Frame]:
    """Return the answers to a client that sends these at once and then nothing."""
    wire = await Wire.open(broker.tcp_address)
    wire.send(b"".join(commands))
    wire.writer.write_eof()
    frames = []
    while True:
        try:
            frames.append(await wire.answer())
        except (asyncio.IncompleteReadError, ConnectionError):
            break
    wire.close()
    return frames


async def test_a_client_with_all_permissions_may_do_all(
    broker: BrokerProcess, server: AuthServer
) -> None:
    wire = await Wire.open(broker.tcp_address)
    wire.send(auth(b"all"))
    assert await wire.answer() == ANNA
    wire.send(pub("t", b"1") + mpub("t", [b"2"]) + b"DPUB t 1\n" + u32(1) + b"3" + b"SUB t c\n")
    assert [await wire.answer() for _ in range(4)] == [OK] * 4
    wire.send(b"RDY 10\n")
    assert sorted([(await wire.message()).body for _ in range(3)]) == [b"1", b"2", b"3"]
    request = server.asked[-1]
    assert (request.method, request.path) == ("GET", "/auth")
    assert request.query == [
        ("common_name", ""),
        ("remote_ip", "127.0.0.1"),
        ("secret", "all"),
        ("tls", "false"),
    ]
    assert request.headers["Accept"] == "application/vnd.nsq; version=1.0"
    report = json.loads(await http(broker.http_address, "/stats?format=json"))
    (client,) = report["topics"][0]["channels"][0]["clients"]
    assert client["authed"] is True
    assert client["auth_identity"] == "anna"
    assert client["auth_identity_url"] == "https://example.com/anna"
    wire.close()


async def test_identify_says_that_auth_is_required(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.tcp_address)
    body = b'{"feature_negotiation":true}'
    wire.send(b"IDENTIFY\n" + u32(len(body)) + body)
    assert json.loads((await wire.answer()).data)["auth_required"] is True
    wire.close()


async def test_without_auth_nothing_is_done(broker: BrokerProcess) -> None:
    for verb, command in {
        "PUB": pub("never", b"x"),
        "MPUB": mpub("never", [b"x"]),
        "DPUB": b"DPUB never 0\n" + u32(1) + b"x",
        "SUB": b"SUB never c\n",
    }.items():
        frames = await answers(broker, command, pub("never", b"x"))
        assert frames == [frame_of(f"E_AUTH_FIRST AUTH required before {verb}")]
    stats = json.loads(await http(broker.http_address, "/stats?format=json&topic=never"))
    assert stats["topics"] is None


async def test_a_refusal_does_not_wait_for_the_body(martlet: BrokerProcess) -> None:
    """nsqd has read it all by then; no client can tell, and a stranger fills no memory."""
    heads = {
        "PUB": b"PUB never\n" + u32(1 << 20),
        "DPUB": b"DPUB never 0\n" + u32(1 << 20),
        "MPUB": b"MPUB never\n",
    }
    for verb, head in heads.items():
        wire = await Wire.open(martlet.tcp_address)
        wire.send(head)
        assert await wire.answer() == frame_of(f"E_AUTH_FIRST AUTH required before {verb}")
        assert await wire.ended() == b""
        wire.close()


async def test_an_allowed_publisher_is_asked_for_the_rest_of_the_body(
    martlet: BrokerProcess,
) -> None:
    body = b"x" * 300_000
    wire = await Wire.open(martlet.tcp_address)
    wire.send(auth(b"all"))
    assert await wire.answer() == ANNA
    for command in (pub("big", body), dpub("big", 1, body), mpub("big", [body, body])):
        wire.send(command[:100_000])
        assert await wire.silent(0.02)
        wire.send(command[100_000:])
        await wire.ok()
    wire.close()


async def test_a_bad_size_is_reported_before_missing_auth_where_nsqd_does(
    broker: BrokerProcess,
) -> None:
    refusals = {
        b"PUB never\n": "E_BAD_MESSAGE PUB invalid message body size 0",
        b"DPUB never 0\n": "E_BAD_MESSAGE DPUB invalid message body size 0",
        b"MPUB never\n": "E_AUTH_FIRST AUTH required before MPUB",
    }
    for head, refusal in refusals.items():
        assert await answers(broker, head + u32(0)) == [frame_of(refusal)]


async def test_commands_without_permission_are_refused(
    broker: BrokerProcess, server: AuthServer
) -> None:
    server.answers["some"] = Answer(
        allowed(
            {"topic": "^orders$", "channels": ["^billing"], "permissions": ["subscribe"]},
            {"topic": "[[:digit:]]{2}", "channels": [".*"], "permissions": ["publish"]},
            {"topic": "^never$", "channels": ["^x$"], "permissions": ["publish"]},
        )
    )
    answer = ANNA.data.replace(b"1}", b"3}")
    for commands, text in (
        (pub("orders", b"x"), 'PUB on "orders" ""'),
        (mpub("t1", [b"x"]), 'MPUB on "t1" ""'),
        (b"DPUB t1 0\n" + u32(1) + b"x", 'DPUB on "t1" ""'),
        (b"SUB orders reports\n", 'SUB on "orders" "reports"'),
        (b"SUB order billing\n", 'SUB on "order" "billing"'),
        (pub("never", b"x"), 'PUB on "never" ""'),
    ):
        frames = await answers(broker, auth(b"some"), commands)
        assert frames == [
            Frame(RESPONSE, answer),
            frame_of(f"E_UNAUTHORIZED AUTH failed for {text}"),
        ]
    frames = await answers(broker, auth(b"some"), pub("t12", b"x"), b"SUB orders billing-2\n")
    assert frames == [Frame(RESPONSE, answer), OK, OK]


@pytest.mark.parametrize(
    ("answer", "frames"),
    [
        (Answer(allowed()), [frame_of("E_UNAUTHORIZED AUTH no authorizations found")]),
        (Answer(b"{}"), [FAILED]),
        (Answer(b"null"), [FAILED]),
        (Answer(b""), [FAILED]),
        (Answer(b"<html>"), [FAILED]),
        (Answer(b"[]"), [FAILED]),
        (Answer(allowed(EVERYTHING), 500), [FAILED]),
        (Answer(allowed(EVERYTHING), 403), [FAILED]),
        (Answer(b'{"https_port": 1}', 403), [FAILED]),
        (Answer(b"[" * 100_000, 403), [FAILED]),
        (Answer(allowed(EVERYTHING, ttl=0)), [FAILED]),
        (Answer(allowed(EVERYTHING, ttl="60")), [FAILED]),
        (Answer(allowed(EVERYTHING, ttl=1.5)), [FAILED]),
        (Answer(allowed(EVERYTHING | {"permissions": ["delete"]})), [FAILED]),
        (Answer(allowed(EVERYTHING | {"topic": "("})), [FAILED]),
        (Answer(allowed(EVERYTHING | {"channels": ["("]})), [FAILED]),
        (Answer(allowed(EVERYTHING | {"channels": "c"})), [FAILED]),
        (Answer(allowed(EVERYTHING).upper().replace(b"SUBSCRIBE", b"subscribe")), [FAILED]),
        (
            Answer(b'{"TTL": 9, "Authorizations": [{"Permissions": null}]}'),
            [Frame(RESPONSE, b'{"identity":"","identity_url":"","permission_count":1}')],
        ),
        (
            Answer(allowed(EVERYTHING, identity="<ä&\ud800>", identity_url=None)),
            [
                Frame(
                    RESPONSE,
                    b'{"identity":"\\u003c\xc3\xa4\\u0026\xef\xbf\xbd\\u003e",'
                    b'"identity_url":"","permission_count":1}',
                )
            ],
        ),
    ],
)
async def test_answers_of_the_auth_server(
    broker: BrokerProcess, server: AuthServer, answer: Answer, frames: list[Frame]
) -> None:
    server.answers["odd"] = answer
    assert await answers(broker, auth(b"odd")) == frames


async def test_mistakes_with_auth(broker: BrokerProcess) -> None:
    assert await answers(broker, auth(b"unknown")) == [FAILED]
    assert await answers(broker, auth(b"all"), auth(b"all")) == [
        ANNA,
        frame_of("E_INVALID AUTH already set"),
    ]
    assert await answers(broker, auth(b"all"), b"SUB t c#ephemeral\n", auth(b"all")) == [
        ANNA,
        OK,
        frame_of("E_INVALID cannot AUTH in current state"),
    ]
    assert await answers(broker, b"AUTH now\n") == [
        frame_of("E_INVALID AUTH invalid number of parameters")
    ]


async def test_a_secret_is_any_bytes(broker: BrokerProcess, server: AuthServer) -> None:
    secret = "a b&c=d/?#%ä\n+"
    server.answers[secret] = Answer(allowed(EVERYTHING))
    assert await answers(broker, auth(secret.encode())) == [ANNA]
    assert await answers(broker, auth(b"\xff\x00")) == [FAILED]
    assert dict(server.asked[-1].query)["secret"] == "�\0"


async def test_only_commands_behind_auth_wait(broker: BrokerProcess, server: AuthServer) -> None:
    held = threading.Event()
    server.answers["slow"] = Answer(allowed(EVERYTHING), held=held)
    slow, other = await Wire.open(broker.tcp_address), await Wire.open(broker.tcp_address)
    try:
        slow.send(auth(b"slow") + pub("waits", b"1"))
        slow.send(pub("waits", b"2" * 300_000) + b"NOP\n" + b"SUB waits c\n")
        other.send(auth(b"all") + pub("t", b"meanwhile"))
        assert [await other.answer() for _ in range(2)] == [ANNA, OK]
        await until(lambda: server.count("slow") == 1)
        assert await slow.silent(0.2)
    finally:
        held.set()
    assert [await slow.answer() for _ in range(4)] == [ANNA, OK, OK, OK]
    slow.send(b"RDY 2\n")
    assert sorted([len((await slow.message()).body) for _ in range(2)]) == [1, 300_000]
    slow.close()
    other.close()


async def test_a_client_may_go_while_its_secret_is_looked_at(
    broker: BrokerProcess, server: AuthServer
) -> None:
    held = threading.Event()
    server.answers["gone"] = Answer(allowed(EVERYTHING), held=held)
    wire = await Wire.open(broker.tcp_address)
    wire.send(auth(b"gone"))
    await until(lambda: server.count("gone") == 1)
    wire.close()
    held.set()
    assert await answers(broker, auth(b"all"), pub("t", b"after")) == [ANNA, OK]


async def test_an_expired_authorization_is_asked_again(
    broker: BrokerProcess, server: AuthServer
) -> None:
    server.answers["brief"] = Answer(allowed(EVERYTHING, ttl=1))
    wire = await Wire.open(broker.tcp_address)
    began_s = time.monotonic()
    wire.send(auth(b"brief") + pub("t", b"1") * 3)
    assert [await wire.answer() for _ in range(4)] == [ANNA, OK, OK, OK]
    assert server.count("brief") <= 1 + (time.monotonic() - began_s), "once a second"
    await asyncio.sleep(1.1)
    asked = server.count("brief")
    wire.send(pub("t", b"2") * 6)
    assert [await wire.answer() for _ in range(6)] == [OK] * 6
    assert asked < server.count("brief") <= 1 + (time.monotonic() - began_s), "once a second"

    server.answers["brief"] = Answer(
        allowed({"topic": "other", "channels": [".*"], "permissions": ["publish"]}, ttl=1)
    )
    await asyncio.sleep(1.1)
    wire.send(pub("other", b"3") + pub("t", b"3"))
    assert await wire.answer() == OK
    assert await wire.answer() == frame_of('E_UNAUTHORIZED AUTH failed for PUB on "t" ""')
    assert await wire.ended() == b""
    wire.close()


async def test_a_renewal_that_fails_ends_the_connection(
    broker: BrokerProcess, server: AuthServer
) -> None:
    for answer, frame in (
        (Answer(b"", 500), FAILED),
        (Answer(allowed()), frame_of('E_UNAUTHORIZED AUTH failed for SUB on "t" "c"')),
    ):
        server.answers["renewed"] = Answer(allowed(EVERYTHING, ttl=1))
        wire = await Wire.open(broker.tcp_address)
        wire.send(auth(b"renewed"))
        assert await wire.answer() == ANNA
        server.answers["renewed"] = answer
        await asyncio.sleep(1.1)
        wire.send(b"SUB t c\n")
        assert await wire.answer() == frame
        assert await wire.ended() == b""
        wire.close()


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_the_auth_server_gets_the_certificate_of_a_client(
    start: Brokers,
    server: AuthServer,
    certificates: Certificates,
    compression: str,
    policy: str,
) -> None:
    """And commands behind AUTH wait in TLS and under compression just the same."""
    if policy == "require":
        pytest.importorskip("OpenSSL")
    broker = start(
        *certificates.flags,
        f"--tls-root-ca-file={certificates.authority}",
        f"--tls-client-auth-policy={policy}",
        f"--auth-http-address={server.address}",
    )
    with UpgradedWire(broker.tcp_address) as wire:
        features = {compression: True} if compression else {}
        answer = wire.identify(tls_v1=True, **features)
        wire.upgrade(answer, trusting(certificates, "client"))
        wire.send(auth(b"all") + pub("t", b"x" * 700_000) + b"SUB t c\n")
        assert [wire.frame() for _ in range(3)] == [ANNA, OK, OK]
        wire.send(b"RDY 1\n")
        assert message(wire.frame()).body == b"x" * 700_000
    assert dict(server.asked[-1].query) == {
        "common_name": Certificates.COMMON_NAME,
        "remote_ip": "127.0.0.1",
        "secret": "all",
        "tls": "true",
    }


@pytest.mark.parametrize(("secret", "event"), [("all", "received"), ("unknown", "refused")])
def test_pynsq_authenticates(broker: BrokerProcess, secret: str, event: str) -> None:
    command = [sys.executable, "-m", "tests.interop.agents.pynsq_auth_agent"]
    with Agent([*command, broker.tcp_address, secret], cwd=ROOT) as agent:
        agent.wait(event, 20, lambda: bool(agent.events_named(event)))


async def test_without_auth_servers_there_is_no_auth() -> None:
    with BrokerProcess() as broker:
        assert await answers(broker, auth(b"all")) == [frame_of("E_AUTH_DISABLED AUTH disabled")]


async def test_servers_are_tried_until_one_answers(server: AuthServer) -> None:
    with AuthServer({"all": Answer(b"", 500)}) as broken:
        closed_address = f"127.0.0.1:{free_port()}"
        addresses = [
            broken.address,
            closed_address,
            f"http://{server.address}/who/may?region=north",
        ]
        flags = [f"--auth-http-address={address}" for address in addresses]
        with BrokerProcess(None, *flags) as broker:
            for _ in range(20):  # each time in an order left to chance
                assert await answers(broker, auth(b"all")) == [ANNA]
            assert server.asked[-1].path == "/who/may"
            assert server.asked[-1].query[0] == ("region", "north")
            # Whose turn it is first is left to chance.
            assert broken.asked


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    held = threading.Event()
    with AuthServer({"all": Answer(allowed(EVERYTHING), held=held)}) as server:
        flags = [f"--auth-http-address={server.address}", "--http-client-request-timeout=300ms"]
        with BrokerProcess(None, *flags) as broker:
            assert await answers(broker, auth(b"all")) == [FAILED]
            held.set()
            assert await answers(broker, auth(b"all"), pub("t", b"x")) == [ANNA, OK]


async def test_a_server_can_be_asked_by_post(server: AuthServer) -> None:
    flags = [f"--auth-http-address={server.address}", "--auth-http-request-method=post"]
    with BrokerProcess(None, *flags) as broker:
        assert await answers(broker, auth(b"all")) == [ANNA]
    request = server.asked[-1]
    assert (request.method, request.path, request.query) == ("POST", "/auth", [])
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.body) == {
        "common_name": [""],
        "remote_ip": ["127.0.0.1"],
        "secret": ["all"],
        "tls": ["false"],
    }
