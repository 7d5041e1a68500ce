"""The blocking `Admin`, and so the one that it runs, beside two brokers and a lookup daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.lookup_process import LookupProcess

from martlet.client import sync
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


@pytest.fixture
def both(cluster: Cluster) -> Iterator[Any]:
    """A client of both brokers."""
    with sync.Admin(cluster.brokers) as admin:
        yield admin


@pytest.fixture
def one(cluster: Cluster) -> Iterator[Any]:
    """A client of the first broker alone."""
    with sync.Admin(cluster.brokers[0]) as admin:
        yield admin


def test_a_topic_and_a_channel_from_their_creation_to_their_end(
    cluster: Cluster, both: Any
) -> None:
    topic = "life"

    def values(answers: Any) -> list[Any]:
        assert answers.errors == {}
        assert list(answers.values) == cluster.urls
        return [*answers.values.values()]

    assert values(both.topics.create(topic, queues=2)) == [2, 2]
    values(both.channels.create(topic, "c"))
    set_to = both.channels.configure(topic, "c", retry_delays_ms=[10, 20])
    assert values(set_to) == [{"retry_delays_ms": [10, 20]}] * 2
    values(both.channels.configure(topic, "c", retry_delays_ms=None))
    kept = both.topics.configure(topic, retention_ms=HOUR_MS)
    assert values(kept) == [{"retention_ms": HOUR_MS}] * 2
    values(both.channels.pause(topic, "c"))
    values(both.topics.pause(topic))
    cluster.publish(topic, b"one", b"two")
    (stats,) = values(both.topics.list(topic))[0]
    assert (stats.topic, stats.is_paused, stats.queue_count) == (topic, True, 2)
    assert [(channel.channel, channel.is_paused) for channel in stats.channels] == [("c", True)]
    values(both.topics.unpause(topic))
    values(both.channels.unpause(topic, "c"))
    listed = both.channels.list(topic)
    sums = listed.added(lambda item: item.channel, lambda item: item.counts)
    assert sums == {"c": ChannelCounts(depth=4, backend_depth=4, message_count=4)}
    emptied = both.channels.empty(topic, "c")
    assert [item.depth for item in values(emptied)] == [2, 2]
    assert values(both.channels.restore(topic, "c", emptied.values)) == [2, 2]
    values(both.channels.empty(topic, "c"))
    replayed = both.channels.replay(topic, "c", beginning=True)
    assert replayed.total(lambda item: item.message_count) == 4
    values(both.topics.empty(topic))
    values(both.channels.delete(topic, "c"))
    values(both.topics.delete(topic))
    assert values(both.topics.list(topic)) == [(), ()]


def test_messages_are_read_from_the_log_by_offset_time_and_id(cluster: Cluster, one: Any) -> None:
    topic = "log"
    began_ms = time.time_ns() // 1_000_000

    def value(answers: Any) -> Any:
        return answers.values[cluster.urls[0]]

    def read(offset: int, queue: int, **options: Any) -> Any:
        return value(one.messages.read(topic, offset, queue=queue, **options))

    one.topics.create(topic, 2)
    one.topics.publish(topic, b"one", tag="a", keys=["k"], headers={"h": "v"})
    one.topics.publish(topic, b"\xff\x00")
    one.topics.publish(topic, b"three")
    described = value(one.topics.describe(topic))
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
        assert value(one.messages.find(topic, message.id)) == message
        assert queues[message.queue].offset_of(message.id) == message.offset
        assert message.stored_at_ns // 1_000_000 >= began_ms
    place = max(queues, key=lambda item: int(item.end_offset))
    first = read(0, place.queue, limit=1)
    assert (len(first.messages), first.next_offset, first.is_end) == (1, 1, False)
    end = read(99, place.queue)
    assert (end.messages, end.next_offset, end.is_end) == ((), 2, True)
    since = value(one.messages.offset_at(topic, began_ms, queue=place.queue))
    assert (since.offset, since.is_gone, since.end_offset) == (0, False, 2)
    with pytest.raises(AdminNotFound, match="stores no message"):
        one.messages.find(topic, f"{int(place.id_base, 16) ^ 1 << 63:016x}")
    with pytest.raises(AdminNotFound, match="has no queue 7"):
        read(0, 7)


def test_messages_are_found_by_key_newest_first_and_in_pages(cluster: Cluster, one: Any) -> None:
    topic, url = "keyed", cluster.urls[0]

    def by_key(key: str, **options: Any) -> Any:
        return one.messages.by_key(topic, key, **options).values[url]

    one.topics.create(topic, 2)
    for number in range(6):
        one.topics.publish(topic, b"%d" % number, keys=["all", f"key-{number % 3}", "ü"])
    one.topics.publish(topic, b"ordered", order_key="all")
    one.topics.publish(topic, b"plain")
    every = by_key("all")
    assert [message.body for message in every.messages] == [b"ordered", *b"5 4 3 2 1 0".split()]
    assert every.next == ""
    for message in every.messages[1:]:
        assert message.properties["keys"] == ["all", f"key-{int(message.body) % 3}", "ü"]
        assert one.messages.find(topic, message.id).values[url] == message
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
    one.topics.empty(topic)
    one.topics.delete(topic)
    with pytest.raises(AdminNotFound):
        by_key("all")


def test_messages_are_peeked_at_in_all_queues_and_in_pages(cluster: Cluster, both: Any) -> None:
    topic = "peek"
    both.topics.create(topic, 2)
    both.channels.create(topic, "c")
    cluster.publish(topic, b"text", b"\xff\x00", b"long" * 50)
    for received in both.channels.peek(topic, "c", max_body_bytes=8).values.values():
        assert sorted((message.body, message.body_bytes) for message in received) == [
            (b"longlong", 200),
            (b"text", 4),
            (b"\xff\x00", 2),
        ]
        assert {message.queue for message in received} == {0, 1}
        assert {message.state for message in received} == {"waiting"}
    pages = list(both.channels.peek_pages(topic, "c", limit=2))
    counts = dict.fromkeys(cluster.urls, 0)
    for page in pages:
        counts[page.broker] += len(page.items)
    assert counts == dict.fromkeys(cluster.urls, 2)
    first = pages[0].next
    rest = list(both.channels.peek_pages(topic, "c", start=first))
    assert {page.broker for page in rest} == {cluster.urls[0]}
    seen = [item.id for page in [pages[0], *rest] for item in page.items]
    assert len(seen) == len(set(seen)) == 3
    with (
        sync.Admin(cluster.brokers[1]) as other,
        pytest.raises(AdminNotFound, match="it is none of the brokers that are asked"),
    ):
        list(other.channels.peek_pages(topic, "c", start=first))
    assert both.channels.peek(topic, "c", states=["deferred"]).joined() == []


def test_groups_are_described_and_a_reset_has_a_preview(cluster: Cluster, both: Any) -> None:
    topic = "group"
    first, second = cluster.urls
    both.topics.create(topic)
    for address in cluster.brokers:
        fields = {"topic": topic, "group": "g", "client_id": "me", "start": "first"}
        ask(address, "/call/group.join", "POST", json.dumps(fields).encode())
    cluster.publish(topic, b"1", b"2", b"3")
    (group,) = both.groups.list(topic).values[second]
    assert (group.group, group.member_count, group.lag, group.kind) == ("g", 1, 3, "offsets")
    described = both.groups.describe(topic, "g").values[first]
    assert [member.client_id for member in described.members] == ["me"]
    (queue,) = described.queues
    assert (queue.member, queue.end_offset, queue.lag) == ("me", 3, 3)
    (moved,) = both.groups.reset(topic, "g", to_last=True, dry_run=True).values[first].queues
    assert (moved.before, moved.offset, moved.lag) == (0, 3, 0)
    assert both.groups.lag(topic, "g").total(lambda lag: lag) == 6
    with pytest.raises(AdminError, match="the group has 1 member") as refused:
        both.groups.reset(topic, "g", to_last=True)
    assert (refused.value.status, refused.value.code) == (409, "CONFLICT")
    assert list(refused.value.errors) == cluster.urls
    both.groups.reset(topic, "g", to_offset=2, force=True)
    assert both.groups.lag(topic, "g").total(lambda lag: lag) == 2
    with pytest.raises(ValueError, match="say where to"):
        both.groups.reset(topic, "g", to_first=True, to_last=True)


def test_dead_letters_are_counted_tried_redriven_and_purged(cluster: Cluster, one: Any) -> None:
    topic = "dead"

    def value(answers: Any) -> Any:
        ((_, value),) = answers.values.items()
        return value

    def counted() -> Any:
        return value(one.dead_letters.list(topic, "c"))

    one.topics.create(topic)
    one.channels.create(topic, "c")
    one.channels.configure(topic, "c", max_attempts=1)
    for body in (b"a", b"b", b"c"):
        one.topics.publish(topic, body)
    with sync.Consumer(topic, "c", cluster.one.tcp_address) as consumer:
        for _ in range(3):
            next(consumer).reject("no card")
    until(lambda: counted() is not None)
    until(lambda: counted()[0].count == 3)
    (channel,) = counted()[0].channels
    assert (channel.channel, channel.count, channel.reasons) == ("c", 3, {"rejected": 3})
    letters = value(one.dead_letters.show(topic, "c", limit=2))
    assert [(letter.body, letter.reason, letter.attempts) for letter in letters] == [
        (b"a", "rejected", 1),
        (b"b", "rejected", 1),
    ]
    pages = list(one.dead_letters.pages(topic, "c"))
    assert [item.body for page in pages for item in page.items] == [b"a", b"b", b"c"]
    (page,) = one.dead_letters.pages(topic, "c", limit=1)
    rest = list(one.dead_letters.pages(topic, "c", start=page.next))
    assert [item.body for page in rest for item in page.items] == [b"b", b"c"]
    chosen = [letters[0].id, "0123456789abcdef"]
    tried = value(one.dead_letters.redrive(topic, "c", ids=chosen, dry_run=True))
    assert (tried.count, tried.kept, tried.found) == (1, {}, {letters[0].id})
    assert counted()[0].count == 3
    assert value(one.dead_letters.redrive(topic, "c", ids=chosen)).count == 1
    with pytest.raises(ValueError, match="the selection is missing"):
        one.dead_letters.purge(topic, "c")
    assert value(one.dead_letters.purge(topic, "c", all=True)).count == 2
    (back,) = value(one.channels.peek(topic, "c"))
    assert back.body == b"a"


def test_delayed_messages_are_listed_and_cancelled(cluster: Cluster, both: Any) -> None:
    topic = "delayed"
    at_ms = time.time_ns() // 1_000_000 + HOUR_MS
    with sync.Producer(cluster.one.tcp_address) as producer:
        sent = [producer.send(topic, b"x", deliver_at=(at_ms + n) / 1000) for n in range(3)]
        first = sent[0].id
        assert first is not None
    listed = both.delayed.list(topic, limit=2)
    assert [item.deliver_at_ms for item in listed.joined()] == [at_ms, at_ms + 1]
    (page,) = both.delayed.pages(topic, limit=2)
    assert page.items == tuple(listed.joined())
    (last,) = both.delayed.pages(topic, start=page.next)
    assert [item.deliver_at_ms for item in last.items] == [at_ms + 2]
    assert last.next is None
    # The other broker does not have the topic.
    assert [type(error) for error in listed.errors.values()] == [AdminNotFound]
    assert listed.check() is listed
    (answer,) = both.delayed.cancel(topic, [first, "0" * 16]).values.values()
    assert (answer.cancelled, answer.not_waiting) == ((first.decode(),), ("0" * 16,))
    (rest,) = both.delayed.cancel_all(topic).values.values()
    assert len(rest.cancelled) == 2
    assert [(page.count, page.items) for page in both.delayed.pages(topic)] == [(0, ())]


def test_a_transaction_is_found_at_its_broker(cluster: Cluster, both: Any) -> None:
    topic, transactions = "transaction", both.transactions
    without, url = cluster.urls
    keep, drop = "keep", "drop"
    with sync.Producer(cluster.two.tcp_address) as producer:
        for name in (keep, drop):
            transaction = producer.transaction(name)
            transaction.begin()
            transaction.publish(topic, b"half", tag="t")
            transaction.prepare()
    summaries = {summary.id: summary for summary in transactions.list().values[url]}
    assert summaries[keep].topics == {topic: 1}
    listed = transactions.list(state="", group="", limit=1000)
    assert {keep, drop} <= {item.id for item in listed.joined()}
    assert transactions.list(group="nobody's").joined() == []
    with pytest.raises(ValueError, match="it is one of open, silent, prepared"):
        transactions.list(state="committed")
    with pytest.raises(AdminError, match="has 0 messages, and the commit says 7"):
        transactions.commit(keep, branches={"nobody": 7})
    shown = transactions.show(keep)
    assert list(shown.values) == [url]
    (message,) = shown.values[url].messages
    assert (message.body, message.tag, message.topic) == (b"half", "t", topic)
    assert isinstance(shown.errors[without], AdminNotFound)
    for answers, state in (
        (transactions.commit(keep), "committed"),
        (transactions.rollback(drop), "rolled-back"),
    ):
        assert [answer.state for answer in answers.values.values()] == [state]
    with pytest.raises(AdminNotFound):
        transactions.show("unknown")


def test_a_message_is_traced_by_its_id_and_its_key(cluster: Cluster, both: Any, one: Any) -> None:
    topic, key = "trace", "key of the trace"
    one.topics.create(topic)
    one.channels.create(topic, "c")
    with sync.Producer(cluster.one.tcp_address) as producer:
        message_id = producer.send(topic, b"body", keys=[key]).id
    assert message_id is not None
    for answers in (both.trace.find("", key=key, topic=""), both.trace.find(message_id)):
        (message,) = answers.values[cluster.urls[0]].messages
        assert (message.id, message.topic) == (message_id.decode(), topic)
        assert message.body_bytes == 4
        assert [(item.channel, item.state) for item in message.channels] == [("c", "waiting")]
    with pytest.raises(ValueError, match="either a message's id or a key"):
        both.trace.find()


def test_lookup_daemons_know_the_brokers(cluster: Cluster, both: Any) -> None:
    topic, http = "known", cluster.lookup.http_address
    with sync.Admin(lookupd_http_addresses=http) as by_daemon:
        by_daemon.topics.create(topic)
        until(lambda: topic in ask(http, "/topics")["topics"])
        until(lambda: len(ask(http, f"/lookup?topic={topic}")["producers"]) == 2)
        daemon = f"http://{http}"
        nodes = distinct_nodes(by_daemon.nodes.list())
        ports = [int(address.rpartition(":")[2]) for address in cluster.brokers]
        assert sorted(node.http_port for node in nodes) == sorted(ports)
        assert {node.lookup_daemons for node in nodes} == {(daemon,)}
        assert [topic in node.topics for node in both.nodes.list().joined()] == [True, True]
        stats = by_daemon.nodes.stats()
        assert {answer.health for answer in stats.values.values()} == {"OK"}
        hidden = f"127.0.0.1:{ports[0]}"
        assert list(by_daemon.nodes.tombstone(topic, hidden).values) == [daemon]
        assert list(by_daemon.topics.list(topic).values) == [cluster.urls[1]]
        with pytest.raises(ValueError, match="tombstones are at lookup daemons"):
            both.nodes.tombstone(topic, hidden)
        assert set(by_daemon.channels.create(topic, "c").values) == {cluster.urls[1], daemon}
        assert ask(http, f"/channels?topic={topic}")["channels"] == ["c"]
        with pytest.raises(AdminNotFound, match="no broker with topic 'nowhere' is known there"):
            by_daemon.topics.pause("nowhere")


def test_a_broker_without_replicas_is_no_replica(both: Any) -> None:
    with pytest.raises(AdminError, match="it has no /replica"):
        both.replicas.show()


def test_one_of_two_brokers_is_down() -> None:
    """The answers of the other are there, and the error says which broker is missing."""
    with (
        BrokerProcess() as one,
        BrokerProcess() as two,
        sync.Admin([one.http_address, two.http_address]) as both,
    ):
        up, down = f"http://{one.http_address}", f"http://{two.http_address}"
        both.topics.create("t")
        both.channels.create("t", "c")
        both.topics.publish("t", b"x")
        assert set(both.topics.list().values) == {up, down}
        two.kill()
        calls: list[Any] = [
            (both.topics.list,),
            (both.topics.create, "t"),
            (both.channels.list, "t"),
            (both.channels.pause, "t", "c"),
            (both.channels.configure, "t", "c"),
            (both.channels.peek, "t", "c"),
            (both.groups.list,),
            (both.dead_letters.list,),
            (both.delayed.list, "t"),
            (both.transactions.list,),
            (both.nodes.stats,),
        ]
        for call, *names in calls:
            answers = call(*names)
            assert list(answers.values) == [up]
            assert list(answers.errors) == [down]
            with pytest.raises(AdminUnreachable, match=f"cannot connect to {down}"):
                answers.check()
        health = both.nodes.health().values
        assert {url: answer.is_healthy for url, answer in health.items()} == {up: True, down: False}
        with pytest.raises(AdminUnreachable):
            list(both.channels.peek_pages("t", "c"))
        with sync.Admin(two.http_address) as gone, pytest.raises(AdminUnreachable) as nothing:
            gone.topics.list()
        assert list(nothing.value.errors) == [down]


def test_a_broker_that_a_lookup_daemon_knows_is_down() -> None:
    with LookupProcess() as lookup:
        flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
        wrong_port = free_port()
        with (
            BrokerProcess(None, *flags) as one,
            BrokerProcess(None, *flags, f"--broadcast-http-port={wrong_port}") as two,
        ):
            with sync.Admin([one.http_address, two.http_address]) as both:
                both.topics.create("t")
            until(lambda: len(ask(lookup.http_address, "/lookup?topic=t")["producers"]) == 2)
            missing = f"http://127.0.0.1:{free_port()}"
            with sync.Admin(lookupd_http_addresses=[lookup.http_address, missing]) as by_daemons:
                answers = by_daemons.topics.pause("t")
                assert list(answers.values) == [f"http://{one.http_address}"]
                assert list(answers.errors) == [f"http://127.0.0.1:{wrong_port}"]
                # Daemons keep a topic that a broker may still have.
                by_daemons.topics.delete("t")
                assert ask(lookup.http_address, "/topics")["topics"] == ["t"]
                nodes = by_daemons.nodes.list()
                assert len(nodes.values[f"http://{lookup.http_address}"]) == 2
                assert list(nodes.errors) == [missing]
