"""Discovery: brokers register, daemons and brokers come and go, clients of others find them."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.asking import ask, until
from tests.interop.lookup_process import NO_NSQLOOKUPD, NSQLOOKUPD, LookupProcess, NsqlookupdProcess
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.client import BroadcastConsumer, Consumer, Message, PullConsumer
from martlet.server import lookup_peer
from martlet.testing import Broker, BrokerProcess

pytestmark = pytest.mark.interop

HELLO = {
    "broadcast_address": "10.0.0.1",
    "hostname": "one",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


def producers(lookup: LookupProcess, topic: str) -> list[str]:
    """Where a topic is said to be."""
    listed = ask(lookup.http_address, f"/lookup?topic={topic}")["producers"]
    return sorted(f"{peer['broadcast_address']}:{peer['tcp_port']}" for peer in listed)


KINDS = [
    LookupProcess,
    pytest.param(
        NsqlookupdProcess, marks=pytest.mark.skipif(NSQLOOKUPD is None, reason=NO_NSQLOOKUPD)
    ),
]


@pytest.fixture(params=KINDS)
def lookup(request: pytest.FixtureRequest) -> Iterator[LookupProcess]:
    with request.param() as process:
        yield process


def broker_of(
    lookup: LookupProcess, kind: type[BrokerProcess] = BrokerProcess, folder: Path | None = None
) -> BrokerProcess:
    """A broker that registers there."""
    flags = [f"--lookupd-tcp-address={lookup.tcp_address}", "--broadcast-address=127.0.0.1"]
    return kind(folder, *flags)


@pytest.mark.parametrize(
    "kind",
    [
        BrokerProcess,
        pytest.param(NsqdProcess, marks=NEEDS_NSQD),
    ],
)
def test_a_broker_registers_its_topics_and_channels(
    lookup: LookupProcess, kind: type[BrokerProcess]
) -> None:
    with broker_of(lookup, kind) as broker:
        address = broker.http_address
        ask(address, "/topic/create?topic=orders", "POST")
        ask(address, "/channel/create?topic=orders&channel=billing", "POST")
        ask(address, "/topic/create?topic=idle", "POST")
        here = [broker.tcp_address]
        until(lambda: producers(lookup, "orders") == here)
        until(lambda: producers(lookup, "idle") == here)
        until(lambda: ask(lookup.http_address, "/channels?topic=orders")["channels"] == ["billing"])
        assert sorted(ask(lookup.http_address, "/topics")["topics"]) == ["idle", "orders"]
        (node,) = ask(lookup.http_address, "/nodes")["producers"]
        assert sorted(node["topics"]) == ["idle", "orders"]
        assert f"127.0.0.1:{node['http_port']}" == broker.http_address

        ask(address, "/channel/delete?topic=orders&channel=billing", "POST")
        ask(address, "/topic/delete?topic=idle", "POST")
        until(lambda: producers(lookup, "idle") == [])
        ask(lookup.http_address, "/topic/delete?topic=idle", "POST")
        assert ask(lookup.http_address, "/topics")["topics"] == ["orders"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            producers(lookup, "idle")
    until(lambda: ask(lookup.http_address, "/nodes")["producers"] == [])
    assert producers(lookup, "orders") == []


def test_a_broker_registers_again_with_a_daemon_that_was_away(
    lookup: LookupProcess, tmp_path: Path
) -> None:
    with broker_of(lookup, folder=tmp_path) as broker:
        ask(broker.http_address, "/topic/create?topic=t", "POST")
        ask(broker.http_address, "/channel/create?topic=t&channel=c", "POST")
        until(lambda: producers(lookup, "t"))
        lookup.kill()
        ask(broker.http_address, "/topic/create?topic=meanwhile", "POST")
        lookup.start()
        until(lambda: producers(lookup, "meanwhile") == [broker.tcp_address])
        assert producers(lookup, "t") == [broker.tcp_address]
        assert ask(lookup.http_address, "/channels?topic=t")["channels"] == ["c"]
        broker.kill()
        until(lambda: producers(lookup, "t") == [])
        broker.start()
        until(lambda: producers(lookup, "t") == [broker.tcp_address])


async def test_a_broker_registers_at_once_with_a_daemon_that_is_back(
    lookup: LookupProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no PING is due, and there is no news for it."""
    monkeypatch.setattr(lookup_peer, "PING_S", 10_000.0)
    async with Broker(**registered(lookup)) as broker:
        put(broker, 1, b"x")
        here = [broker.tcp_address]
        await asyncio.to_thread(until, lambda: producers(lookup, "t") == here)
        await asyncio.to_thread(lookup.kill)
        await asyncio.to_thread(lookup.start)
        await asyncio.to_thread(until, lambda: producers(lookup, "t") == here)


def test_a_new_topic_gets_the_channels_that_it_has_elsewhere(lookup: LookupProcess) -> None:
    with broker_of(lookup) as one, broker_of(lookup) as two:
        ask(one.http_address, "/topic/create?topic=t", "POST")
        for channel in ("c", "d", "gone%23ephemeral"):
            ask(one.http_address, f"/channel/create?topic=t&channel={channel}", "POST")
        until(lambda: len(ask(lookup.http_address, "/channels?topic=t")["channels"]) == 3)
        until(lambda: len(ask(lookup.http_address, "/nodes")["producers"]) == 2)
        ask(two.http_address, "/pub?topic=t", "POST", b"first")

        def channels() -> dict[str, int]:
            (topic,) = ask(two.http_address, "/stats?format=json&topic=t")["topics"]
            return {channel["channel_name"]: channel["depth"] for channel in topic["channels"]}

        until(lambda: channels() == {"c": 1, "d": 1})


def test_daemons_are_named_while_the_broker_runs() -> None:
    other = NsqlookupdProcess if NSQLOOKUPD else LookupProcess
    with LookupProcess() as one, other() as two, broker_of(one) as broker:
        ask(broker.http_address, "/topic/create?topic=t", "POST")
        until(lambda: producers(one, "t"))
        ask(
            broker.http_address,
            "/config/nsqlookupd_tcp_addresses",
            "PUT",
            json.dumps([two.tcp_address]).encode(),
        )
        until(lambda: producers(two, "t"))
        until(lambda: producers(one, "t") == [])


def test_a_tombstoned_broker_is_not_listed(lookup: LookupProcess) -> None:
    with broker_of(lookup) as broker:
        ask(broker.http_address, "/topic/create?topic=t", "POST")
        until(lambda: producers(lookup, "t"))
        path = f"/topic/tombstone?topic=t&node={broker.http_address}"
        ask(lookup.http_address, path, "POST")
        assert producers(lookup, "t") == []
        (node,) = ask(lookup.http_address, "/nodes")["producers"]
        assert node["tombstones"] == [True]


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
        ("GET", "/lookup?topic=none", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create?topic=%24", 400, "INVALID_ARG_TOPIC"),
        ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/tombstone?topic=t", 400, "MISSING_ARG_NODE"),
        ("POST", "/channel/create?topic=t", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create?topic=t&channel=%24", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete?topic=t&channel=none", 404, "CHANNEL_NOT_FOUND"),
        ("GET", "/topic/create", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
    ],
)
def test_wrong_requests_are_refused(
    refusing: LookupProcess, method: str, path: str, status: int, message: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(refusing.http_address, path, method)
    with refused.value as error:
        assert (error.code, json.load(error)) == (status, {"message": message})


@pytest.fixture(scope="module", params=KINDS)
def refusing(request: pytest.FixtureRequest) -> Iterator[LookupProcess]:
    with request.param() as process:
        yield process


@pytest.fixture(scope="module")
def martlet_lookup() -> Iterator[LookupProcess]:
    with LookupProcess() as process:
        yield process


def framed(fields: dict[str, object] | bytes) -> bytes:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


async def talk(address: str, *sent: bytes) -> list[bytes]:
    """Return the answers until the daemon closes or is silent."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"".join(sent))
    writer.write_eof()
    data = await asyncio.wait_for(reader.read(), 50)
    writer.close()
    answers = []
    while data:
        size = int.from_bytes(data[:4])
        answers.append(data[4 : 4 + size])
        data = data[4 + size :]
    return answers


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"  V1PING\nPING\n", [b"OK", b"OK"]),
        (b"  V1NONSENSE\n", [b"E_INVALID invalid command NONSENSE"]),
        (b"  V1REGISTER t\n", [b"E_INVALID client must IDENTIFY"]),
        (b"  V1" + framed(b"{"), [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]),
        (b"  V1" + framed({"version": "1"}), [b"E_BAD_BODY IDENTIFY missing fields"]),
        (
            b"  V1" + framed(HELLO | {"tcp_port": "4150"}),
            [b"E_BAD_BODY IDENTIFY failed to decode JSON body"],
        ),
        (
            b"  V1" + framed(HELLO) + b"REGISTER $\n",
            [b"{", b"E_BAD_TOPIC REGISTER topic name '$' is not valid"],
        ),
        (
            b"  V1" + framed(HELLO) + b"UNREGISTER t $\n",
            [b"{", b"E_BAD_CHANNEL UNREGISTER channel name '$' is not valid"],
        ),
        (b"  V1" + framed(HELLO) + framed(HELLO), [b"{", b"E_INVALID cannot IDENTIFY again"]),
        (
            b"  V1" + framed(HELLO) + b"REGISTER t c\r\nUNREGISTER t\nUNREGISTER t\n",
            [b"{", b"OK", b"OK", b"OK"],
        ),
    ],
)
async def test_the_protocol_to_the_letter(
    refusing: LookupProcess, sent: bytes, answers: list[bytes]
) -> None:
    got = await talk(refusing.tcp_address, sent)
    assert [b"{" if answer.startswith(b"{") else answer for answer in got] == answers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("broadcast_address", "10.0.0.1:80/admin/shutdown?confirm=yes&x="),
        ("broadcast_address", "user@10.0.0.1"),
        ("broadcast_address", "10.0.0.1#"),
        ("broadcast_address", "a\r\nX: y"),
        ("broadcast_address", "a%2fb"),
        ("broadcast_address", "[::1]"),
        ("broadcast_address", "fe80::1%eth0"),
        ("broadcast_address", "b\u00fccher"),
        ("broadcast_address", "127.1"),
        ("http_port", 65536),
        ("http_port", -2),
        ("tcp_port", 10**30),
    ],
)
async def test_a_broker_that_no_client_could_reach_is_refused(
    martlet_lookup: LookupProcess, field: str, value: object
) -> None:
    sent = b"  V1" + framed(HELLO | {field: value}) + b"REGISTER refused\n"
    (answer,) = await talk(martlet_lookup.tcp_address, sent)
    assert answer.startswith(b"E_BAD_BODY IDENTIFY ")
    assert b"is no host name or IP address" in answer or b"is no port" in answer
    assert b"\r" not in answer
    assert "refused" not in ask(martlet_lookup.http_address, "/topics")["topics"]


@pytest.mark.parametrize(
    "changes",
    [
        {"broadcast_address": "::1"},
        {"broadcast_address": "my_service.example."},
        {"tcp_port": -1, "http_port": -1},  # Unix sockets
    ],
)
async def test_a_broker_with_a_host_or_a_unix_socket_is_taken(
    martlet_lookup: LookupProcess, changes: dict[str, object]
) -> None:
    sent = b"  V1" + framed(HELLO | changes) + b"REGISTER t\n"
    assert (await talk(martlet_lookup.tcp_address, sent))[1:] == [b"OK"]


async def test_endless_input_is_cut_off() -> None:
    with LookupProcess() as lookup:
        # So much that most of it still comes when the daemon has given up, and is not reset for it.
        (answer,) = await talk(lookup.tcp_address, b"  V1" + b"x" * 8_000_000)
        assert answer.startswith(b"E_INVALID no newline in")
        huge = b"  V1IDENTIFY\n" + struct.pack(">i", 1 << 30)
        (answer,) = await talk(lookup.tcp_address, huge)
        assert b"out of range" in answer


PYNSQ_READER = """
import sys, nsq
def handle(message):
    print(message.body.decode(), flush=True)
    return True
nsq.Reader(topic="t", channel="c", message_handler=handle, lookupd_poll_interval=1, max_in_flight=4,
           lookupd_http_addresses=[f"http://{sys.argv[1]}"])
nsq.run()
"""


async def test_pynsq_finds_brokers_through_it() -> None:
    with LookupProcess() as lookup, broker_of(lookup) as one, broker_of(lookup) as two:
        for number, broker in enumerate((one, two)):
            ask(broker.http_address, "/pub?topic=t", "POST", b"from %d" % number)
        until(lambda: len(producers(lookup, "t")) == 2)
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-c", PYNSQ_READER, lookup.http_address),
            stdout=asyncio.subprocess.PIPE,
        )
        assert reader.stdout is not None
        try:
            lines = [await asyncio.wait_for(reader.stdout.readline(), 50) for _ in range(2)]
        finally:
            reader.kill()
            await reader.wait()
        assert sorted(lines) == [b"from 0\n", b"from 1\n"]


async def test_our_consumer_follows_brokers_as_they_come_and_go(tmp_path: Path) -> None:
    """One daemon of two never answers; brokers are found, lost, and found again."""
    bodies: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(message: Message) -> None:
        bodies.put_nowait(message.body)

    seen: set[bytes] = set()

    async def arrives(body: bytes) -> None:
        """A message finished just before a kill may come again."""
        while (got := await asyncio.wait_for(bodies.get(), 50)) in seen:
            pass
        assert got == body
        seen.add(body)

    with LookupProcess() as lookup, broker_of(lookup, folder=tmp_path / "one") as one:
        ask(one.http_address, "/pub?topic=t", "POST", b"1")
        await asyncio.to_thread(until, lambda: producers(lookup, "t"))
        consumer = Consumer(
            "t", "c", lookup=[lookup.http_address, "127.0.0.1:1"], lookup_poll_s=0.5
        )
        async with consumer, asyncio.TaskGroup() as group:
            running = group.create_task(consumer.run(handle, concurrency=4))
            await arrives(b"1")
            with broker_of(lookup, folder=tmp_path / "two") as two:
                await asyncio.to_thread(ask, two.http_address, "/pub?topic=t", "POST", b"2")
                await arrives(b"2")
                assert consumer.connected_count == 2
                one.kill()
                await asyncio.to_thread(ask, two.http_address, "/pub?topic=t", "POST", b"3")
                await arrives(b"3")
            await asyncio.to_thread(one.start)
            await asyncio.to_thread(ask, one.http_address, "/pub?topic=t", "POST", b"4")
            await arrives(b"4")
            assert consumer.counts.finished >= 4
            consumer.stop()
            await running


async def test_a_broker_that_no_daemon_knows_any_more_is_not_tried_again() -> None:
    with LookupProcess() as lookup:
        async with Consumer("t", "c", lookup=lookup.http_address, lookup_poll_s=0.3) as consumer:
            assert consumer.connected_count == 0
            loop = asyncio.get_running_loop()
            for _ in range(2):
                with broker_of(lookup) as broker:
                    path = "/topic/create?topic=t"
                    await asyncio.to_thread(ask, broker.http_address, path, "POST")
                    await asyncio.to_thread(until, lambda: consumer.connected_count)
                    name = f"martlet consumer {broker.tcp_address}"
                await asyncio.to_thread(until, lambda: name not in names_of_tasks(loop))  # noqa: B023


@pytest.mark.parametrize("kind", ["pull", "broadcast"])
async def test_a_fetching_consumer_finds_the_queues_of_all_brokers_by_lookup(
    lookup: LookupProcess, kind: str
) -> None:
    def consumer_of() -> PullConsumer | BroadcastConsumer:
        settings: dict[str, Any] = {"lookup": [lookup.http_address], "lookup_poll_s": 0.2}
        if kind == "pull":
            return PullConsumer("t", "g", start="first", **settings)
        return BroadcastConsumer("t", offsets=None, start="first", **settings)

    async def bodies(consumer: PullConsumer | BroadcastConsumer, count: int) -> set[bytes]:
        got: set[bytes] = set()
        async with asyncio.timeout(50):
            async for message in consumer:
                got.add(message.body)
                message.finish()
                if len(got) == count:
                    break
        return got

    def holding(count: int) -> Callable[[], bool]:
        return lambda: len(consumer.assignment) == count

    async with Broker(**registered(lookup)) as one:
        put(one, 2, b"one")
        await asyncio.to_thread(until, lambda: producers(lookup, "t"))
        async with consumer_of() as consumer:
            assert await bodies(consumer, 2) == {b"one 0", b"one 1"}
            async with Broker(**registered(lookup)) as two:
                put(two, 3, b"two")
                assert await bodies(consumer, 3) == {b"two 0", b"two 1", b"two 2"}
                await asyncio.to_thread(until, holding(5))
                assert {assigned.broker for assigned in consumer.assignment} == {
                    one.tcp_address,
                    two.tcp_address,
                }
            await asyncio.to_thread(until, holding(2))
            put(one, 2, b"again")
            assert await bodies(consumer, 2) == {b"again 0", b"again 1"}


def registered(lookup: LookupProcess) -> dict[str, Any]:
    """The options of a broker that registers there."""
    return {
        "lookupd_tcp_addresses": (lookup.tcp_address,),
        "broadcast_address": "127.0.0.1",
    }


def put(broker: Broker, queues: int, body: bytes) -> None:
    """Store a message in each of the first queues."""
    core = broker.server.broker
    core.topic("t")
    core.set_queues("t", queues)
    for queue_topic in core.topic("t").at_queues:
        queue_topic.stage([b"%b %d" % (body, queue_topic.number)])
    core.commit()


def names_of_tasks(loop: asyncio.AbstractEventLoop) -> set[str]:
    """Return the names of the loop's tasks."""
    return {task.get_name() for task in asyncio.all_tasks(loop)}
