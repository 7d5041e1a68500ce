"""nsqadmin with a lookup daemon alone: what it shows, and does, through Martlet's daemon
and brokers is what it shows and does through nsqlookupd and nsqd.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.broker.topic_cases import Stage
from tests.interop.console.test_nsqadmin import TOOLS, Admin, some_traffic
from tests.interop.lookup_process import NSQLOOKUPD, LookupProcess, NsqlookupdProcess
from tests.interop.nsqd_process import NO_NSQD, NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        NSQLOOKUPD is None or not (TOOLS / "nsqadmin").exists(),
        reason=f"no nsqlookupd and nsqadmin beside it: {NO_NSQD}",
    ),
]
PATHS = [
    *("/api/topics", "/api/topics?inactive=true", "/api/topics/orders", "/api/topics/quiet"),
    *("/api/topics/nothere", "/api/topics/orders/billing", "/api/topics/orders/audit"),
    *("/api/nodes", "/api/nodes/NODE", "/api/nodes/nowhere:1", "/api/counter"),
]
DEEDS: list[tuple[str, str, dict[str, object]]] = [
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
_TIMES = frozenset({"connected"})
_SETTLED_S = 0.3
_LOOKUP_S = 60.0


class Cluster:
    """A lookup daemon, a broker, clients of it, and an nsqadmin."""

    def __init__(self, lookup: LookupProcess, broker: BrokerProcess, admin: Admin) -> None:
        self._lookup = lookup
        self._broker = broker
        self.admin = admin

    def known(self) -> Any:
        """Return the registrations of the lookup daemon."""
        topics = sorted(ask(self._lookup.http_address, "/topics")["topics"])
        return {
            topic: [
                sorted(ask(self._lookup.http_address, f"/channels?topic={topic}")["channels"]),
                len(ask(self._lookup.http_address, f"/lookup?topic={topic}")["producers"]),
            ]
            for topic in topics
        } | {"nodes": self._nodes()}

    def has(self) -> Any:
        """Return the topics and channels of the broker."""
        topics = ask(self._broker.http_address, "/stats?format=json")["topics"] or ()
        return sorted(
            [
                *(topic["topic_name"], topic["paused"], topic["depth"]),
                *sorted(
                    [channel["channel_name"], channel["paused"]] for channel in topic["channels"]
                ),
            ]
            for topic in topics
        )

    def _nodes(self) -> Any:
        nodes = ask(self._lookup.http_address, "/nodes")["producers"]
        return [sorted(zip(node["topics"], node["tombstones"], strict=True)) for node in nodes]

    def ask(self, path: str, method: str = "GET", **fields: object) -> list[Any]:
        """Return the answer of nsqadmin, without the parts that differ from cluster to cluster."""
        status, answer = self.admin.ask(path, method, **fields)
        text = json.dumps(answer)
        for address in (self._lookup.http_address, self._lookup.tcp_address):
            text = re.sub(rf":{address.rpartition(':')[2]}\b", ":LOOKUP", text)
        text = re.sub(r"(:LOOKUP/127\.0\.0\.1):\d+", r"\1", text)
        return [status, _unordered(json.loads(text))]


def _unordered(value: Any) -> Any:
    """Lists in one order: what comes from maps of Go's has none."""
    if isinstance(value, dict):
        if "tombstones" in value and value.get("topics"):
            names = [
                topic if isinstance(topic, str) else topic["topic"] for topic in value["topics"]
            ]
            value = value | {"tombstones": dict(zip(names, value["tombstones"], strict=False))}
        return {name: _unordered(value[name]) for name in value.keys() - _TIMES}
    if isinstance(value, list):
        return sorted((_unordered(item) for item in value), key=repr)
    return value


class LookupAdmin(Admin):
    """An nsqadmin with a lookup daemon."""

    def __init__(self, broker: BrokerProcess, lookup: LookupProcess) -> None:
        super().__init__(broker)
        self.command[-1] = f"--lookupd-http-address={lookup.http_address}"


@contextmanager
def cluster(ours: bool) -> Iterator[Cluster]:
    lookups, brokers = (LookupProcess, BrokerProcess) if ours else (NsqlookupdProcess, NsqdProcess)
    with ExitStack() as stack:
        lookup = stack.enter_context(lookups())
        flags = (f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1")
        broker = stack.enter_context(brokers(None, *flags))
        some_traffic(Stage(broker, stack))
        admin = LookupAdmin(broker, lookup)
        log = stack.enter_context(tempfile.TemporaryFile())
        process = stack.enter_context(subprocess.Popen(admin.command, stdout=log, stderr=log))
        stack.callback(process.terminate)
        admin.wait()
        made = Cluster(lookup, broker, admin)
        until(lambda: made.known().keys() >= {"orders", "quiet"})
        until(lambda: made.known()["orders"][0] == ["audit", "billing"])
        yield made


def test_nsqadmin_shows_the_same_of_both() -> None:
    shown = []
    for ours in (True, False):
        with cluster(ours) as one:
            shown.append({path: one.ask(path) for path in PATHS})
    mine, theirs = shown
    for path in PATHS:
        assert mine[path] == theirs[path], path
    assert mine["/api/nodes"][1]["nodes"], "nothing was found"


@pytest.mark.slow
def test_nsqadmin_does_the_same_through_both() -> None:
    answers = []
    with cluster(ours=False) as theirs:
        for method, path, fields in DEEDS:
            answer = theirs.ask(path, method, **fields)
            time.sleep(_SETTLED_S)  # until nsqlookupd has heard of all of it
            answers.append((answer, theirs.known(), theirs.has()))
    with cluster(ours=True) as mine:
        for (method, path, fields), (answer, expected, has) in zip(DEEDS, answers, strict=True):
            assert mine.ask(path, method, **fields) == answer, (method, path, fields)
            deadline_s = time.monotonic() + _LOOKUP_S
            while (mine.known(), mine.has()) != (expected, has) and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert (mine.known(), mine.has()) == (expected, has), (method, path, fields)
