"""A large table of HTTP requests, made by combining what may stand in each place of one.

There are too many to record each answer: they are asked of both where there is an
nsqd.  Findings worth keeping stand in http_cases.
"""

from __future__ import annotations

import http.client
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import product

from tests.interop.server.http.http_cases import Answer, Case, asked, sized

_PATHS = [
    *("/", "/ping", "/info", "/stats", "/pub", "/mpub", "/put", "/create_topic"),
    *("/config", "/config/log_level", "/config/nope", "/config/a/b"),
    *("/topic", "/topic/", "/topic/create/x"),
    *(f"/topic/{deed}" for deed in ("create", "delete", "empty", "pause", "unpause")),
    *(f"/channel/{deed}" for deed in ("create", "delete", "empty", "pause", "unpause")),
]
_METHODS = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "TRACE")
_NAMES = [
    *("a", "", "a%20b", "a+b", "%61", "a#ephemeral", "a%23ephemeral", "%23ephemeral", "A", "$"),
    *("n" * 64, "n" * 65, "n" * 54 + "%23ephemeral", "n" * 55 + "%23ephemeral", "a.b_c-D9", ".."),
    *("a/b", "a%2Fb", "a%00", "%ff", "%C3%A9", "a&topic=b", "a%", "a%2", "a%zz", "a;b", "a=b"),
    *("a%23Ephemeral", "a%23ephemeral%23ephemeral", "#x"),
]
_DEFERS = [
    *("0", "1", "-1", "+1", "%2B1", "-0", "00", "010", "1.0", "1e3", "0x10", "%201", "1_000"),
    *("3600000", "3600001", "9223372036854775807", "9223372036854775808", "9223372036855"),
    *("99999999999999999999", "", "abc", "%D9%A1", "+", "-", "--1", "1&defer=abc", "abc&defer=1"),
]
_BINARIES = ("true", "false", "1", "0", "TRUE", "True", "t", "yes", "no", "", "2", "%74rue")
_BODIES = [
    *(b"", b"\n", b"\n\n", b"\r\n", b"a\r\nb", b"a\nb\n", b"x" * 1024 + b"\n", b"x" * 1025),
    *(b"x" * 1025 + b"\n", b"a\n" + b"x" * 1025, b"x" * 5119, b"x" * 5120, b"x" * 5121),
    *(b"\n" * 5120, b"\n" * 5121, b"\0\0\0\1"),
]
_BINARY_BODIES = [
    *(b"", b"\0", sized(), sized(b"a"), sized(b"a") + b"b", sized(b"a", b""), sized(b"x" * 1024)),
    *(sized(b"x" * 1025), sized(b"a", b"b")[:-1], sized(b"a")[:-2], sized(*[b"x" * 1000] * 6)),
    *(struct.pack(">I", count) + b"\0\0\0\1a" * 5 for count in (0, 4, 6, 1023, 1024, 2**31 - 1)),
    *(struct.pack(">I", count) for count in (1, 2**31, 2**32 - 1)),
    *(struct.pack(">II", 1, size) + b"a" for size in (2**31, 2**32 - 1)),
]
_STATS = [
    *("format=JSON&topic=none", "format=&topic=none", "format&topic=none", "topic=none", "a=b=c"),
    *("format=json&topic=a", "topic=a&format=json", "format=json&topic=%61", "topic=a+b"),
    *("format=json&channel=c", "format=json&channel=none", "format=json&topic=a&channel=c"),
    *("format=json&channel=", "format=json&topic=&channel=", "channel=c", "=&=", "%zz"),
    *("format=json;topic=a", "format=json&format=text", "format=text&format=json"),
]
_BOOLEANS = ("true", "false", "1", "0", "FALSE", "no", "")


def _spoiled(path: str) -> Iterator[str]:
    """Return the path as a user may type it."""
    yield from (path + "/", path.upper(), "/" + path, path + "//", path.replace("/", "//"))
    yield from ("/x/.." + path, path + "/.", path.title(), path + "%20", path.replace("p", "%70"))
    yield from (path + "?", path + "?a", path + "/?topic=a", path[:-1] or "/")


def _requests(method: str, targets: Iterable[str], *bodies: bytes) -> Iterator[Case]:
    return (Case(method, *pair) for pair in product(targets, bodies))


def cases() -> Iterator[Case]:
    """All of them, in an order in which both can be asked."""
    for method, path in product(_METHODS, _PATHS):
        yield Case(method, path, b"x" if method in ("POST", "PUT", "PATCH") else None)
    for method, path in product(("GET", "POST", "PUT"), _PATHS):
        for target in _spoiled(path):
            # nsqd leads from "/config//" to "/config/", which it does not have.
            if target != "/config//":
                yield Case(method, target, None if method == "GET" else b"x")
    topics = ("create", "pause", "unpause", "empty", "delete")
    paths = ["/pub", "/mpub", *(f"/topic/{deed}" for deed in topics)]
    yield from _requests(
        "POST", (f"{path}?topic={name}" for path in paths for name in _NAMES), b"x"
    )
    yield Case("POST", "/topic/create?topic=a", b"")
    for deed, name in product(topics, _NAMES):
        for query in (f"topic=a&channel={name}", f"topic={name}&channel=c", f"channel={name}"):
            yield Case("POST", f"/channel/{deed}?{query}", b"")
    yield from _requests("POST", (f"/pub?topic=d&defer={defer}" for defer in _DEFERS), b"x")
    targets = [f"/mpub?topic=m&binary={binary}" for binary in _BINARIES]
    yield from _requests("POST", targets, b"a\nb\n", sized(b"a", b"b"), b"")
    targets = ["/mpub?topic=m", "/mpub?topic=$", "/mpub", "/pub?topic=m", "/pub?topic=$", "/pub"]
    yield from _requests("POST", [*targets, "/topic/create?topic=z"], *_BODIES)
    yield from _requests("POST", ["/mpub?topic=m&binary=true"], *_BINARY_BODIES)
    for query in _STATS:
        yield Case("GET", f"/stats?{query}&include_mem=0")
        yield Case("HEAD", f"/stats?{query}")
    for flag, value in product(("include_clients", "include_mem"), _BOOLEANS):
        yield Case("GET", f"/stats?format=json&{flag}={value}")
        yield Case("GET", f"/stats?{flag}={value}")


def answers(port: int, requests: list[Case]) -> Iterator[Answer]:
    """Return the answer to each request, on one connection while it stays open."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        for case in requests:
            yield asked(connection, case, "Connection")
