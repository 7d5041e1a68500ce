"""Ask a server over HTTP, once or until a condition holds."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def ask(address: str, path: str, method: str = "GET", body: bytes | None = None) -> Any:
    """Return the answer of an HTTP server, decoded if it is JSON."""
    request = urllib.request.Request(f"http://{address}{path}", body, method=method)
    with urllib.request.urlopen(request, timeout=10) as response:
        text = response.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def until(ask_once: Callable[[], Any], seconds: float = 100) -> Any:
    """Ask until the answer is yes, as another process has to get there."""
    deadline_s = time.monotonic() + seconds
    while True:
        answer: Any = None
        with suppress(urllib.error.HTTPError):
            answer = ask_once()
        if answer:
            return answer
        assert time.monotonic() < deadline_s, f"{answer!r} after {seconds} s"
        time.sleep(0.02)
