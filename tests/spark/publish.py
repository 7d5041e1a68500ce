"""Publishing to a real broker without a client, over HTTP."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from crc32c import crc32c

from martlet.properties.model import KeyHash


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
