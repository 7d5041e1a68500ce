r"""HTTP requests in the order in which they are sent, to nsqd once and to Martlet in each test.

    NSQD=/path/to/nsqd python -m tests.interop.server.http.http_cases \
        > tests/interop/server/http/nsqd_http.json

records what nsqd answers. Both are started with the limits in LIMITS.
"""

from __future__ import annotations

import http.client
import json
import re
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

from tests.interop.nsqd_process import NsqdProcess
from tests.interop.upgraded_wire import UpgradedWire, identify

LIMITS = ("--max-msg-size=1024", "--max-body-size=5120")
NSQD_FLAGS = (*LIMITS, "--mem-queue-size=10000")
_KEPT_HEADERS = ("Content-Type", "X-NSQ-Content-Type", "Allow", "Location")
_SETTLE_S = 0.3
Answer = dict[str, Any]


class Case(NamedTuple):
    """One request."""

    method: str
    target: str
    body: bytes | None = None


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def sized(*bodies: bytes) -> bytes:
    """The body of a binary /mpub."""
    return struct.pack(">I", len(bodies)) + b"".join(
        struct.pack(">I", len(body)) + body for body in bodies
    )


def _gets(*targets: str) -> list[Case]:
    return [Case("GET", target) for target in targets]


def _posts(*targets: str, body: bytes | None = None) -> list[Case]:
    return [Case("POST", target, body) for target in targets]


def _many(*bodies: bytes, binary: bool = False) -> list[Case]:
    target = "/mpub?topic=m&binary=true" if binary else "/mpub?topic=m"
    return [Case("POST", target, body) for body in bodies]


ROUTING = [
    *_gets("/ping", "/ping/", "/PING", "//ping", "/topic/../ping", "/ping/?a=b", "/nope", "/"),
    *_gets("/pub?topic=t", "/config", "/config/", "/info", "/topic/create?topic=a"),
    *(Case(method, "/ping") for method in ("HEAD", "POST", "OPTIONS", "PUT")),
    *(Case("OPTIONS", target) for target in ("/nope", "*", "/pub", "/config/log_level")),
    *_posts("/pub/", "/stats", "/config/log_level", body=b"x"),
    *_gets("/CONFIG/LOG_LEVEL", "/config/log_level/?", "/config//log_level", "/Info?a"),
    *_gets("/%zz", "/ping%2", "/%70ing"),
    *_posts("/PUB?topic=t", "//mpub?topic=t", body=b"x"),
    Case("DELETE", "/topic/create"),
    Case("PUT", "/pub?topic=t", b"x"),
]
PUBLISH = [
    *_posts("/pub?topic=t", body=b"hello"),
    *_posts("/pub?topic=t", body=b""),
    *_posts("/pub", "/pub?topic=", "/pub?topic=a%20b", "/pub?topic=a%zz", body=b"x"),
    *_posts("/pub?topic=t;x=1", "/pub?topic=t&topic=u", "/pub?&topic=t&&", body=b"x"),
    *_posts(*(f"/pub?topic=t&defer={ms}" for ms in (0, 1000, 3600000, "%2B5")), body=b"x"),
    *_posts(*(f"/pub?topic=t&defer={ms}" for ms in (-1, 3600001, "abc", "", "1_0")), body=b"x"),
    *_posts(*(f"/pub?topic=t&defer={ms}" for ms in ("+5", 10**19, 2**63 - 1)), body=b"x"),
    *_posts("/pub?topic=t", body=b"x" * 1024),
    *_posts("/pub?topic=t", body=b"x" * 1025),
    *_posts(f"/pub?topic={'n' * 64}", f"/pub?topic={'n' * 65}", body=b"x"),
    *_posts("/pub?topic=t%23ephemeral", "/pub?topic=%23ephemeral", body=b"x"),
]
PUBLISH_MANY = [
    *_many(b"a\nb\nc", b"a\n\nb\n", b"", b"x" * 1024, b"x" * 1025, b"ok\n" + b"x" * 1025 + b"\n"),
    *_many(b"x\n" * 2560, b"x\n" * 2560 + b"y"),
    *_posts("/mpub", "/mpub?topic=bad$", body=b"a"),
    *_posts("/mpub?topic=m&binary=false", "/mpub?topic=m&binary=0", body=b"q\n"),
    *_posts("/mpub?topic=m&binary=1", "/mpub?topic=m&binary=yes", body=sized(b"a")),
    *_posts("/mpub?topic=m&binary=", "/mpub?topic=m&binary", body=sized(b"a")),
    *_many(sized(b"a", b"bb", b"ccc"), sized(b"a") + b"zz", sized(b"x" * 1024), binary=True),
    *_many(b"", b"\0\0", struct.pack(">I", 0), binary=True),
    *_many(sized(b"a", b""), sized(b"a")[:-1], sized(b"a", b"b")[:-6], binary=True),
    *_many(sized(b"x" * 1025), sized(*[b"x" * 1000] * 6), binary=True),
    *_many(struct.pack(">I", 1023) + b"xx", struct.pack(">I", 1024) + b"xx", binary=True),
    *_many(struct.pack(">i", -1) + b"xx", struct.pack(">Ii", 1, -1) + b"xx", binary=True),
]
TOPICS = [
    *_posts("/topic/create?topic=a", "/topic/create?topic=a", "/topic/create"),
    *_posts("/topic/create?topic=no$", "/topic/create?topic=%zz"),
    *_posts("/topic/empty?topic=a", "/topic/empty", "/topic/empty?topic=no$"),
    *_posts("/topic/empty?topic=nothere", "/topic/empty?topic=%zz"),
    *_posts("/topic/pause?topic=a", "/topic/pause", "/topic/pause?topic=no$"),
    *_posts("/topic/pause?topic=nothere"),
    *_gets("/stats?format=json&topic=a&include_mem=false"),
    *_posts("/topic/unpause?topic=a", "/topic/unpause?topic=nothere"),
]
_A_C = "topic=a&channel=c"
CHANNELS = [
    *_posts(f"/channel/create?{_A_C}", f"/channel/create?{_A_C}%23ephemeral"),
    *_posts("/channel/create?topic=a", "/channel/create?channel=c"),
    *_posts("/channel/create?topic=no$&channel=c", "/channel/create?topic=a&channel=no$"),
    *_posts("/channel/create?topic=nothere&channel=c"),
    *_posts(
        f"/channel/empty?{_A_C}", "/channel/empty?topic=a&channel=no", "/channel/empty?topic=a"
    ),
    *_posts(f"/channel/pause?{_A_C}", "/channel/pause?topic=a&channel=nothere"),
    *_gets(f"/stats?{_A_C}&include_mem=false"),
    *_posts(f"/channel/unpause?{_A_C}", "/channel/unpause?topic=a&channel=nothere"),
]
FILL = [
    *_posts("/pub?topic=a", body=b"one"),
    *_posts("/mpub?topic=a", body=b"two\nthree"),
    *_posts("/pub?topic=a&defer=3600000", body=b"four"),
]
STATS = [
    *_gets("/stats?format=json&topic=a&include_mem=false"),
    *_gets(f"/stats?format=json&{_A_C}&include_clients=false&include_mem=0"),
    *_gets("/stats?format=json&topic=a&channel=none&include_mem=false"),
    *_gets("/stats?format=json&topic=none&include_mem=false", "/stats?format=json&topic=none"),
    *_gets("/stats?format=json&include_mem=false&topic=m", "/stats?format=json&include_mem=false"),
    *_gets("/stats?topic=a&include_mem=false", "/stats", "/stats?format=xml&topic=none"),
    *_gets("/stats?include_clients=false&include_mem=false", "/stats?topic=%zz"),
]
CONFIG = [
    *_gets(*(f"/config/{name}" for name in ("log_level", "nsqlookupd_tcp_addresses", "nope"))),
    *_gets(*(f"/config/{name}" for name in ("msg_timeout", "deflate", "tls_min_version", "id"))),
    *_gets(*(f"/config/{name}" for name in ("tls_required", "max_body_size", "verbose"))),
    *_gets("/config/e2e_processing_latency_percentiles", "/config/statsd_prefix_"),
    Case("PUT", "/config/log_level", b"debug"),
    Case("GET", "/config/log_level"),
    *(Case("PUT", "/config/log_level", body) for body in (b"loud", b"", b"x" * 1025, b"info")),
    *(
        Case("PUT", "/config/nsqlookupd_tcp_addresses", body)
        for body in (b'["127.0.0.1:1"]', b"[]", b"{", b"[1]")
    ),
    *(Case("PUT", target, b"x") for target in ("/config/tcp_address", "/config/nope")),
]
DELETE = [
    *_posts(f"/channel/delete?{_A_C}", f"/channel/delete?{_A_C}"),
    *_posts("/channel/delete?topic=nothere&channel=c", "/channel/delete?topic=a"),
    *_posts("/topic/delete?topic=a", "/topic/delete?topic=a", "/topic/delete"),
    *_posts("/topic/delete?topic=no$"),
]


def asked(connection: http.client.HTTPConnection, case: Case, *more_headers: str) -> Answer:
    """Send a request, and give what matters of the answer."""
    connection.putrequest(case.method, case.target, skip_accept_encoding=True)
    if case.body is not None or case.method in ("POST", "PUT"):
        connection.putheader("Content-Length", str(len(case.body or b"")))
    connection.endheaders(case.body or None)
    response = connection.getresponse()
    body, headers = response.read().decode(errors="replace"), response.headers
    kept = [name for name in (*_KEPT_HEADERS, *more_headers) if name in headers]
    return {
        "status": response.status,
        "headers": {name: headers[name] for name in kept},
        "body": body,
    }


def exchange(port: int, case: Case) -> Answer:
    """Send a request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        return asked(connection, case)


class Client(UpgradedWire):
    """A client of the V2 protocol that says who it is and speaks no more than it must."""

    def __init__(self, port: int, name: str, **more: object) -> None:
        super().__init__(f"127.0.0.1:{port}")
        names = {"client_id": name, "hostname": f"{name}.host", "user_agent": "agent/1.0"}
        self.ask(identify(**{"feature_negotiation": False, **names, **more}))

    def ask(self, command: bytes) -> bytes:
        """Send a command and give the data of the frame that comes next."""
        self.send(command)
        return self.receive()

    def receive(self) -> bytes:
        """The data of the next frame. Raises ConnectionError where the broker has left."""
        try:
            return self.frame().data
        except EOFError as error:
            raise ConnectionError from error

    def close(self) -> None:
        """Leave."""
        self.socket.close()


@contextmanager
def clients(tcp_port: int) -> Iterator[None]:
    """A consumer that holds two messages and has finished one, and a producer."""
    with ExitStack() as stack:
        producer = stack.enter_context(Client(tcp_port, "producer"))
        consumer = stack.enter_context(Client(tcp_port, "consumer"))
        assert consumer.ask(b"SUB s c\n") == b"OK"
        for body in (b"one", b"two", b"three", b"four"):
            assert producer.ask(b"PUB s\n" + struct.pack(">I", len(body)) + body) == b"OK"
        consumer.send(b"RDY 2\n")
        first = consumer.receive()
        consumer.receive()
        consumer.send(b"FIN " + first[10:26] + b"\n")
        consumer.receive()
        time.sleep(_SETTLE_S)
        yield


def all_answers(tcp_port: int, http_port: int) -> list[tuple[Case, Answer]]:
    """Send everything, in order."""
    answers: list[tuple[Case, Answer]] = []

    def ask(cases: list[Case]) -> None:
        answers.extend((case, exchange(http_port, case)) for case in cases)

    for cases in (ROUTING, PUBLISH, PUBLISH_MANY, TOPICS, CHANNELS, FILL):
        ask(cases)
    time.sleep(_SETTLE_S)  # nsqd hands messages from topics to channels by and by
    ask(STATS)
    with clients(tcp_port):
        ask(_gets("/stats?format=json&topic=s&include_mem=false", "/stats?include_mem=0&topic=s"))
        ask(_gets("/stats?format=json&topic=m&include_mem=false"))
    ask(CONFIG)
    ask(DELETE)
    return answers


# What differs from run to run, or by intention, is made the same before answers are compared.

_NUMBERS = {"start_time", "http_port", "tcp_port", "connect_ts"}
_HOSTS = {"hostname", "broadcast_address"}
_TEXTS = (
    (r"(nsqd v1\.3\.0) \(.*\)", r"\1"),
    (r"start_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)\n", "start_time T\n"),
    (r"uptime [\d.hmµns]+s\n", "uptime D\n"),
    (r"be-depth: \d+ *", "be-depth: N "),
    (r"(   \w+ *\t)\d+\n", r"\1N\n"),
    (r"\.host:\d+", ".host:P"),
    (r"connected: \d+s", "connected: D"),
)


def normalised(answer: Answer) -> Answer:
    """The answer without what may differ."""
    body = answer["body"]
    if answer["headers"].get("Content-Type", "").startswith("application/json"):
        body = _same(json.loads(body)) if body else body
    else:
        for pattern, replacement in _TEXTS:
            body = re.sub(pattern, replacement, body)
    return answer | {"body": body}


def _same(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        # Martlet has its own version too, counts of messages dropped and of dead letters,
        # and has all of its backlog on the disk.
        left_out = {
            "martlet_version",
            "broker",
            "run",
            "log",
            "connection_count",
            "kind",
            "finish_latency",
            "dropped_count",
            "filtered_count",
            "refused_count",
            "dead_letter_count",
            "oldest_message_age_ms",
            "backend_depth",
        }
        return {name: _same(value[name], name) for name in value if name not in left_out}
    if isinstance(value, list):
        return [_same(item) for item in value]
    if key in _NUMBERS or key.startswith(("heap_", "gc_", "next_gc")):
        return type(value).__name__
    if key == "remote_address":
        return value.rpartition(":")[0]
    if key in _HOSTS and not value.endswith(".host"):
        return "host"
    return value


def _record() -> None:
    with NsqdProcess(None, *NSQD_FLAGS) as nsqd:
        answers = all_answers(port_of(nsqd.tcp_address), port_of(nsqd.http_address))
    rows = [
        json.dumps({"request": f"{case.method} {case.target}", **normalised(answer)})
        for case, answer in answers
    ]
    print("[\n" + ",\n".join(rows) + "\n]")


if __name__ == "__main__":
    _record()
