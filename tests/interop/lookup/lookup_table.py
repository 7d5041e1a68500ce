"""Requests to a lookup daemon: a large table of HTTP requests, and long random walks of
brokers and operators.  Martlet's daemon and nsqlookupd must answer both alike.
"""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

from tests.interop.lookup_process import LookupProcess
from tests.interop.server.http import http_table
from tests.interop.server.http.http_cases import Answer, Case

PATHS = [
    *("/", "/ping", "/info", "/debug", "/lookup", "/topics", "/channels", "/nodes", "/stats"),
    *("/topic/create", "/topic/delete", "/topic/tombstone", "/topic/empty", "/topic"),
    *("/channel/create", "/channel/delete", "/channel/pause", "/config/log_level"),
    *("/create_topic", "/delete_topic", "/tombstone_topic_producer"),
]
NAMES = [
    *("a", "", "*", "a%20b", "a+b", "a#ephemeral", "a%23ephemeral", "%23ephemeral", "$", "%zz"),
    *("n" * 64, "n" * 65, "a;b", "a&topic=b", "%ff", "%C3%A9", "none"),
]
_LEFT_OUT = frozenset({"topology_region", "topology_zone"})
"""Fields of nsqlookupd since 1.3."""
_KEPT = frozenset({"last_update", "id", "remote_address"})
"""Fields that differ from run to run."""
_NEVER_NS = -6795364578871345152
"""The nanoseconds of Go for a time that was never set."""


def cases() -> Iterator[Case]:
    """The table."""
    for method, path in product(("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"), PATHS):
        yield Case(method, path, b"x" if method in ("POST", "PUT") else None)
    for path in PATHS:
        for spoiled in (path + "/", path.upper(), "/" + path, "/x/.." + path, path + "?a"):
            yield Case("GET", spoiled)
            yield Case("POST", spoiled, b"x")
    for deed, name in product(("create", "delete", "tombstone"), NAMES):
        yield Case("POST", f"/topic/{deed}?topic={name}", b"")
        yield Case("POST", f"/topic/{deed}?topic={name}&node=h:1", b"")
        yield Case("GET", "/topics")
    for deed, name in product(("create", "delete"), NAMES):
        for query in (f"topic=a&channel={name}", f"topic={name}&channel=c", f"channel={name}"):
            yield Case("POST", f"/channel/{deed}?{query}", b"")
    for path, name in product(("/lookup", "/channels"), NAMES):
        yield Case("GET", f"{path}?topic={name}")
        yield Case("GET", f"{path}?topic={name}&topic=a")
    for path in ("/topics", "/nodes", "/debug"):
        yield Case("GET", f"{path}?topic=a")


def same(answer: Answer) -> Answer:
    """An answer without what may differ."""
    body = answer["body"]
    if answer["status"] == 200 and not answer["headers"].get("X-NSQ-Content-Type"):
        body = ""  # a page, or a profile
    if answer["headers"].get("Content-Type", "").startswith("application/json") and body:
        body = _same(json.loads(body))
    return answer | {"body": body}


def _same(value: Any, key: str = "") -> Any:
    if key in _KEPT:
        return type(value).__name__
    if key == "tombstoned_at":
        return value == _NEVER_NS
    if isinstance(value, dict):
        if "topics" in value and "tombstones" in value:
            value = value | {
                "tombstones": dict(zip(value["topics"], value["tombstones"], strict=True))
            }
        return {name: _same(item, name) for name, item in value.items() if name not in _LEFT_OUT}
    if isinstance(value, list):
        return sorted((_same(item) for item in value), key=repr)  # a map of Go's has no order
    return value


class Peer:
    """A broker, as far as a lookup daemon hears of it."""

    def __init__(self, address: str, name: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        fields = {
            "hostname": name,
            "broadcast_address": f"{name}.example",
            "tcp_port": 4150,
            "http_port": 4151,
            "version": "1.3.0",
            "topology_region": "r",
            "topology_zone": "",
        }
        body = json.dumps(fields).encode()
        self._socket.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        assert self._answer().startswith(b"{")

    def say(self, command: str) -> str:
        """Send a command, and return the answer."""
        self._socket.sendall(command.encode() + b"\n")
        return self._answer().decode()

    def _answer(self) -> bytes:
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
            piece = self._socket.recv(65536)
            assert piece, "the daemon has hung up"
            data += piece
        return data[4:]

    def leave(self) -> None:
        """Hang up, and wait until the daemon has too."""
        self._socket.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            assert self._socket.recv(1) == b""
        self._socket.close()


_TOPICS = ("a", "b", "c#ephemeral")
_CHANNELS = ("x", "y", "z#ephemeral")
_LOOKS = (
    "/topics",
    "/nodes",
    "/debug",
    *(f"/lookup?topic={t}" for t in ("a", "b", "c%23ephemeral")),
)


def walk(lookup: LookupProcess, seed: int, steps: int) -> Iterator[tuple[str, Any]]:
    """A random walk: each step, and the registrations after it."""
    chance = random.Random(seed)
    port = int(lookup.http_address.rpartition(":")[2])
    peers: dict[str, Peer] = {}
    for _ in range(steps):
        name = chance.choice(("one", "two"))
        topic, channel = chance.choice(_TOPICS), chance.choice(_CHANNELS)
        escaped = topic.replace("#", "%23"), channel.replace("#", "%23")
        verb = chance.choice(("REGISTER", "REGISTER", "UNREGISTER"))
        both = f"topic={escaped[0]}&channel={escaped[1]}"
        step = chance.choices(
            (
                f"{name} leaves",
                f"{verb} {topic}",
                f"{verb} {topic} {channel}",
                "PING",
                f"/topic/create?topic={escaped[0]}",
                f"/topic/delete?topic={chance.choice((escaped[0], escaped[0], '*'))}",
                f"/topic/tombstone?topic={escaped[0]}&node={name}.example:4151",
                f"/channel/create?{both}",
                f"/channel/delete?{both}",
            ),
            (4, 10, 20, 2, 2, 3, 4, 3, 4),
        )[0]
        if step.startswith("/"):
            requests = [Case("POST", step, b"")]
            yield step, same(next(http_table.answers(port, requests)))
        elif step.endswith("leaves"):
            if name in peers:
                peers.pop(name).leave()
        else:
            if name not in peers:
                peers[name] = Peer(lookup.tcp_address, name)
            yield f"{name}: {step}", peers[name].say(step)
        requests = [Case("GET", request) for request in (*_LOOKS, "/channels?topic=*")]
        for request, answer in zip(requests, http_table.answers(port, requests), strict=True):
            yield f"{request.target} after {step}", same(answer)
    for peer in peers.values():
        peer.leave()
