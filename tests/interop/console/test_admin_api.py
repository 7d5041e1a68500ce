"""nsqadmin's API: `martlet admin` beside the real nsqadmin, in front of the same servers.

The servers are a real nsqd, a Martlet broker, and lookup daemons of either kind. What both answer
must be equal but for times, rates and the order of brokers on one host.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.broker.topic_cases import Stage
from tests.interop.console.http_servers import NEEDS_NSQADMIN, TOOLS, HttpServer, some_traffic
from tests.interop.nsqd_process import NsqdProcess

from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = [pytest.mark.interop, NEEDS_NSQADMIN]
_VARY = ("connected", "connect_ts", "average", "value", "min", "max")


class Cluster:
    """nsqd and Martlet behind a lookup daemon, and both pages in front of them."""

    def __init__(self, stack: ExitStack, *more: str, has_lookup: bool) -> None:
        python = (sys.executable, "-m", "martlet")
        flags = ["--e2e-processing-latency-percentile=1.0,0.5", "--broadcast-address=127.0.0.1"]
        self.tcp = f"127.0.0.1:{free_port()}"
        self.lookup = HttpServer(str(TOOLS / "nsqlookupd"), f"--tcp-address={self.tcp}")
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
        self.theirs, self.ours = (
            stack.enter_context(HttpServer(*command, *where, *more).running())
            for command in ((str(TOOLS / "nsqadmin"),), (*python, "admin"))
        )

    def registered(self, *topics: str, count: int = 2) -> None:
        """Wait until the lookup daemon names so many brokers of each topic."""
        until(lambda: all(len(_producers(self, topic)) == count for topic in topics))


@pytest.fixture(scope="module", params=[True, False], ids=["lookup", "named"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster(stack, has_lookup=request.param)
        for broker in cluster.brokers:
            some_traffic(Stage(broker, stack))
        if request.param:
            cluster.lookup.ask("POST", "/topic/create?topic=inactive")
            cluster.lookup.ask("POST", "/channel/create?topic=inactive&channel=old")
            cluster.registered("orders", "quiet")
        yield cluster


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
        stats = ask(broker.http_address, "/stats?format=json&include_clients=false")
        differences.append(
            {
                topic["topic_name"]: (
                    topic["paused"],
                    topic["depth"],
                    {channel["channel_name"]: (channel["paused"], channel["depth"])
                     for channel in topic["channels"]},
                )
                for topic in stats["topics"]
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
                ask(broker.http_address, path, "POST")
            for topic in ("made", "made2"):
                ask(broker.http_address, f"/pub?topic={topic}", "POST", b"abc")
        until(lambda: [page["made"][2]["c"][1] for page in _state(cluster)] == [1, 1])
        if cluster.ours.ask("GET", "/config/nsqlookupd_http_addresses")[1]:
            cluster.registered("made", "made2")
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
            ask(broker.http_address, f"/topic/create?topic=made{number}", "POST")
        cluster.registered(f"made{number}")
        node = cluster.brokers[number].http_address
        answer = page.ask("DELETE", f"/api/nodes/{node}", {"topic": f"made{number}"})
        assert answer == [200, {"message": ""}]
        cluster.registered(f"made{number}", count=1)
        assert f"made{number}" not in _state(cluster)[number]


def _producers(cluster: Cluster, topic: str) -> list[Any]:
    producers: list[Any] = cluster.lookup.ask("GET", f"/lookup?topic={topic}")[1].get(
        "producers", []
    )
    return producers


def _is_stopped(process_id: int) -> bool:
    """Return whether all threads of a process are in the state T."""
    stats = Path(f"/proc/{process_id}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats} == {"T"}


def test_both_warn_of_a_broker_that_does_not_answer() -> None:
    with ExitStack() as stack:
        cluster = Cluster(stack, "--http-client-request-timeout=1s", has_lookup=True)
        for broker in cluster.brokers:
            ask(broker.http_address, "/topic/create?topic=orders", "POST")
            ask(broker.http_address, "/channel/create?topic=orders&channel=c", "POST")
        cluster.registered("orders")
        for broker in cluster.brokers:
            # nsqlookupd goes on naming it, since its connection stays.
            process = broker._process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            stack.callback(process.send_signal, signal.SIGCONT)
            # Until one thread takes the signal, the others go on.
            until(partial(_is_stopped, process.pid))
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
