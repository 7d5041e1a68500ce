"""`Admin` and its blocking twin beside two real brokers and a lookup daemon."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.lookup_process import LookupProcess

from martlet.client import Admin, Producer, sync
from martlet.client.admin import (
    AdminError,
    AdminNotFound,
    AdminUnreachable,
    ChannelCounts,
    distinct_nodes,
)
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

pytestmark = pytest.mark.interop
HOUR_MS = 3_600_000


class Cluster:
    """A lookup daemon and two brokers that it knows."""

    def __init__(self, lookup: LookupProcess, one: BrokerProcess, two: BrokerProcess) -> None:
        self.lookup = lookup
        self.one = one
        self.two = two
        self.brokers = [one.http_address, two.http_address]
        self.urls = [f"http://{address}" for address in self.brokers]

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish to both brokers."""
        for address in self.brokers:
            for body in bodies:
                ask(address, f"/pub?topic={topic}", "POST", body)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with LookupProcess() as lookup:
        flags = [
            f"--lookupd-tcp-address={lookup.tcp_address}",
            "--broadcast-address=127.0.0.1",
            "--journal-interval=10ms",
            "--trace",
        ]
        with BrokerProcess(None, *flags) as one, BrokerProcess(None, *flags) as two:
            until(lambda: len(ask(lookup.http_address, "/nodes")["producers"]) == 2)
            yield Cluster(lookup, one, two)


class Face:
    """Calls to one of the two clients, which wait for the result."""

    def __init__(self, *, is_blocking: bool) -> None:
        self.name = "blocking" if is_blocking else "asyncio"
        self._is_blocking = is_blocking

    def ask(self, call: Callable[[Any], Any], *addresses: str, **settings: Any) -> Any:
        """Make a call of a new client of these brokers, or by `settings`; list what it yields."""
        if self._is_blocking:
            with sync.Admin(addresses, **settings) as admin:
                result = call(admin)
                return list(result) if isinstance(result, Iterator) else result

        async def run() -> Any:
            async with Admin(addresses, **settings) as admin:
                result = call(admin)
                if hasattr(result, "__aiter__"):
                    return [message async for message in result]
                return await result

        return asyncio.run(run())


@pytest.fixture(params=[False, True], ids=["asyncio", "blocking"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(is_blocking=request.param)


def test_a_topic_and_a_channel_from_their_creation_to_their_end(
    cluster: Cluster, face: Face
) -> None:
    topic = f"life-{face.name}"

    def do(call: Callable[[Any], Any]) -> dict[str, Any]:
        answers = face.ask(call, *cluster.brokers)
        assert answers.errors == {}
        values: dict[str, Any] = answers.values
        assert list(values) == cluster.urls
        return values

    assert [*do(lambda admin: admin.topics.create(topic, queues=2)).values()] == [2, 2]
    do(lambda admin: admin.channels.create(topic, "c"))
    set_to = do(lambda admin: admin.channels.configure(topic, "c", retry_delays_ms=[10, 20]))
    assert [*set_to.values()] == [{"retry_delays_ms": [10, 20]}] * 2
    do(lambda admin: admin.channels.configure(topic, "c", retry_delays_ms=None))
    kept = do(lambda admin: admin.topics.configure(topic, retention_ms=HOUR_MS))
    assert [*kept.values()] == [{"retention_ms": HOUR_MS}] * 2
    do(lambda admin: admin.channels.pause(topic, "c"))
    do(lambda admin: admin.topics.pause(topic))
    cluster.publish(topic, b"one", b"two")
    (stats,) = do(lambda admin: admin.topics.list(topic))[cluster.urls[0]]
    assert (stats.topic, stats.is_paused, stats.queue_count) == (topic, True, 2)
    assert [(channel.channel, channel.is_paused) for channel in stats.channels] == [("c", True)]
    do(lambda admin: admin.topics.unpause(topic))
    do(lambda admin: admin.channels.unpause(topic, "c"))
    listed = face.ask(lambda admin: admin.channels.list(topic), *cluster.brokers)
    sums = listed.added(lambda item: item.channel, lambda item: item.counts)
    assert sums == {"c": ChannelCounts(depth=4, backend_depth=4, message_count=4)}
    emptied = do(lambda admin: admin.channels.empty(topic, "c"))
    assert [item.depth for item in emptied.values()] == [2, 2]
    restored = do(lambda admin: admin.channels.restore(topic, "c", emptied))
    assert [*restored.values()] == [2, 2]
    do(lambda admin: admin.channels.empty(topic, "c"))
    replayed = face.ask(
        lambda admin: admin.channels.replay(topic, "c", beginning=True), *cluster.brokers
    )
    assert replayed.total(lambda item: item.message_count) == 4
    do(lambda admin: admin.topics.empty(topic))
    do(lambda admin: admin.channels.delete(topic, "c"))
    do(lambda admin: admin.topics.delete(topic))
    assert [*do(lambda admin: admin.topics.list(topic)).values()] == [(), ()]


def test_messages_are_read_from_the_log_by_offset_time_and_id(cluster: Cluster, face: Face) -> None:
    topic = f"log-{face.name}"
    began_ms = time.time_ns() // 1_000_000

    def ask(call: Callable[[Any], Any]) -> Any:
        return face.ask(call, cluster.brokers[0]).values[cluster.urls[0]]

    def read(offset: int, queue: int, **options: Any) -> Any:
        return ask(lambda admin: admin.messages.read(topic, offset, queue=queue, **options))

    def publish(body: bytes, **options: Any) -> None:
        ask(lambda admin: admin.topics.publish(topic, body, **options))

    def find(message_id: str) -> Any:
        return ask(lambda admin: admin.messages.find(topic, message_id))

    ask(lambda admin: admin.topics.create(topic, 2))
    publish(b"one", tag="a", keys=["k"], headers={"h": "v"})
    publish(b"\xff\x00")
    publish(b"three")
    described = ask(lambda admin: admin.topics.describe(topic))
    assert (described.topic, described.policy, described.channel_policies) == (topic, {}, {})
    queues = described.queues
    assert [queue.queue for queue in queues] == [0, 1]
    assert sum(queue.end_offset for queue in queues) == 3
    received = [message for queue in queues for message in read(0, queue.queue).messages]
    assert sorted(message.body for message in received) == [b"one", b"three", b"\xff\x00"]
    (tagged,) = (message for message in received if message.properties)
    assert tagged.body == b"one"
    assert tagged.properties == {"tag": "a", "keys": ["k"], "headers": {"h": "v"}}
    for message in received:
        assert find(message.id) == message
        assert queues[message.queue].offset_of(message.id) == message.offset
        assert message.stored_at_ns // 1_000_000 >= began_ms
    place = max(queues, key=lambda item: int(item.end_offset))
    one = read(0, place.queue, limit=1)
    assert (len(one.messages), one.next_offset, one.is_end) == (1, 1, False)
    end = read(99, place.queue)
    assert (end.messages, end.next_offset, end.is_end) == ((), 2, True)
    since = ask(lambda admin: admin.messages.offset_at(topic, began_ms, queue=place.queue))
    assert (since.offset, since.is_gone, since.end_offset) == (0, False, 2)
    with pytest.raises(AdminNotFound, match="stores no message"):
        find(f"{int(place.id_base, 16) ^ 1 << 63:016x}")
    with pytest.raises(AdminNotFound, match="has no queue 7"):
        read(0, 7)


def test_messages_are_found_by_key_newest_first_and_in_pages(cluster: Cluster, face: Face) -> None:
    topic, url = f"keyed-{face.name}", cluster.urls[0]

    def ask(call: Callable[[Any], Any]) -> Any:
        return face.ask(call, cluster.brokers[0]).values[url]

    def publish(body: bytes, **options: Any) -> None:
        ask(lambda admin: admin.topics.publish(topic, body, **options))

    def find(message_id: str) -> Any:
        return ask(lambda admin: admin.messages.find(topic, message_id))

    def by_key(key: str, **options: Any) -> Any:
        return ask(lambda admin: admin.messages.by_key(topic, key, **options))

    ask(lambda admin: admin.topics.create(topic, 2))
    for number in range(6):
        publish(b"%d" % number, keys=["all", f"key-{number % 3}", "ü"])
    publish(b"ordered", order_key="all")
    publish(b"plain")
    every = by_key("all")
    assert [message.body for message in every.messages] == [b"ordered", *b"5 4 3 2 1 0".split()]
    assert every.next == ""
    for message in every.messages[1:]:
        assert message.properties["keys"] == ["all", f"key-{int(message.body) % 3}", "ü"]
        assert find(message.id) == message
    assert [message.body for message in by_key("key-1").messages] == [b"4", b"1"]
    assert len(by_key("ü").messages) == 6
    since, until = every.messages[3].stored_at_ns, every.messages[1].stored_at_ns
    some = by_key("all", since_ns=since, until_ns=until)
    assert [message.body for message in some.messages] == [b"4", b"3"]
    assert by_key("key").messages == by_key("key-9").messages == ()
    paged: list[Any] = []
    after = None
    while True:
        page = by_key("all", after=after, **({"limit": 2} if len(paged) < 4 else {"max_bytes": 1}))
        paged += page.messages
        if not page.next:
            break
        after = {url: page.next}
    assert paged == [*every.messages]
    with pytest.raises(AdminError, match="after 'x': it is the 'next' of an answer"):
        by_key("all", after={url: "x"})
    with pytest.raises(AdminError, match="it is none of the brokers that are asked"):
        by_key("all", after={"http://127.0.0.1:1": "x"})
    with pytest.raises(ValueError, match="key is empty"):
        by_key("")
    ask(lambda admin: admin.topics.empty(topic))
    ask(lambda admin: admin.topics.delete(topic))
    with pytest.raises(AdminNotFound):
        by_key("all")


def test_messages_are_peeked_at_in_all_queues_and_in_pages(cluster: Cluster, face: Face) -> None:
    topic = f"peek-{face.name}"
    face.ask(lambda admin: admin.topics.create(topic, 2), *cluster.brokers)
    face.ask(lambda admin: admin.channels.create(topic, "c"), *cluster.brokers)
    cluster.publish(topic, b"text", b"\xff\x00", b"long" * 50)
    answers = face.ask(
        lambda admin: admin.channels.peek(topic, "c", max_body_bytes=8), *cluster.brokers
    )
    for received in answers.values.values():
        assert sorted((message.body, message.body_bytes) for message in received) == [
            (b"longlong", 200),
            (b"text", 4),
            (b"\xff\x00", 2),
        ]
        assert {message.queue for message in received} == {0, 1}
        assert {message.state for message in received} == {"waiting"}
    pages = face.ask(lambda admin: admin.channels.peek_pages(topic, "c", limit=2), *cluster.brokers)
    counts = dict.fromkeys(cluster.urls, 0)
    for page in pages:
        counts[page.broker] += len(page.items)
    assert counts == dict.fromkeys(cluster.urls, 2)
    first = pages[0].next
    rest = face.ask(
        lambda admin: admin.channels.peek_pages(topic, "c", start=first), *cluster.brokers
    )
    assert {page.broker for page in rest} == {cluster.urls[0]}
    seen = [item.id for page in [pages[0], *rest] for item in page.items]
    assert len(seen) == len(set(seen)) == 3
    with pytest.raises(AdminNotFound, match="it is none of the brokers that are asked"):
        face.ask(
            lambda admin: admin.channels.peek_pages(topic, "c", start=first), cluster.brokers[1]
        )
    deferred = face.ask(
        lambda admin: admin.channels.peek(topic, "c", states=["deferred"]), *cluster.brokers
    )
    assert deferred.joined() == []


def test_groups_are_described_and_a_reset_has_a_preview(cluster: Cluster, face: Face) -> None:
    topic = f"group-{face.name}"
    face.ask(lambda admin: admin.topics.create(topic), *cluster.brokers)
    for address in cluster.brokers:
        fields = {"topic": topic, "group": "g", "client_id": "me", "start": "first"}
        ask(address, "/call/group.join", "POST", json.dumps(fields).encode())
    cluster.publish(topic, b"1", b"2", b"3")

    def do(call: Callable[[Any], Any]) -> Any:
        return face.ask(call, *cluster.brokers)

    (group,) = do(lambda admin: admin.groups.list(topic)).values[cluster.urls[1]]
    assert (group.group, group.member_count, group.lag, group.kind) == ("g", 1, 3, "offsets")
    described = do(lambda admin: admin.groups.describe(topic, "g")).values[cluster.urls[0]]
    assert [member.client_id for member in described.members] == ["me"]
    assert [(queue.member, queue.end_offset, queue.lag) for queue in described.queues] == [
        ("me", 3, 3)
    ]
    preview = do(lambda admin: admin.groups.reset(topic, "g", to_last=True, dry_run=True))
    assert [
        (queue.before, queue.offset, queue.lag) for queue in preview.values[cluster.urls[0]].queues
    ] == [(0, 3, 0)]
    assert do(lambda admin: admin.groups.lag(topic, "g")).total(lambda lag: lag) == 6
    with pytest.raises(AdminError, match="the group has 1 member") as refused:
        do(lambda admin: admin.groups.reset(topic, "g", to_last=True))
    assert (refused.value.status, refused.value.code) == (409, "CONFLICT")
    assert list(refused.value.errors) == cluster.urls
    do(lambda admin: admin.groups.reset(topic, "g", to_offset=2, force=True))
    assert do(lambda admin: admin.groups.lag(topic, "g")).total(lambda lag: lag) == 2
    with pytest.raises(ValueError, match="say where to"):
        do(lambda admin: admin.groups.reset(topic, "g", to_first=True, to_last=True))


def test_dead_letters_are_counted_tried_redriven_and_purged(cluster: Cluster, face: Face) -> None:
    topic = f"dead-{face.name}"
    where = (cluster.one.http_address,)

    def do(call: Callable[[Any], Any]) -> Any:
        ((_, value),) = face.ask(call, *where).values.items()
        return value

    do(lambda admin: admin.topics.create(topic))
    do(lambda admin: admin.channels.create(topic, "c"))
    do(lambda admin: admin.channels.configure(topic, "c", max_attempts=1))
    for body in (b"a", b"b", b"c"):
        ask(where[0], f"/pub?topic={topic}", "POST", body)
    with sync.Consumer(topic, "c", cluster.one.tcp_address) as consumer:
        for _ in range(3):
            next(consumer).reject("no card")
    until(lambda: do(lambda admin: admin.dead_letters.list(topic, "c")) is not None)
    until(lambda: do(lambda admin: admin.dead_letters.list(topic, "c"))[0].count == 3)
    (counted,) = do(lambda admin: admin.dead_letters.list(topic, "c"))
    assert [(channel.channel, channel.count, channel.reasons) for channel in counted.channels] == [
        ("c", 3, {"rejected": 3})
    ]
    letters = do(lambda admin: admin.dead_letters.show(topic, "c", limit=2))
    assert [(letter.body, letter.reason, letter.attempts) for letter in letters] == [
        (b"a", "rejected", 1),
        (b"b", "rejected", 1),
    ]
    pages = face.ask(lambda admin: admin.dead_letters.pages(topic, "c"), *where)
    assert [item.body for page in pages for item in page.items] == [b"a", b"b", b"c"]
    (page,) = face.ask(lambda admin: admin.dead_letters.pages(topic, "c", limit=1), *where)
    rest = face.ask(lambda admin: admin.dead_letters.pages(topic, "c", start=page.next), *where)
    assert [item.body for page in rest for item in page.items] == [b"b", b"c"]
    chosen = [letters[0].id, "0123456789abcdef"]
    tried = do(lambda admin: admin.dead_letters.redrive(topic, "c", ids=chosen, dry_run=True))
    assert (tried.count, tried.kept, tried.found) == (1, {}, {letters[0].id})
    assert do(lambda admin: admin.dead_letters.list(topic, "c"))[0].count == 3
    assert do(lambda admin: admin.dead_letters.redrive(topic, "c", ids=chosen)).count == 1
    with pytest.raises(ValueError, match="the selection is missing"):
        do(lambda admin: admin.dead_letters.purge(topic, "c"))
    assert do(lambda admin: admin.dead_letters.purge(topic, "c", all=True)).count == 2
    (back,) = do(lambda admin: admin.channels.peek(topic, "c"))
    assert back.body == b"a"


def test_delayed_messages_are_listed_and_cancelled(cluster: Cluster, face: Face) -> None:
    topic = f"delayed-{face.name}"
    at_ms = time.time_ns() // 1_000_000 + HOUR_MS
    with sync.Producer(cluster.one.tcp_address) as producer:
        sent = [producer.send(topic, b"x", deliver_at=(at_ms + n) / 1000) for n in range(3)]
        first = sent[0].id
        assert first is not None

    def do(call: Callable[[Any], Any]) -> Any:
        return face.ask(call, *cluster.brokers)

    listed = do(lambda admin: admin.delayed.list(topic, limit=2))
    assert [item.deliver_at_ms for item in listed.joined()] == [at_ms, at_ms + 1]
    (page,) = do(lambda admin: admin.delayed.pages(topic, limit=2))
    assert page.items == tuple(listed.joined())
    (last,) = do(lambda admin: admin.delayed.pages(topic, start=page.next))
    assert [item.deliver_at_ms for item in last.items] == [at_ms + 2]
    assert last.next is None
    # The other broker does not have the topic.
    assert [type(error) for error in listed.errors.values()] == [AdminNotFound]
    assert listed.check() is listed
    cancelled = do(lambda admin: admin.delayed.cancel(topic, [first, "0" * 16]))
    assert [(answer.cancelled, answer.not_waiting) for answer in cancelled.values.values()] == [
        ((first.decode(),), ("0" * 16,))
    ]
    (rest,) = do(lambda admin: admin.delayed.cancel_all(topic)).values.values()
    assert len(rest.cancelled) == 2
    pages = do(lambda admin: admin.delayed.pages(topic))
    assert [(page.count, page.items) for page in pages] == [(0, ())]


def test_a_transaction_is_found_at_its_broker(cluster: Cluster, face: Face) -> None:
    topic = f"transaction-{face.name}"

    def do(call: Callable[[Any], Any]) -> Any:
        return face.ask(call, *cluster.brokers)

    def begin(name: str) -> None:
        async def add() -> None:
            async with Producer(cluster.two.tcp_address) as producer:
                transaction = producer.transaction(name)
                await transaction.begin()
                await transaction.publish(topic, b"half", tag="t")
                await transaction.prepare()

        asyncio.run(add())

    keep, drop = f"keep-{face.name}", f"drop-{face.name}"
    begin(keep)
    begin(drop)
    listed = do(lambda admin: admin.transactions.list())
    open_transactions = {summary.id: summary for summary in listed.values[cluster.urls[1]]}
    assert open_transactions[keep].topics == {topic: 1}
    listed = do(lambda admin: admin.transactions.list(state="", group="", limit=1000))
    assert {keep, drop} <= {item.id for item in listed.joined()}
    assert do(lambda admin: admin.transactions.list(group="nobody's")).joined() == []
    with pytest.raises(ValueError, match="it is one of open, silent, prepared"):
        do(lambda admin: admin.transactions.list(state="committed"))
    with pytest.raises(AdminError, match="has 0 messages, and the commit says 7"):
        do(lambda admin: admin.transactions.commit(keep, branches={"nobody": 7}))
    shown = do(lambda admin: admin.transactions.show(keep))
    assert list(shown.values) == [cluster.urls[1]]
    (message,) = shown.values[cluster.urls[1]].messages
    assert (message.body, message.tag, message.topic) == (b"half", "t", topic)
    assert isinstance(shown.errors[cluster.urls[0]], AdminNotFound)
    committed = do(lambda admin: admin.transactions.commit(keep))
    assert [answer.state for answer in committed.values.values()] == ["committed"]
    dropped = do(lambda admin: admin.transactions.rollback(drop))
    assert [answer.state for answer in dropped.values.values()] == ["rolled-back"]
    with pytest.raises(AdminNotFound):
        do(lambda admin: admin.transactions.show("unknown"))


def test_a_message_is_traced_by_its_id_and_its_key(cluster: Cluster, face: Face) -> None:
    topic, key = f"trace-{face.name}", f"key-{face.name}"
    face.ask(lambda admin: admin.topics.create(topic), cluster.one.http_address)
    face.ask(lambda admin: admin.channels.create(topic, "c"), cluster.one.http_address)
    with sync.Producer(cluster.one.tcp_address) as producer:
        message_id = producer.send(topic, b"body", keys=[key]).id
    assert message_id is not None
    by_key = face.ask(lambda admin: admin.trace.find("", key=key, topic=""), *cluster.brokers)
    by_id = face.ask(lambda admin: admin.trace.find(message_id), *cluster.brokers)
    for answers in (by_key, by_id):
        (message,) = answers.values[cluster.urls[0]].messages
        assert (message.id, message.topic) == (message_id.decode(), topic)
        assert message.body_bytes == 4
        assert [(channel.channel, channel.state) for channel in message.channels] == [
            ("c", "waiting")
        ]
    with pytest.raises(ValueError, match="either a message's id or a key"):
        face.ask(lambda admin: admin.trace.find(), *cluster.brokers)


def test_lookup_daemons_know_the_brokers(cluster: Cluster, face: Face) -> None:
    topic = f"known-{face.name}"
    daemons = {"lookupd_http_addresses": cluster.lookup.http_address}
    face.ask(lambda admin: admin.topics.create(topic), **daemons)
    until(lambda: topic in ask(cluster.lookup.http_address, "/topics")["topics"])
    until(lambda: len(ask(cluster.lookup.http_address, f"/lookup?topic={topic}")["producers"]) == 2)
    daemon = f"http://{cluster.lookup.http_address}"
    nodes = distinct_nodes(face.ask(lambda admin: admin.nodes.list(), **daemons))
    assert sorted(node.http_port for node in nodes) == sorted(
        int(address.rpartition(":")[2]) for address in cluster.brokers
    )
    assert {node.lookup_daemons for node in nodes} == {(daemon,)}
    named = face.ask(lambda admin: admin.nodes.list(), *cluster.brokers)
    assert [topic in node.topics for node in named.joined()] == [True, True]
    stats = face.ask(lambda admin: admin.nodes.stats(), **daemons)
    assert {answer.health for answer in stats.values.values()} == {"OK"}
    hidden = f"127.0.0.1:{cluster.one.http_address.rpartition(':')[2]}"
    done = face.ask(lambda admin: admin.nodes.tombstone(topic, hidden), **daemons)
    assert list(done.values) == [daemon]
    left = face.ask(lambda admin: admin.topics.list(topic), **daemons)
    assert list(left.values) == [cluster.urls[1]]
    with pytest.raises(ValueError, match="tombstones are at lookup daemons"):
        face.ask(lambda admin: admin.nodes.tombstone(topic, hidden), *cluster.brokers)
    done = face.ask(lambda admin: admin.channels.create(topic, "c"), **daemons)
    assert set(done.values) == {cluster.urls[1], daemon}
    assert ask(cluster.lookup.http_address, f"/channels?topic={topic}")["channels"] == ["c"]
    with pytest.raises(AdminNotFound, match="no broker with topic 'nowhere' is known there"):
        face.ask(lambda admin: admin.topics.pause("nowhere"), **daemons)


def test_a_broker_without_replicas_is_no_replica(cluster: Cluster, face: Face) -> None:
    with pytest.raises(AdminError, match="it has no /replica"):
        face.ask(lambda admin: admin.replicas.show(), *cluster.brokers)


def test_one_of_two_brokers_is_down(face: Face) -> None:
    """The answers of the other are there, and the error says which broker is missing."""
    with LookupProcess() as lookup, BrokerProcess() as one, BrokerProcess() as two:
        up, down = f"http://{one.http_address}", f"http://{two.http_address}"
        for broker in (one, two):
            ask(broker.http_address, "/topic/create?topic=t", "POST")
            ask(broker.http_address, "/channel/create?topic=t&channel=c", "POST")
            ask(broker.http_address, "/pub?topic=t", "POST", b"x")
        addresses = one.http_address, two.http_address
        assert set(face.ask(lambda admin: admin.topics.list(), *addresses).values) == {up, down}
        two.kill()
        calls: list[Callable[[Any], Any]] = [
            lambda admin: admin.topics.list(),
            lambda admin: admin.topics.create("t"),
            lambda admin: admin.channels.list("t"),
            lambda admin: admin.channels.pause("t", "c"),
            lambda admin: admin.channels.configure("t", "c"),
            lambda admin: admin.channels.peek("t", "c"),
            lambda admin: admin.groups.list(),
            lambda admin: admin.dead_letters.list(),
            lambda admin: admin.delayed.list("t"),
            lambda admin: admin.transactions.list(),
            lambda admin: admin.nodes.stats(),
        ]
        for call in calls:
            answers = face.ask(call, *addresses)
            assert list(answers.values) == [up]
            assert list(answers.errors) == [down]
            with pytest.raises(AdminUnreachable, match=f"cannot connect to {down}"):
                answers.check()
        health = face.ask(lambda admin: admin.nodes.health(), *addresses)
        assert {url: answer.is_healthy for url, answer in health.values.items()} == {
            up: True,
            down: False,
        }
        pages = []
        with pytest.raises(AdminUnreachable):
            pages += face.ask(lambda admin: admin.channels.peek_pages("t", "c"), *addresses)
        with pytest.raises(AdminUnreachable) as nothing:
            face.ask(lambda admin: admin.topics.list(), two.http_address)
        assert list(nothing.value.errors) == [down]
        assert ask(lookup.http_address, "/nodes")["producers"] == []


def test_a_broker_that_a_lookup_daemon_knows_is_down(face: Face) -> None:
    with LookupProcess() as lookup:
        flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
        wrong_port = free_port()
        with (
            BrokerProcess(None, *flags) as one,
            BrokerProcess(None, *flags, f"--broadcast-http-port={wrong_port}") as two,
        ):
            for broker in (one, two):
                ask(broker.http_address, "/topic/create?topic=t", "POST")
            until(lambda: len(ask(lookup.http_address, "/lookup?topic=t")["producers"]) == 2)
            missing = f"http://127.0.0.1:{free_port()}"
            daemons = {"lookupd_http_addresses": [lookup.http_address, missing]}
            answers = face.ask(lambda admin: admin.topics.pause("t"), **daemons)
            assert list(answers.values) == [f"http://{one.http_address}"]
            assert list(answers.errors) == [f"http://127.0.0.1:{wrong_port}"]
            # Daemons keep a topic that a broker may still have.
            face.ask(lambda admin: admin.topics.delete("t"), **daemons)
            assert ask(lookup.http_address, "/topics")["topics"] == ["t"]
            nodes = face.ask(lambda admin: admin.nodes.list(), **daemons)
            assert len(nodes.values[f"http://{lookup.http_address}"]) == 2
            assert list(nodes.errors) == [missing]
