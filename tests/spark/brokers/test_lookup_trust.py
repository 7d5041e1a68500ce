"""Brokers that a lookup daemon alone names: which are asked, and which get the operator's token."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from martlet.pipeline.audit import AuditOptions, audit
from martlet.pipeline.job import JobFailed
from martlet.spark.brokers.brokers import QueryBrokers
from martlet.spark.brokers.endpoint import BrokerRefused
from martlet.spark.read.options import ReadOptions

TOKEN = "0123456789abcdef"
LISTING = {"broker": "b", "data_path": "/nowhere", "topics": []}


class Recorded(ThreadingHTTPServer):
    """A server that answers everything with the same, and keeps the paths and tokens."""

    daemon_threads = True

    def __init__(self, answer: Any, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.status = status
        self.requests: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorded

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        body = json.dumps(self.server.answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(*servers: Recorded) -> Iterator[None]:
    with ExitStack() as stack:
        for server in servers:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        yield


def node(host: object, port: object, *topics: str) -> dict[str, object]:
    return {"broadcast_address": host, "http_port": port, "tcp_port": 1, "topics": topics}


def poll(lookup: Recorded, token_file: Path, **options: str) -> None:
    given = {
        "lookup": lookup.address,
        "topic": "t",
        "timeoutMs": "0",
        "operatorTokenFile": str(token_file),
    }
    brokers = QueryBrokers(ReadOptions.parse(given | options, "batch"))
    try:
        brokers.poll(patient=True)
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
def test_a_query_sends_the_token_to_brokers_that_are_trusted(
    token_file: Path, trusted: str, token: str | None
) -> None:
    broker = Recorded(LISTING)
    lookup = Recorded({"producers": [node("127.0.0.1", broker.server_port)]})
    with serving(broker, lookup):
        poll(lookup, token_file, trustedBrokers=trusted)
    assert [sent for _, sent in lookup.requests] == [None]
    assert [sent for _, sent in broker.requests] == [token]


def test_a_query_sends_the_token_to_brokers_that_its_options_name(token_file: Path) -> None:
    broker, stranger = Recorded(LISTING), Recorded(LISTING)
    nodes = [node("127.0.0.1", each.server_port) for each in (broker, stranger)]
    lookup = Recorded({"producers": nodes})
    with serving(broker, stranger, lookup):
        poll(lookup, token_file, addresses=broker.address)
    assert [sent for _, sent in broker.requests] == [f"Bearer {TOKEN}"]
    assert [sent for _, sent in stranger.requests] == [None]


def test_a_query_that_is_refused_for_want_of_trust_says_so(token_file: Path) -> None:
    broker = Recorded({"message": "OPERATOR_TOKEN_MISSING"}, 401)
    lookup = Recorded({"producers": [node("127.0.0.1", broker.server_port, "t")]})
    with (
        serving(broker, lookup),
        pytest.raises(BrokerRefused, match=r"no operator's token.*option trustedBrokers"),
    ):
        poll(lookup, token_file)


@pytest.mark.parametrize("host", ["{own}/x?y=", "u@127.0.0.1", "127.0.0.1#", "127.1", "\uff11", 7])
def test_a_query_asks_no_broker_whose_address_is_none(token_file: Path, host: object) -> None:
    victim = Recorded(LISTING)
    host = host.format(own=victim.address) if isinstance(host, str) else host
    lookup = Recorded({"producers": [node(host, victim.server_port, "other")]})
    with serving(victim, lookup):
        poll(lookup, token_file)
        assert victim.requests == []
        lookup.answer = {"producers": [node(host, victim.server_port, "t")]}
        with pytest.raises(BrokerRefused, match="is no host name or IP address"):
            poll(lookup, token_file)
        assert victim.requests == []


def test_a_wrong_broker_to_trust_is_an_error_of_the_option() -> None:
    with pytest.raises(ValueError, match="option trustedBrokers: 'a/b' is no network"):
        ReadOptions.parse({"addresses": "a:1", "topic": "t", "trustedBrokers": "a/b"}, "batch")


def test_an_audit_asks_no_broker_whose_address_is_none() -> None:
    victim = Recorded(LISTING)
    lookup = Recorded({"producers": [node(f"{victim.address}/x?y=", 80)]})
    options = AuditOptions(lookupd_http_addresses=(lookup.address,), topics=("t",))
    with serving(victim, lookup), pytest.raises(JobFailed, match="is no host name or IP address"):
        audit(options)
    assert victim.requests == []
