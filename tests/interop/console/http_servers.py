"""nsqadmin, and other servers that answer HTTP, as processes; and traffic for brokers to show."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from tests.interop.broker.topic_cases import Stage, id_of
from tests.interop.nsqd_process import NO_NSQD, NSQD

from martlet.testing.ports import free_port
from martlet.text import go_json

TOOLS = Path(NSQD).parent if NSQD else Path("/nowhere")
NEEDS_NSQADMIN = pytest.mark.skipif(
    not all((TOOLS / name).exists() for name in ("nsqadmin", "nsq_stat", "nsqlookupd")),
    reason=f"no nsqadmin, nsq_stat and nsqlookupd beside nsqd: {NO_NSQD}",
)
START_S = 100.0


class HttpServer:
    """A process that answers HTTP."""

    def __init__(self, *command: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = [*command, f"--http-address={self.address}"]

    @contextmanager
    def running(self) -> Iterator[HttpServer]:
        """Run it until the end of the block."""
        process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline_s = time.monotonic() + START_S
            while True:
                try:
                    if self.ask("GET", "/ping")[0] == 200:
                        break
                except (URLError, ConnectionError):
                    assert time.monotonic() < deadline_s, f"{self._command[0]} does not listen"
                    assert process.poll() is None, f"{self._command} has ended"
                    time.sleep(0.02)
            yield self
        finally:
            process.terminate()
            process.wait()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> list[Any]:
        """Return the status and the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else None
        request = urllib.request.Request(
            f"http://{self.address}{path}", data=data, method=method, headers=headers
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                status, text = answer.status, answer.read().decode()
        except HTTPError as error:
            status, text = error.code, error.read().decode()
        if text[:1] not in ("{", "[", '"'):
            return [status, text]
        fields = json.loads(text)
        # Floats are written in other ways.
        assert "e-" in text or text == go_json(fields), "as Go writes it"
        return [status, fields]


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
