"""The OpenAPI document, checked against a broker by schemathesis, and who may use its routes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.http_client import HttpClient
from tests.interop.operator_routes import status

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[4]
DOCUMENT = ("GET", "/v1/openapi.json")
PUBLISHER = {"topic": "^t$", "channels": [".*"], "permissions": ["publish"]}
CONSUMER = {"topic": "^t$", "channels": ["^c$"], "permissions": ["subscribe"]}


def test_the_broker_does_what_its_document_says(tmp_path: Path) -> None:
    with BrokerProcess() as broker:
        HttpClient(broker.http_address, "there", "there").receive()
        arguments = (
            f"http://{broker.http_address}{DOCUMENT[1]}",
            "--phases=coverage,fuzzing",
            "--max-examples=40",
            "--request-timeout=10",
            "--checks=all",
            # What a schema cannot say is refused: a receipt of nobody, a queue that is not there.
            "--exclude-checks=positive_data_acceptance",
            "--continue-on-failure",
            "--generation-database=none",
            "--warnings=off",
            "--no-color",
        )
        done = subprocess.run(
            [Path(sys.executable).parent / "schemathesis", "run", *arguments],
            env=os.environ
            | {
                "SCHEMATHESIS_HOOKS": "tests.interop.server.http.openapi_hooks",
                "PYTHONPATH": str(ROOT),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        # All but that of the document, which was read for it.
        assert "6 selected / 6 total" in done.stdout
        assert "panic" not in broker.log()


@pytest.fixture
def server() -> Iterator[AuthServer]:
    answers = {
        "all": Answer(allowed(EVERYTHING)),
        "publisher": Answer(allowed(PUBLISHER)),
        "consumer": Answer(allowed(CONSUMER, ttl=1)),
        "nothing": Answer(allowed()),
    }
    with AuthServer(answers) as server:
        yield server


def test_auth_decides_as_for_nsqs_protocol(server: AuthServer) -> None:
    with BrokerProcess(None, f"--auth-http-address={server.address}") as broker:

        def client(secret: str | None, topic: str = "t", channel: str = "c") -> HttpClient:
            headers = {} if secret is None else {"X-Martlet-Auth": secret}
            return HttpClient(broker.http_address, topic, channel, headers)

        def codes(client: HttpClient) -> list[int]:
            answers = [client.publish("x"), client.post("channels/c/receive")]
            return [answer.status for answer in answers]

        assert codes(client(None)) == [401, 401]
        assert "X-Martlet-Auth" in client(None).publish("x").json["message"]
        assert codes(client("wrong")) == [403, 403]
        assert codes(client("nothing")) == [403, 403]
        assert codes(client("publisher")) == [200, 403]
        assert codes(client("consumer")) == [403, 200]
        assert codes(client("all")) == [200, 200]
        assert codes(client("publisher", "other")) == [403, 403]
        assert client("publisher").post("channels/c/finish", b'{"receipts": ["x"]}').status == 403
        assert client("consumer").post("channels/c/finish", b'{"receipts": ["x"]}').status == 409
        assert client("consumer").post("channels/d/receive").status == 403
        question = dict(server.asked[-1].query)
        assert question | {"secret": ""} == {
            "common_name": "", "remote_ip": "127.0.0.1", "secret": "", "tls": "false",
        }  # fmt: skip
        # An answer is kept for its time.
        assert server.count("publisher") == 1
        before = server.count("consumer")
        time.sleep(1.1)
        assert client("consumer").post("channels/c/receive").status == 200
        assert server.count("consumer") == before + 1
        # The document, and nsqd's routes, are open as before.
        assert status(broker.http_address, DOCUMENT)[0] == 200
        assert status(broker.http_address, ("POST", "/pub?topic=t"))[0] == 200
