"""The tools with TLS, compression and AUTH, asked for by options of NSQ's Go client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.certificates import Certificates
from tests.interop.cli.tools import martlet

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[BrokerProcess]:
    """One that wants all of it."""
    only_t = {"topic": "^t$", "channels": [".*"], "permissions": ["subscribe", "publish"]}
    answers = {"all": Answer(allowed(EVERYTHING)), "t": Answer(allowed(only_t))}
    with (
        AuthServer(answers) as auth,
        BrokerProcess(
            None,
            *certificates.flags,
            f"--tls-root-ca-file={certificates.authority}",
            "--tls-client-auth-policy=require-verify",
            "--tls-required=tcp-https",
            "--https-address=127.0.0.1:0",
            f"--auth-http-address={auth.address}",
        ) as process,
    ):
        yield process


@pytest.fixture
def secure(certificates: Certificates) -> list[str]:
    return [
        "tls_v1",
        f"tls_root_ca_file,{certificates.authority}",
        f"tls_cert,{certificates.client}",
        f"tls_key,{certificates.client_key}",
    ]


def test_messages_go_through_the_tools(broker: BrokerProcess, secure: list[str]) -> None:
    where = [f"--nsqd-tcp-address={broker.tcp_address}", "--topic=orders"]
    producer = [f"--producer-opt={opt}" for opt in (*secure, "snappy", "auth_secret,all")]
    done = martlet("pub", *where, *producer, input=b"one\ntwo\nthree\n")
    assert done.returncode == 0, done.stderr.decode()
    consumer = [f"--consumer-opt={opt}" for opt in (*secure, "deflate", "auth_secret,all")]
    done = martlet(
        "tail", *where, *consumer, "--channel=c", "-n=3", "--consumer-opt=max_attempts,9"
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"one\ntwo\nthree\n"
    assert b"--consumer-opt max_attempts=9 has no effect: a message comes again" in done.stderr


@pytest.mark.parametrize(
    ("opts", "says"),
    [
        (["auth_secret,nobody's"], "E_AUTH_FAILED"),
        (["auth_secret,t"], "E_UNAUTHORIZED"),
        (["auth_secret,all", "tls_root_ca_file,/none"], "Tls(ca_file='/none'): No such file"),
    ],
)
def test_a_refusal_ends_a_tool(
    broker: BrokerProcess, secure: list[str], tmp_path: Path, opts: list[str], says: str
) -> None:
    where = [f"--nsqd-tcp-address={broker.tcp_address}", "--topic=orders"]
    runs = {
        "pub": [f"--producer-opt={opt}" for opt in (*secure, *opts)],
        "to-file": [
            f"--output-dir={tmp_path}",
            *(f"--consumer-opt={opt}" for opt in (*secure, *opts)),
        ],
    }
    for name, flags in runs.items():
        done = martlet(name, *where, *flags, input=b"one\n")
        assert done.returncode == 1
        assert says in done.stderr.decode().splitlines()[-1]
