"""Publishing to a real broker without a client, over HTTP."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterable
from typing import Any


def post(address: str, target: str, body: bytes = b"") -> bytes:
    request = urllib.request.Request(f"http://{address}{target}", data=body, method="POST")
    with urllib.request.urlopen(request, timeout=30) as response:
        answer: bytes = response.read()
    return answer


def publish(address: str, topic: str, bodies: Iterable[bytes]) -> None:
    """Store messages, as one MPUB."""
    listed = list(bodies)
    framed = [len(body).to_bytes(4, "big") + body for body in listed]
    count = len(listed).to_bytes(4, "big")
    post(address, f"/mpub?topic={topic}&binary=true", count + b"".join(framed))


def ask(address: str, target: str) -> Any:
    with urllib.request.urlopen(f"http://{address}{target}", timeout=30) as response:
        return json.load(response)
