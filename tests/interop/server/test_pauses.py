"""A broker that was stopped for longer than its timeouts: what lies in the sockets counts."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

from tests.crash.wire import pub, u32
from tests.interop.asking import ask, until
from tests.interop.auth_server import EVERYTHING, Answer, AuthServer, allowed
from tests.interop.lookup_process import LookupProcess
from tests.interop.upgraded_wire import UpgradedWire

from martlet.protocol.lookup import identify, register
from martlet.testing import BrokerProcess

TIMEOUT_MS = 1500
STOPPED_S = 3 * TIMEOUT_MS / 1000
COUNT = 20_000
"""So many that their answers are read in several turns of the broker's loop."""
TTL_S = INACTIVE_S = 5
"""Well over the second of a pause that counts where pauses do not."""
PUBLISH = "/v1/topics/t/messages"
PRODUCER = {
    "broadcast_address": "127.0.0.1",
    "hostname": "h",
    "tcp_port": 1,
    "http_port": 2,
    "version": "1.3.0",
}


def frame(wire: UpgradedWire) -> bytes:
    """The data of the next frame that is no heartbeat."""
    while (data := wire.frame().data) == b"_heartbeat_":
        pass
    return data


class Request:
    """A request over HTTP that is sent at once, and whose answer is read later."""

    def __init__(self, address: str, method: str, path: str, body: bytes = b"") -> None:
        self._connection = HTTPConnection(address, timeout=60)
        headers = {"X-Martlet-Auth": "all", "Content-Type": "application/json"}
        self._connection.request(method, path, body, headers)

    def answer(self) -> tuple[int, bytes]:
        with closing(self._connection), self._connection.getresponse() as response:
            return response.status, response.read()


def stop(process_id: int) -> None:
    os.kill(process_id, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{process_id}/stat").read_text().rsplit(") ")[-1][0] == "T")


def test_answers_that_came_while_the_broker_was_stopped_are_accepted() -> None:
    with BrokerProcess(None, f"--max-rdy-count={COUNT}") as broker:
        ask(broker.http_address, "/topic/create?topic=t", "POST")
        ask(broker.http_address, "/channel/create?topic=t&channel=c", "POST")
        policy = {"topic": "t", "channel": "c", "policy": {"max_attempts": 1}}
        ask(broker.http_address, "/call/channel.configure", "POST", json.dumps(policy).encode())
        consumer = UpgradedWire(broker.tcp_address)
        consumer.identify(msg_timeout=TIMEOUT_MS, heartbeat_interval=1000)
        consumer.send(b"SUB t c\nRDY %d\n" % COUNT)
        assert frame(consumer) == b"OK"
        bodies = b"\n".join(b"%d" % number for number in range(COUNT))
        ask(broker.http_address, "/mpub?topic=t", "POST", bodies)
        ids = [frame(consumer)[10:26] for _ in range(COUNT)]
        stop(broker.process_id)
        try:
            consumer.send(b"".join(b"FIN %s\n" % each for each in ids))
            time.sleep(STOPPED_S)
        finally:
            os.kill(broker.process_id, signal.SIGCONT)

        def channel() -> dict[str, int]:
            (topic,) = ask(broker.http_address, "/stats?format=json&topic=t")["topics"]
            found: dict[str, int] = topic["channels"][0]
            return found

        until(lambda: not channel()["in_flight_count"])
        after = channel()
        assert {name: after[name] for name in ("depth", "timeout_count", "client_count")} == {
            "depth": 0,
            "timeout_count": 0,
            "client_count": 1,
        }
        assert after["dead_letter_count"] == after["requeue_count"] == 0
        ask(broker.http_address, "/pub?topic=t", "POST", b"behind it")
        assert frame(consumer)[26:] == b"behind it", "the connection stands"
        consumer.socket.close()


def test_a_permission_of_the_auth_server_ends_while_the_broker_is_stopped() -> None:
    """The requests lie in the sockets meanwhile, and are the first that is read."""
    with (
        AuthServer({"all": Answer(allowed(EVERYTHING, ttl=TTL_S))}) as server,
        BrokerProcess(None, f"--auth-http-address={server.address}") as broker,
        UpgradedWire(broker.tcp_address) as client,
    ):
        client.send(b"AUTH\n" + u32(3) + b"all" + pub("t", b"before"))
        assert b"anna" in frame(client)
        assert frame(client) == b"OK"
        for _ in range(2):
            assert (
                Request(broker.http_address, "POST", PUBLISH, b'{"body": "x"}').answer()[0] == 200
            )
        assert len(server.asked) == 2, "what was answered is kept"
        stop(broker.process_id)
        try:
            client.send(pub("t", b"behind"))
            http = Request(broker.http_address, "POST", PUBLISH, b'{"body": "x"}')
            time.sleep(TTL_S + 0.5)
        finally:
            os.kill(broker.process_id, signal.SIGCONT)
        assert frame(client) == b"OK"
        assert http.answer()[0] == 200
        assert len(server.asked) == 4


def test_a_lookup_daemon_that_was_stopped_drops_no_producer() -> None:
    with LookupProcess(None, f"--inactive-producer-timeout={INACTIVE_S}s") as lookup:
        host, port = lookup.tcp_address.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as producer:
            producer.sendall(b"  V1" + identify(PRODUCER) + register("t"))
            until(lambda: ask(lookup.http_address, "/lookup?topic=t")["producers"])
            stop(lookup.process_id)
            try:
                http = Request(lookup.http_address, "GET", "/lookup?topic=t")
                time.sleep(INACTIVE_S + 0.5)
            finally:
                os.kill(lookup.process_id, signal.SIGCONT)
            (seen,) = json.loads(http.answer()[1])["producers"]
            assert seen["hostname"] == PRODUCER["hostname"]
