"""nsqadmin and nsq_stat, as NSQ ships them, look at Martlet and at nsqd after the same was done to
both, and must show the same; actions through nsqadmin must do the same.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from tests.interop.broker.topic_cases import Stage, answers_of, id_of
from tests.interop.nsqd_process import NO_NSQD, NSQD, NsqdProcess

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

TOOLS = Path(NSQD).parent if NSQD else Path("/nowhere")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not (TOOLS / "nsqadmin").exists() or not (TOOLS / "nsq_stat").exists(),
        reason=f"no nsqadmin and nsq_stat beside it: {NO_NSQD}",
    ),
]
FLAGS = ("--e2e-processing-latency-percentile=1.0,0.5", "--broadcast-address=127.0.0.1")
START_S = 60.0
_VARY = (
    "heap_",
    "gc_",
    "next_gc",
    "start_time",
    "connect_ts",
    "connected",
    "value",
    "min",
    "max",
    "average",
)
"""Numbers that differ from run to run."""


class Admin:
    """An nsqadmin that looks at one broker."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._address = f"127.0.0.1:{free_port()}"
        self.command = [
            str(TOOLS / "nsqadmin"),
            f"--http-address={self._address}",
            f"--nsqd-http-address={broker.http_address}",
        ]

    def ask(self, path: str, method: str = "GET", **fields: object) -> list[Any]:
        """Return the status and the answer, without the parts that vary."""
        request = urllib.request.Request(
            f"http://{self._address}{path.replace('NODE', self._broker.http_address)}",
            data=json.dumps(fields).encode() if method != "GET" else None,
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                status, body = answer.status, answer.read().decode()
        except HTTPError as error:
            status, body = error.code, error.read().decode()
        for address, name in (
            (self._broker.http_address, "HTTP"),
            (self._broker.tcp_address, "TCP"),
        ):
            body = re.sub(rf"(?<=[\w.]):{address.rpartition(':')[2]}\b", f":{name}", body)
        return [status, _same(json.loads(body)) if body.startswith("{") else body]

    def wait(self) -> None:
        """Until it listens."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                if self.ask("/ping")[0] == 200:
                    return
            except (URLError, ConnectionError):
                assert time.monotonic() < deadline_s, "nsqadmin does not listen"
                time.sleep(0.02)


def _same(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _same(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_same(item, key) for item in value]
    if key in ("http_port", "tcp_port") or key.startswith(_VARY):
        return type(value).__name__
    if key == "remote_address" and isinstance(value, str):
        return value.rpartition(":")[0]
    return value


@contextmanager
def admin_of(broker: BrokerProcess) -> Iterator[Admin]:
    admin = Admin(broker)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(admin.command, stdout=log, stderr=log)
        try:
            admin.wait()
            yield admin
        finally:
            process.terminate()
            process.wait()


def some_traffic(stage: Stage) -> None:
    """Topics and channels in many states; the clients stay as long as the stage does."""
    consumer = stage.consumer("orders", "billing", ready=3)
    stage.post("/channel/create", topic="orders", channel="audit")
    stage.post("/channel/pause", topic="orders", channel="audit")
    producer = stage.client("shop")
    for _ in range(6):
        assert producer.ask(b"PUB orders\n\0\0\0\3abc") == b"OK"
    held = [consumer.receive() for _ in range(3)]
    consumer.send(b"RDY 0\nFIN " + id_of(held[0]) + b"\nREQ " + id_of(held[1]) + b" 60000\n")
    # nsqd forgets a deferral where its topic is still busy with what came before.
    stage.wait("orders", "billing", "deferred_count", 1)
    stage.wait("orders", "billing", "depth", 3)
    stage.wait("orders", "audit", "depth", 6)
    stage.post("/pub", b"later", topic="orders", defer="60000")
    stage.post("/topic/create", topic="quiet")
    stage.post("/topic/pause", topic="quiet")
    stage.post("/pub", b"kept", topic="quiet")
    stage.wait("orders", "billing", "deferred_count", 2)
    stage.wait("orders", "billing", "depth", 3)
    stage.see("traffic", "orders", "quiet")


def both(look: Callable[[BrokerProcess], Any]) -> tuple[Any, Any]:
    """Return the findings with Martlet and with nsqd, while the clients are there."""
    differences = []
    for kind in (BrokerProcess, NsqdProcess):
        with kind(None, *FLAGS) as broker, ExitStack() as clients:
            some_traffic(Stage(broker, clients))
            differences.append(look(broker))
    return differences[0], differences[1]


def test_nsqadmin_shows_the_same_of_both() -> None:
    paths = [
        "/api/topics",
        "/api/topics?inactive=true",
        "/api/topics/orders",
        "/api/topics/quiet",
        "/api/topics/nothere",
        "/api/topics/orders/billing",
        "/api/topics/orders/audit",
        "/api/topics/orders/nothere",
        "/api/nodes",
        "/api/nodes/NODE",
        "/api/counter",
    ]

    def look(broker: BrokerProcess) -> dict[str, Any]:
        with admin_of(broker) as admin:
            return {path: admin.ask(path) for path in paths}

    ours, nsqd = both(look)
    for path in paths:
        assert ours[path] == nsqd[path], path
    billing = ours["/api/topics/orders/billing"][1]
    assert billing["e2e_processing_latency"]["percentiles"], "nothing was measured"
    assert billing["clients"][0]["client_id"] == "consumer"


def test_actions_through_nsqadmin_take_effect() -> None:
    deeds: list[tuple[str, str, dict[str, object]]] = [
        ("POST", "/api/topics", {"topic": "made", "channel": "c"}),
        ("POST", "/api/topics", {"topic": "no$"}),
        ("POST", "/api/topics/orders", {"action": "pause"}),
        ("POST", "/api/topics/quiet", {"action": "unpause"}),
        ("POST", "/api/topics/quiet", {"action": "empty"}),
        ("POST", "/api/topics/orders/billing", {"action": "pause"}),
        ("POST", "/api/topics/orders/audit", {"action": "unpause"}),
        ("POST", "/api/topics/orders/audit", {"action": "empty"}),
        ("POST", "/api/topics/orders/nothere", {"action": "empty"}),
        ("DELETE", "/api/topics/orders/billing", {}),
        ("DELETE", "/api/topics/orders/billing", {}),
        ("DELETE", "/api/topics/quiet", {}),
        ("DELETE", "/api/topics/nothere", {}),
    ]

    def look(broker: BrokerProcess) -> list[Any]:
        def act(stage: Stage) -> None:
            with admin_of(broker) as admin:
                for method, path, fields in deeds:
                    stage.note(f"{method} {path} {fields}", admin.ask(path, method, **fields))
                    stage.see("then", "orders", "quiet", "made")

        return answers_of(broker, act)

    ours, nsqd = both(look)
    for mine, theirs in zip(ours, nsqd, strict=True):
        assert mine == theirs


@pytest.mark.parametrize(("channel", "depth"), [("billing", 3), ("audit", 6)])
def test_nsq_stat_counts_the_same_of_both(channel: str, depth: int) -> None:
    def look(broker: BrokerProcess) -> str:
        command = [
            str(TOOLS / "nsq_stat"),
            f"--nsqd-http-address={broker.http_address}",
            "--topic=orders",
            f"--channel={channel}",
            "--interval=50ms",
            "--count=2",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout

    ours, nsqd = both(look)
    assert ours == nsqd
    assert ours.splitlines()[-1].split()[3] == str(depth)
