"""nsqadmin's API: `martlet admin` beside the real nsqadmin, in front of the same servers.

The servers are a real nsqd, a Martlet broker, and lookup daemons of either kind. What both answer
must be equal but for times, rates and the order of brokers on one host.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from tests.interop.broker.topic_cases import Stage, id_of
from tests.interop.nsqd_process import NO_NSQD, NSQD, NsqdProcess

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port
from martlet.text import go_json

TOOLS = Path(NSQD).parent if NSQD else Path("/nowhere")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not (TOOLS / "nsqadmin").exists(), reason=f"no nsqadmin beside nsqd: {NO_NSQD}"
    ),
]
START_S = 60.0
_VARY = ("connected", "connect_ts", "average", "value", "min", "max")


class Server:
    """A process that answers HTTP."""

    def __init__(self, *command: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._command = [*command, f"--http-address={self.address}"]

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Run it until the end of the block."""
        process = subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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


class Cluster:
    """nsqd and Martlet behind a lookup daemon, and both pages in front of them."""

    def __init__(self, stack: ExitStack, *more: str, has_lookup: bool) -> None:
        python = (sys.executable, "-m", "martlet")
        flags = ["--e2e-processing-latency-percentile=1.0,0.5", "--broadcast-address=127.0.0.1"]
        self.tcp = f"127.0.0.1:{free_port()}"
        self.lookup = Server(str(TOOLS / "nsqlookupd"), f"--tcp-address={self.tcp}")
        if has_lookup:
            stack.enter_context(self.lookup.running())
            flags.append(f"--lookupd-tcp-address={self.tcp}")
        self.brokers: list[BrokerProcess] = [
            stack.enter_context(kind(None, *flags)) for kind in (NsqdProcess, BrokerProcess)
        ]
        where = (
            [f"--lookupd-http-address={self.lookup.address}"]
            if has_lookup
            else [f"--nsqd-http-address={broker.http_address}" for broker in self.brokers]
        )
        self.theirs = stack.enter_context(Server(str(TOOLS / "nsqadmin"), *where, *more).running())
        self.ours = stack.enter_context(Server(*python, "admin", *where, *more).running())

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        deadline_s = time.monotonic() + START_S
        while not holds():
            assert time.monotonic() < deadline_s, what
            time.sleep(0.02)


@pytest.fixture(scope="module", params=[True, False], ids=["lookup", "named"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster(stack, has_lookup=request.param)
        for broker in cluster.brokers:
            _traffic(Stage(broker, stack))
        if request.param:
            cluster.lookup.ask("POST", "/topic/create?topic=inactive")
            cluster.lookup.ask("POST", "/channel/create?topic=inactive&channel=old")
            cluster.wait(
                lambda: all(len(_producers(cluster, topic)) == 2 for topic in ("orders", "quiet")),
                "brokers did not register",
            )
        yield cluster


def _traffic(stage: Stage) -> None:
    consumer = stage.consumer("orders", "billing", ready=3)
    stage.post("/channel/create", topic="orders", channel="audit")
    stage.post("/channel/pause", topic="orders", channel="audit")
    for _ in range(6):
        stage.post("/pub", b"abc", topic="orders")
    held = [consumer.receive() for _ in range(3)]
    consumer.send(b"RDY 0\nFIN " + id_of(held[0]) + b"\nREQ " + id_of(held[1]) + b" 60000\n")
    stage.wait("orders", "billing", "deferred_count", 1)
    stage.wait("orders", "billing", "depth", 3)
    stage.wait("orders", "audit", "depth", 6)
    stage.post("/topic/create", topic="quiet")
    stage.post("/topic/pause", topic="quiet")
    stage.post("/pub", b"kept", topic="quiet")


def _same(value: Any, key: str = "") -> Any:
    """Return an answer without what varies, lists of brokers in one order."""
    if isinstance(value, dict):
        return {"order": list(value)} | {name: _same(item, name) for name, item in value.items()}
    if isinstance(value, list):
        items = [_same(item, key) for item in value]
        if items and isinstance(items[0], dict):
            items.sort(key=lambda item: json.dumps(item, sort_keys=True))
        return items
    if key in _VARY:
        return type(value) in (int, float)
    return value


@pytest.mark.parametrize(
    "path",
    [
        *("/api/topics", "/api/topics?inactive=true", "/api/topics/orders", "/api/topics/quiet"),
        *("/api/topics/orders/billing", "/api/topics/orders/audit", "/api/topics/orders/nothere"),
        *("/api/nodes", "/api/nodes/NSQD", "/api/nodes/MARTLET", "/api/counter"),
        *("/api/nodes/127.0.0.1:1", "/api/topics/nothere", "/api/topics/nothere/x"),
        *("/api/nothere", "/api/graphite", "/api/graphite?metric=rate", "/config/nothere"),
        *("/config/nsqlookupd_http_addresses", "/config/nsqd_http_addresses"),
        *("/config/admin_users", "/config/acl_http_header", "/config/allow_config_from_cidr"),
    ],
)
def test_both_show_the_same(cluster: Cluster, path: str) -> None:
    for broker, name in zip(cluster.brokers, ("NSQD", "MARTLET"), strict=True):
        path = path.replace(name, broker.http_address)
    theirs, ours = (page.ask("GET", path) for page in (cluster.theirs, cluster.ours))
    if ours[0] == 502:
        assert ours[1]["message"].startswith("UPSTREAM_ERROR: failed to query any nsq")
        theirs[1] = ours[1]
    if path == "/api/topics/orders":
        # The broker that answers first has the sums of channels; which one that is is not told.
        for answer in (theirs[1], ours[1]):
            for node in answer["nodes"]:
                del node["channels"]
            for node in answer["channels"]:
                assert len(node.pop("nodes")) == 1
                del node["hostname"]
    assert _same(ours) == _same(theirs)


WRONG: list[tuple[str, str, object]] = [
    ("POST", "/api/topics", b"no json"),
    ("POST", "/api/topics", b"[]"),
    ("POST", "/api/topics", {"topic": "no$"}),
    ("POST", "/api/topics", {"topic": "good", "channel": "no$"}),
    ("POST", "/api/topics/orders", {"action": "nothing"}),
    ("POST", "/api/topics/orders", b""),
    ("POST", "/api/topics/orders/billing", {}),
    ("POST", "/api/topics/nothere", {"action": "pause"}),
    ("DELETE", "/api/nodes/127.0.0.1:1", b"no json"),
    ("DELETE", "/api/nodes/127.0.0.1:1", {"topic": "no$"}),
    ("DELETE", "/api/nodes/127.0.0.1:1", {"topic": "orders"}),
    ("DELETE", "/api/topics/nothere", None),
    ("DELETE", "/api/topics", None),
    ("PUT", "/api/topics/orders", b"x"),
    ("PUT", "/config/nothere", b"x"),
    ("PUT", "/config/log_level", b"nothing"),
    ("PUT", "/config/log_level", b""),
    ("PUT", "/config/nsqlookupd_http_addresses", b"no json"),
]


@pytest.mark.parametrize(("method", "path", "body"), WRONG)
def test_both_refuse_the_same(cluster: Cluster, method: str, path: str, body: object) -> None:
    theirs, ours = (page.ask(method, path, body) for page in (cluster.theirs, cluster.ours))
    assert ours[0] == theirs[0], (ours, theirs)
    if ours[1] != theirs[1]:  # Texts of JSON decoders and of sockets differ.
        assert ours[0] in (200, 400, 502), (ours, theirs)
        assert ours[1].keys() == theirs[1].keys()


def _state(cluster: Cluster) -> Any:
    """Return what the brokers and the daemon have of the topics made."""
    differences = []
    for broker in cluster.brokers:
        with urllib.request.urlopen(
            f"http://{broker.http_address}/stats?format=json&include_clients=false"
        ) as answer:
            topics = json.load(answer)["topics"]
        differences.append(
            {
                topic["topic_name"]: (
                    topic["paused"],
                    topic["depth"],
                    {channel["channel_name"]: (channel["paused"], channel["depth"])
                     for channel in topic["channels"]},
                )
                for topic in topics
                if topic["topic_name"].startswith("made")
            }
        )  # fmt: skip
    return differences


DEEDS: list[tuple[str, str, object]] = [
    ("POST", "/api/topics/made", {"action": "pause"}),
    ("POST", "/api/topics/made", {"action": "unpause"}),
    ("POST", "/api/topics/made/c", {"action": "pause"}),
    ("POST", "/api/topics/made/c", {"action": "empty"}),
    ("POST", "/api/topics/made/c", {"action": "unpause"}),
    ("POST", "/api/topics/made2", {"action": "empty"}),
    ("POST", "/api/topics/made/nothere", {"action": "pause"}),
    ("DELETE", "/api/topics/made/c", None),
    ("DELETE", "/api/topics/made", None),
    ("DELETE", "/api/topics/made2", None),
]


def test_both_do_the_same(cluster: Cluster) -> None:
    seen = []
    for page in (cluster.theirs, cluster.ours):
        notes: list[Any] = []
        for broker in cluster.brokers:
            for path in ("/topic/create?topic=made", "/channel/create?topic=made&channel=c",
                         "/topic/create?topic=made2"):  # fmt: skip
                _post(broker, path)
            for topic in ("made", "made2"):
                _post(broker, f"/pub?topic={topic}", b"abc")
        cluster.wait(
            lambda: [page["made"][2]["c"][1] for page in _state(cluster)] == [1, 1],
            "messages did not reach the channel",
        )
        if cluster.ours.ask("GET", "/config/nsqlookupd_http_addresses")[1]:
            cluster.wait(
                lambda: all(len(_producers(cluster, topic)) == 2 for topic in ("made", "made2")),
                "brokers did not register",
            )
        for method, path, body in DEEDS:
            status, answer = page.ask(method, path, body)
            warned = isinstance(answer, dict) and bool(answer.get("message"))
            notes.append((method, path, status, warned, _state(cluster)))
        seen.append(notes)
    for theirs, ours in zip(*seen, strict=True):
        assert ours == theirs


def test_both_create_at_the_daemon_and_hide_a_broker(cluster: Cluster) -> None:
    if not cluster.ours.ask("GET", "/config/nsqlookupd_http_addresses")[1]:
        answers = [page.ask("POST", "/api/topics", {"topic": "new", "channel": "c"})
                   for page in (cluster.theirs, cluster.ours)]  # fmt: skip
        assert answers[0][0] == answers[1][0] == 502
        return
    for number, page in enumerate((cluster.theirs, cluster.ours)):
        name = f"new{number}"
        assert page.ask("POST", "/api/topics", {"topic": name, "channel": "c"})[0] in (200, 502)
        assert cluster.lookup.ask("GET", f"/channels?topic={name}")[1] == {"channels": ["c"]}
        for broker in cluster.brokers:
            _post(broker, f"/topic/create?topic=made{number}")
        cluster.wait(
            lambda number=number: len(_producers(cluster, f"made{number}")) == 2,  # type: ignore[misc]
            "brokers did not register",
        )
        node = cluster.brokers[number].http_address
        assert page.ask("DELETE", f"/api/nodes/{node}", {"topic": f"made{number}"}) == [
            200,
            {"message": ""},
        ]
        cluster.wait(
            lambda number=number: len(_producers(cluster, f"made{number}")) == 1,  # type: ignore[misc]
            "the broker is still named",
        )
        assert f"made{number}" not in _state(cluster)[number]


def _producers(cluster: Cluster, topic: str) -> list[Any]:
    producers: list[Any] = cluster.lookup.ask("GET", f"/lookup?topic={topic}")[1].get(
        "producers", []
    )
    return producers


def _post(broker: BrokerProcess, path: str, body: bytes = b"") -> None:
    request = urllib.request.Request(
        f"http://{broker.http_address}{path}", data=body, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def _is_stopped(process_id: int) -> bool:
    """Return whether all threads of a process are in the state T."""
    stats = Path(f"/proc/{process_id}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def test_both_warn_of_a_broker_that_does_not_answer() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, "--http-client-request-timeout=1s", has_lookup=True)
        for broker in cluster.brokers:
            _post(broker, "/topic/create?topic=orders")
            _post(broker, "/channel/create?topic=orders&channel=c")
        cluster.wait(lambda: len(_producers(cluster, "orders")) == 2, "brokers did not register")
        for broker in cluster.brokers:
            # nsqlookupd goes on naming it, since its connection stays.
            process = broker._process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            stack.callback(process.send_signal, signal.SIGCONT)
            # Until one thread takes the signal, the others go on.
            cluster.wait(partial(_is_stopped, process.pid), "a stopped broker goes on")
            for path in ("/api/topics/orders", "/api/topics/orders/c", "/api/counter"):
                theirs, ours = (page.ask("GET", path) for page in (cluster.theirs, cluster.ours))
                assert ours[0] == theirs[0], path
                assert bool(ours[1]["message"]) == bool(theirs[1]["message"]), path
                assert broker.http_address in ours[1]["message"]
                assert _same(_counts(ours)) == _same(_counts(theirs)), path
            process.send_signal(signal.SIGCONT)


def _counts(answer: list[Any]) -> Any:
    return {name: value for name, value in answer[1].items() if name != "message"}


def test_options_change_while_both_run(cluster: Cluster) -> None:
    for page in (cluster.theirs, cluster.ours):
        assert page.ask("PUT", "/config/log_level", b"debug")[0] == 200
        before = page.ask("GET", "/config/nsqlookupd_http_addresses")[1]
        if before:
            body = json.dumps(before).encode()
            assert page.ask("PUT", "/config/nsqlookupd_http_addresses", body) == [200, before]
