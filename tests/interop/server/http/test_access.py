"""Martlet's own routes, asked by clients of this machine, of others, and with tokens."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.interop.asking import ask
from tests.interop.certificates import Certificates
from tests.interop.operator_routes import EVERYONE, OPERATORS, OpenBroker, other_address, status
from tests.interop.server.conftest import trusting

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop

TOKEN, NEXT = "0123456789abcdef0123", "fedcba9876543210fedc"


machine = pytest.fixture(scope="module")(other_address)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text(f"{NEXT}\n{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def without() -> Iterator[BrokerProcess]:
    with OpenBroker() as broker:
        yield broker


@pytest.fixture
def guarded(tokens: Path) -> Iterator[BrokerProcess]:
    with OpenBroker(None, f"--operator-token-file={tokens}") as broker:
        yield broker


def at(host: str, broker: BrokerProcess) -> str:
    return f"{host}:{broker.http_address.rpartition(':')[2]}"


def test_without_tokens_only_this_machine_uses_what_nsqd_does_not_have(
    without: BrokerProcess, machine: str
) -> None:
    for route in EVERYONE:
        assert status(at(machine, without), route)[0] == 200, route
    for route in OPERATORS:
        code, text = status(at(machine, without), route)
        assert code == 403, route
        assert "OPERATORS_ONLY" in text
        assert "--operator-token-file" in text
        assert "MARTLET_OPERATOR_TOKEN_FILE" in text
        assert status(at(machine, without), route, TOKEN)[0] == 403, "no token is known"
        expected = 404 if "pprof" in route[1] else 200
        assert status(at("127.0.0.1", without), route)[0] == expected, route
    proxied = {"X-Forwarded-For": "198.51.100.7"}
    assert status(at("127.0.0.1", without), OPERATORS[0], **proxied)[0] == 403
    assert "answer clients on this machine" in without.log()


def test_with_tokens_each_of_them_is_needed_from_everywhere(
    guarded: BrokerProcess, machine: str
) -> None:
    for host in (machine, "127.0.0.1"):
        for route in EVERYONE:
            assert status(at(host, guarded), route)[0] == 200, route
        for route in OPERATORS:
            expected = 404 if "pprof" in route[1] else 200
            for token in (TOKEN, NEXT):
                assert status(at(host, guarded), route, token)[0] == expected, route
            code, text = status(at(host, guarded), route)
            assert (code, "OPERATOR_TOKEN_MISSING" in text) == (401, True), route
            code, text = status(at(host, guarded), route, TOKEN[:-1])
            assert (code, "OPERATOR_TOKEN_WRONG" in text) == (401, True), route
    assert TOKEN not in guarded.log()


def test_no_spelling_of_a_path_gets_past_the_check(guarded: BrokerProcess) -> None:
    for target in (
        *("/%6Cog/topics", "//log/topics", "/log//topics", "/LOG/topics", "/log/topics/"),
        *("/./log/topics", "/ping/../log/topics", "/log/topics?x", "/log/topics;x"),
        "http://127.0.0.1/log/topics",
    ):
        host, port = guarded.http_address.split(":")
        with socket.create_connection((host, int(port)), 10) as raw:
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
        assert re.match(rb"HTTP/1\.1 (401|301|404) ", answer), (target, answer[:200])
        assert b'"broker"' not in answer


def test_a_client_at_a_unix_socket_is_on_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "http"

    class Local(BrokerProcess):
        @property
        def command(self) -> list[str]:
            return [*super().command, f"--http-address={path}"]

        def _listens(self) -> bool:
            with socket.socket(socket.AF_UNIX) as probe:  # The file is there before it listens.
                return probe.connect_ex(str(path)) == 0

    with Local() as broker:
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path))
            raw.sendall(b"GET /log/topics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: raw.recv(1 << 16), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), (answer, broker.log())


async def test_a_certificate_that_the_authority_verifies_is_an_operators(
    certificates: Certificates, tokens: Path
) -> None:
    flags = (
        *certificates.flags,
        f"--tls-root-ca-file={certificates.authority}",
        "--tls-client-auth-policy=require-verify",
        "--tls-required=tcp-https",
        f"--operator-token-file={tokens}",
    )
    context = trusting(certificates, "client")
    with BrokerProcess(None, *flags) as broker:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{broker.https_address}/log/topics", ssl=context) as answer,
        ):
            assert answer.status == 200
        # By plain HTTP nobody shows a certificate.
        assert status(broker.http_address, ("GET", "/log/topics"))[0] == 401
        assert status(broker.http_address, ("GET", "/log/topics"), TOKEN)[0] == 200


def command(*words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "martlet", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_commands_send_the_token_of_a_file(
    guarded: BrokerProcess, tmp_path: Path, tokens: Path
) -> None:
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
        ask(guarded.http_address, path, "POST", b"")
    ask(guarded.http_address, "/pub?topic=t", "POST", b"looked at")
    where = f"--nsqd-http-address={guarded.http_address}"
    code, _, errors = command("peek", "t", "c", where)
    assert code == 1
    assert "OPERATOR_TOKEN_MISSING" in errors
    assert "--operator-token-file" in errors
    for more, environment in (
        ([f"--operator-token-file={tokens}"], {}),
        ([], {"MARTLET_OPERATOR_TOKEN_FILE": str(tokens)}),
    ):
        code, shown, errors = command("peek", "t", "c", where, *more, **environment)
        assert (code, "looked at" in shown) == (0, True), errors
        code, _, errors = command("delayed", "list", "t", where, *more, **environment)
        assert code == 0, errors
    wrong = tmp_path / "wrong"
    wrong.write_text("another-token-of-theirs")
    code, _, errors = command("peek", "t", "c", where, f"--operator-token-file={wrong}")
    assert (code, "OPERATOR_TOKEN_WRONG" in errors) == (1, True)
    code, _, errors = command("peek", "t", "c", where, f"--operator-token-file={tmp_path}/none")
    assert (code, "cannot be read: No such file" in errors) == (1, True)


def test_martlet_up_passes_the_file_on(tmp_path: Path, tokens: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    words = (
        *(sys.executable, "-m", "martlet", "up", "--lookup=false", "--admin=false"),
        f"--http-address={http}",
        *(f"--data-path={tmp_path}/data", f"--tcp-address=127.0.0.1:{free_port()}"),
        f"--operator-token-file={tokens}",
    )
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            while "ready" not in (line := up.stdout.readline()):
                assert line, "it has ended"
            assert status(http, ("GET", "/log/topics"))[0] == 401
            assert status(http, ("GET", "/log/topics"), TOKEN)[0] == 200
        finally:
            up.terminate()


def test_health_of_a_broker(without: BrokerProcess) -> None:
    def health(name: str) -> Any:
        return json.loads(status(without.http_address, ("GET", f"/health/{name}"))[1])

    assert health("live") == {"live": True}
    assert health("ready") == {"ready": True, "reason": ""}
