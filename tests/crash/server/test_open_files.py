"""A broker whose clients open more connections than the system lets it have."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from tests.interop.asking import ask, until
from tests.interop.certificates import Certificates

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash
LIMIT = 128
BODY = b"x" * 10_000
PUB = b"PUB t\n" + len(BODY).to_bytes(4, "big") + BODY
OK = b"\0\0\0\6\0\0\0\0OK"


class LimitedBroker(BrokerProcess):
    """A broker that may open few files."""

    @staticmethod
    def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        limited = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *command]
        return subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def is_served(broker: BrokerProcess) -> bool:
    try:
        return bool(ask(broker.http_address, "/ping") == "OK")
    except OSError:
        return False


def test_clients_that_begin_no_tls_leave_descriptors_to_the_log(
    tmp_path: Path, certificates: Certificates
) -> None:
    """Until its handshake ends, a connection has a descriptor and no protocol."""
    flags = "--https-address=127.0.0.1:0", "--max-bytes-per-file=1048576", *certificates.flags
    with (
        LimitedBroker(tmp_path, *flags) as broker,
        connected(broker.tcp_address) as publisher,
        ExitStack() as stack,
    ):
        publisher.sendall(b"  V2")
        until(lambda: "HTTPS: listening on" in broker.log())
        address = re.findall(r"HTTPS: listening on (\S+)", broker.log())[-1]
        for _ in range(2 * LIMIT):
            stack.enter_context(connected(address))
        until(lambda: "too few files are left" in broker.log())
        for number in range(300):  # three segments
            publisher.sendall(PUB)
            assert publisher.recv(100) == OK, number


def test_the_log_begins_segments_at_the_limit_of_open_files(tmp_path: Path) -> None:
    with (
        LimitedBroker(tmp_path, "--max-bytes-per-file=1048576") as broker,
        connected(broker.tcp_address) as publisher,
    ):
        publisher.sendall(b"  V2")
        with ExitStack() as stack:
            for address in (broker.tcp_address, broker.http_address):
                for _ in range(LIMIT):
                    stack.enter_context(connected(address))
            for number in range(600):  # six segments
                publisher.sendall(PUB)
                assert publisher.recv(100) == OK, number
            until(lambda: "refusing" in broker.log() and "too few files are left" in broker.log())
        until(lambda: is_served(broker))  # The connections before end first.
        (topic,) = ask(broker.http_address, "/stats?format=json&topic=t")["topics"]
        assert topic["message_count"] == 600
