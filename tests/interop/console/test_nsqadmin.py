"""nsqadmin and nsq_stat, as NSQ ships them, look at Martlet and at NSQ after the same was done to
both, and must show the same; actions through nsqadmin must do the same. nsqadmin is given either
the broker or a lookup daemon that knows it: Martlet's, or nsqlookupd.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from contextlib import ExitStack
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.broker.topic_cases import Stage
from tests.interop.console.http_servers import NEEDS_NSQADMIN, TOOLS, HttpServer, some_traffic
from tests.interop.lookup_process import LookupProcess, NsqlookupdProcess
from tests.interop.nsqd_process import NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.interop, NEEDS_NSQADMIN]
FLAGS: tuple[str, ...] = (
    "--e2e-processing-latency-percentile=1.0,0.5",
    "--broadcast-address=127.0.0.1",
)
_VARY = (
    *("heap_", "gc_", "next_gc", "start_time", "connect_ts", "connected"),
    *("value", "min", "max", "average"),
)
"""Numbers that differ from run to run."""
_SETTLED_S = 0.3
_LOOKUP_S = 60.0
Deeds = list[tuple[str, str, dict[str, object]]]


class Stand:
    """A broker with traffic, a lookup daemon if there is to be one, and an nsqadmin."""

    def __init__(self, stack: ExitStack, *, ours: bool, has_lookup: bool) -> None:
        kinds = (LookupProcess, BrokerProcess) if ours else (NsqlookupdProcess, NsqdProcess)
        flags, where = FLAGS, ""
        self._lookup = stack.enter_context(kinds[0]()) if has_lookup else None
        if self._lookup:
            flags = (*FLAGS, f"--lookupd-tcp-address={self._lookup.tcp_address}")
            where = f"--lookupd-http-address={self._lookup.http_address}"
        self.broker = stack.enter_context(kinds[1](None, *flags))
        self.stage = Stage(self.broker, stack)
        some_traffic(self.stage)
        where = where or f"--nsqd-http-address={self.broker.http_address}"
        self._admin = stack.enter_context(HttpServer(str(TOOLS / "nsqadmin"), where).running())
        if self._lookup:
            until(lambda: self.known().keys() >= {"orders", "quiet"})
            until(lambda: self.known()["orders"][0] == ["audit", "billing"])

    def known(self) -> Any:
        """Return the registrations of the lookup daemon."""
        assert self._lookup is not None
        address = self._lookup.http_address
        nodes = ask(address, "/nodes")["producers"]
        return {
            topic: [
                sorted(ask(address, f"/channels?topic={topic}")["channels"]),
                len(ask(address, f"/lookup?topic={topic}")["producers"]),
            ]
            for topic in sorted(ask(address, "/topics")["topics"])
        } | {
            "nodes": [
                sorted(zip(node["topics"], node["tombstones"], strict=True)) for node in nodes
            ]
        }

    def has(self) -> Any:
        """Return the topics and channels of the broker."""
        topics = ask(self.broker.http_address, "/stats?format=json")["topics"] or ()
        return sorted(
            [
                *(topic["topic_name"], topic["paused"], topic["depth"]),
                *sorted(
                    [channel["channel_name"], channel["paused"]] for channel in topic["channels"]
                ),
            ]
            for topic in topics
        )

    def ask(self, path: str, method: str = "GET", **fields: object) -> list[Any]:
        """Return the answer of nsqadmin, without the parts that vary."""
        path = path.replace("NODE", self.broker.http_address)
        status, answer = self._admin.ask(method, path, fields if method != "GET" else None)
        text = json.dumps(answer)
        names = {self.broker.http_address: "HTTP", self.broker.tcp_address: "TCP"}
        if self._lookup:
            names |= dict.fromkeys((self._lookup.http_address, self._lookup.tcp_address), "LOOKUP")
        for address, name in names.items():
            text = re.sub(rf"(?<=[\w.]):{address.rpartition(':')[2]}\b", f":{name}", text)
        text = re.sub(r"(:LOOKUP/127\.0\.0\.1):\d+", r"\1", text)
        answer = _same(json.loads(text))
        return [status, _unordered(answer) if self._lookup else answer]


def _same(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _same(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_same(item, key) for item in value]
    if key in ("http_port", "tcp_port") or key.startswith(_VARY):
        return type(value).__name__
    if key == "remote_address" and isinstance(value, str):
        return value.rpartition(":")[0]
    return value


def _unordered(value: Any) -> Any:
    """Lists in one order: what comes from maps of Go's has none."""
    if isinstance(value, dict):
        if "tombstones" in value and value.get("topics"):
            names = [
                topic if isinstance(topic, str) else topic["topic"] for topic in value["topics"]
            ]
            value = value | {"tombstones": dict(zip(names, value["tombstones"], strict=False))}
        return {name: _unordered(item) for name, item in value.items() if name != "connected"}
    if isinstance(value, list):
        return sorted((_unordered(item) for item in value), key=repr)
    return value


PATHS = [
    *("/api/topics", "/api/topics?inactive=true", "/api/topics/orders", "/api/topics/quiet"),
    *("/api/topics/nothere", "/api/topics/orders/billing", "/api/topics/orders/audit"),
    *("/api/nodes", "/api/nodes/NODE", "/api/nodes/nowhere:1", "/api/counter"),
]


@pytest.mark.parametrize("has_lookup", [False, True], ids=["the broker", "a lookup daemon"])
def test_nsqadmin_shows_the_same_of_both(has_lookup: bool) -> None:
    shown = []
    for ours in (True, False):
        with ExitStack() as stack:
            stand = Stand(stack, ours=ours, has_lookup=has_lookup)
            paths = PATHS if has_lookup else [*PATHS, "/api/topics/orders/nothere"]
            shown.append({path: stand.ask(path) for path in paths})
    mine, theirs = shown
    for path in mine:
        assert mine[path] == theirs[path], path
    assert mine["/api/nodes"][1]["nodes"], "nothing was found"
    billing = mine["/api/topics/orders/billing"][1]
    assert billing["e2e_processing_latency"]["percentiles"], "nothing was measured"
    assert billing["clients"][0]["client_id"] == "consumer"


def test_actions_through_nsqadmin_take_effect() -> None:
    deeds: Deeds = [
        ("POST", "/api/topics", {"topic": "made", "channel": "c"}),
        ("POST", "/api/topics", {"topic": "no$"}),
        ("POST", "/api/topics/orders", {"action": "pause"}),
        ("POST", "/api/topics/quiet", {"action": "unpause"}),
        ("POST", "/api/topics/quiet", {"action": "empty"}),
        ("POST", "/api/topics/orders/billing", {"action": "pause"}),
        ("POST", "/api/topics/orders/audit", {"action": "unpause"}),
        ("POST", "/api/topics/orders/audit", {"action": "empty"}),
        ("POST", "/api/topics/orders/nothere", {"action": "empty"}),
        ("DELETE", "/api/topics/orders/billing", {}),
        ("DELETE", "/api/topics/orders/billing", {}),
        ("DELETE", "/api/topics/quiet", {}),
        ("DELETE", "/api/topics/nothere", {}),
    ]
    seen = []
    for ours in (True, False):
        with ExitStack() as stack:
            stand = Stand(stack, ours=ours, has_lookup=False)
            for method, path, fields in deeds:
                stand.stage.note(f"{method} {path} {fields}", stand.ask(path, method, **fields))
                stand.stage.see("then", "orders", "quiet", "made")
            seen.append(stand.stage.seen)
    for mine, theirs in zip(*seen, strict=True):
        assert mine == theirs


@pytest.mark.slow
def test_nsqadmin_does_the_same_through_lookup_daemons() -> None:
    deeds: Deeds = [
        ("POST", "/api/topics", {"topic": "made", "channel": "c"}),
        ("POST", "/api/topics", {"topic": "orders", "channel": "new"}),
        ("POST", "/api/topics/orders", {"action": "pause"}),
        ("POST", "/api/topics/orders/audit", {"action": "empty"}),
        ("DELETE", "/api/topics/orders/audit", {}),
        ("DELETE", "/api/topics/orders/nothere", {}),
        ("DELETE", "/api/nodes/NODE", {"topic": "quiet"}),
        ("DELETE", "/api/nodes/nowhere:1", {"topic": "orders"}),
        ("DELETE", "/api/topics/made", {}),
        ("DELETE", "/api/topics/orders", {}),
    ]
    answers = []
    with ExitStack() as stack:
        theirs = Stand(stack, ours=False, has_lookup=True)
        for method, path, fields in deeds:
            answer = theirs.ask(path, method, **fields)
            time.sleep(_SETTLED_S)  # until nsqlookupd has heard of all of it
            answers.append((answer, theirs.known(), theirs.has()))
    with ExitStack() as stack:
        mine = Stand(stack, ours=True, has_lookup=True)
        for (method, path, fields), (answer, *state) in zip(deeds, answers, strict=True):
            assert mine.ask(path, method, **fields) == answer, (method, path, fields)
            deadline_s = time.monotonic() + _LOOKUP_S
            while [mine.known(), mine.has()] != state and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert [mine.known(), mine.has()] == state, (method, path, fields)


def test_nsq_stat_counts_the_same_of_both() -> None:
    lines = []
    for kind in (BrokerProcess, NsqdProcess):
        with kind(None, *FLAGS) as broker, ExitStack() as clients:
            some_traffic(Stage(broker, clients))
            where = [f"--nsqd-http-address={broker.http_address}", "--topic=orders"]
            for channel in ("billing", "audit"):
                command = [str(TOOLS / "nsq_stat"), *where, f"--channel={channel}"]
                command += ["--interval=50ms", "--count=2"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                lines.append(done.stdout)
    assert lines[:2] == lines[2:]
    assert [shown.splitlines()[-1].split()[3] for shown in lines[:2]] == ["3", "6"]
