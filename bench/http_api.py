"""A broker's HTTP API, as far as benchmarks need it."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen


def get(address: str, path: str) -> Any:
    """Return the JSON of an answer."""
    with urlopen(f"http://{address}/{path}", timeout=30) as response:
        return json.load(response)


def post(address: str, path: str) -> None:
    """Post a command, which is done when the broker answers."""
    urlopen(Request(f"http://{address}/{path}", method="POST"), timeout=30).close()


def stored_count(address: str, topic: str) -> int:
    """Return how many messages the topic has."""
    topics = get(address, "log/topics")["topics"]
    queues = [queue for each in topics if each["topic"] == topic for queue in each["queues"]]
    return sum(queue["end_offset"] for queue in queues)
