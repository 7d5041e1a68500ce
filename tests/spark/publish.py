"""What tests ask of a real broker over HTTP, and how they wait for what a query makes of it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from crc32c import crc32c

from martlet.properties.model import KeyHash

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def post(
    address: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    url = f"http://{address}{target}"
    request = urllib.request.Request(url, data=body, headers=dict(headers or {}), method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: bytes = response.read()
    return answer


def key_of(queue: int, queues: int) -> str:
    """Return an order key whose messages are in the given queue."""
    number = KeyHash.CRC32C_FMIX32.of
    return next(
        key for key in map(str, range(1000)) if number(crc32c(key.encode())) % queues == queue
    )


def publish(address: str, topic: str, bodies: Iterable[bytes], order_key: str = "") -> None:
    """Store messages, as one MPUB."""
    listed = list(bodies)
    framed = [len(body).to_bytes(4, "big") + body for body in listed]
    count = len(listed).to_bytes(4, "big")
    headers = {"X-Martlet-Order-Key": order_key} if order_key else {}
    post(address, f"/mpub?topic={topic}&binary=true", count + b"".join(framed), headers)


def ask(address: str, target: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{target}", timeout=30) as response:
        return json.load(response)


def open_count(address: str) -> int:
    """How many transactions have not ended."""
    return int(json.loads(post(address, "/call/transaction.list"))["count"])


def wait_for(
    condition: Callable[[], bool], query: StreamingQuery | None = None, timeout_s: float = 200
) -> None:
    """Poll until a condition holds, which a query that has failed does not reach."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        error = query.exception() if query is not None else None
        assert error is None, error
        assert time.monotonic() < deadline_s, query and query.lastProgress
        time.sleep(0.02)
