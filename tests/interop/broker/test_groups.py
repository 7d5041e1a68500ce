"""Groups: members fetch the queues that they have, by calls over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.crash.wire import HttpRefused, http
from tests.interop.connections import connected

from martlet.broker.groups import membership
from martlet.broker.policy import ChannelPolicy
from martlet.client import (
    CallRefused,
    ClientError,
    Consumer,
    Producer,
    Properties,
    SubscribeRefused,
)
from martlet.client.transport.connection import Connection
from martlet.properties.block import pack_block
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun
from martlet.server.nsq.client_io import LIMIT_BYTES
from martlet.server.rpc import fetch as fetch_calls
from martlet.testing import Broker


class Member:
    """One member of the group ``g`` of the topic ``t``."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.member = ""
        self.generation = 0
        self.offsets: dict[int, int] = {}

    async def call(self, method: str, **fields: Any) -> Any:
        own = {"member": self.member} if self.member else {}
        return await self.connection.call(method, topic="t", group="g", **own, **fields)

    async def join(self, **fields: Any) -> Member:
        answer = await self.call("group.join", client_id=self.name, **fields)
        self.member = answer.fields["member"]
        self._take(answer.fields)
        return self

    def _take(self, fields: Any) -> None:
        self.generation = fields["generation"]
        self.offsets = {row["queue"]: row["offset"] for row in fields["queues"]}
        self.revoked = fields["revoked"]

    async def assignment(self, wait_ms: int = 10_000) -> list[int]:
        answer = await self.call("group.assignment", generation=self.generation, wait_ms=wait_ms)
        self._take(answer.fields)
        return sorted(self.offsets)

    async def fetch(self, queue: int, offset: int, **fields: Any) -> tuple[Any, list[bytes]]:
        answer = await self.call(
            "group.fetch", queue=queue, offset=offset, **{"wait_ms": 0, **fields}
        )
        return answer.fields, bodies(answer.data)

    async def commit(self, method: str = "group.commit", /, **offsets: int) -> Any:
        by_queue = {queue.removeprefix("q"): offset for queue, offset in offsets.items()}
        answer = await self.call(method, generation=self.generation, offsets=by_queue)
        return answer.fields


def bodies(data: bytes | memoryview) -> list[bytes]:
    """The bodies of all messages in an answer."""
    got: list[bytes] = []
    for piece in FrameSplitter().feed(data):
        if isinstance(piece, MessageRun):
            got += piece.bodies()
    return got


async def publish(broker: Broker, *sent: bytes, topic: str = "t") -> None:
    async with Producer(broker.tcp_address) as producer:
        for body in sent:
            await producer.publish(topic, body)


async def lag_of(connection: Connection) -> tuple[int, int]:
    """How many messages the group has yet to commit, and how many are deferred."""
    answer = await connection.call("group.describe", topic="t", group="g")
    (queue,) = answer.fields["queues"]
    return queue["lag"], queue["deferred"]


async def configure(connection: Connection, **policy: object) -> None:
    await connection.call("channel.configure", topic="t", channel="g", policy=policy)


async def test_a_member_fetches_messages_and_commits_its_offset(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(10)]
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        await publish(broker, *sent)
        member = await Member(connection, "a").join()
        assert member.offsets == {0: 0}
        fields, got = await member.fetch(0, 0, max_messages=4)
        assert got == sent[:4]
        assert (fields["status"], fields["next_offset"], fields["count"]) == ("FOUND", 4, 4)
        assert (fields["start_offset"], fields["end_offset"]) == (0, 10)
        assert (await member.fetch(0, 4))[1] == sent[4:]
        assert await member.commit(q0=4) == {"offsets": {"0": 4}}
        assert await member.commit(q0=2) == {"offsets": {"0": 4}}
        answer = await member.commit(q0=11)
        assert answer == {"offsets": {}, "refused": {"0": "OUT_OF_REACH"}}
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        member = await Member(connection, "a").join()
        assert member.offsets == {0: 4}
        with pytest.raises(CallRefused, match="NOT_A_MEMBER"):
            await connection.call("group.commit", topic="t", group="g", member="b", offsets={})


async def test_a_fetch_waits_for_messages(broker: Broker, connection: Connection) -> None:
    member = await Member(connection, "a").join()
    waiting = asyncio.create_task(member.fetch(0, 0, wait_ms=20_000))
    quick, _ = await member.fetch(0, 0)
    assert quick["status"] == "NO_NEW"
    assert not waiting.done()
    await publish(broker, b"first")
    fields, got = await waiting
    assert (fields["status"], got) == ("FOUND", [b"first"])
    # An MPUB comes another way than a PUB by itself.
    waiting = asyncio.create_task(member.fetch(0, 1, wait_ms=20_000))
    await asyncio.sleep(0)
    await connection.ask(commands.publish_many("t", [b"a", b"b"]))
    assert (await waiting)[1] == [b"a", b"b"]


async def test_a_fetch_of_a_missing_offset_returns_the_next_offset(
    broker: Broker, connection: Connection
) -> None:
    await publish(broker, b"one", b"two")
    member = await Member(connection, "a").join()
    fields, got = await member.fetch(0, 7)
    assert (fields["status"], fields["next_offset"], got) == ("OFFSET_MOVED", 2, [])
    fields, got = await member.fetch(0, 2)
    assert (fields["status"], fields["next_offset"]) == ("NO_NEW", 2)
    with pytest.raises(CallRefused, match="NOT_FOUND topic 't' has no queue 3"):
        await member.fetch(3, 0)


async def grow(broker: Broker, queues: int) -> None:
    await http(broker.http_address, f"/topic/create?topic=t&queues={queues}", b"")


async def test_queues_pass_to_another_member_only_when_released(broker: Broker) -> None:
    await grow(broker, 4)
    async with connected(broker) as one, connected(broker) as other:
        a = await Member(one, "a").join()
        assert sorted(a.offsets) == [0, 1, 2, 3]
        waiting = asyncio.create_task(a.assignment())
        b = await Member(other, "b").join()
        assert b.offsets == {}
        assert await waiting == [0, 1, 2, 3]
        assert a.revoked == [2, 3]
        assert (await b.fetch(2, 0))[0]["status"] == "NOT_HELD"
        assert (await b.commit(q2=0))["refused"] == {"2": "NOT_HELD"}
        waiting = asyncio.create_task(b.assignment())
        assert (await a.commit("group.release", q2=0, q3=0))["offsets"] == {"2": 0, "3": 0}
        assert await waiting == [2, 3]
        assert (await a.fetch(2, 0))[0]["status"] == "NOT_HELD"
        assert (await a.commit(q2=0, q0=0)) == {"offsets": {"0": 0}, "refused": {"2": "NOT_HELD"}}


async def test_a_member_that_hangs_up_loses_its_queues_and_the_next_resumes_at_its_commits(
    broker: Broker,
) -> None:
    await publish(broker, *(b"%d" % number for number in range(10)))
    async with connected(broker) as other:
        async with connected(broker) as one:
            a = await Member(one, "a").join()
            b = await Member(other, "b").join()
            assert (sorted(a.offsets), b.offsets) == ([0], {})
            assert (await a.fetch(0, 0, max_messages=8))[0]["next_offset"] == 8
            await a.commit(q0=5)
            waiting = asyncio.create_task(b.assignment())
        assert await waiting == [0]
        assert b.offsets == {0: 5}
        assert (await b.fetch(0, 5))[1] == [b"%d" % number for number in range(5, 10)]
        description = (await other.call("group.describe", topic="t", group="g")).fields
        assert [row["member"] for row in description["members"]] == ["b"]
        assert (description["lag"], description["queues"][0]["member"]) == (5, "b")


async def test_a_silent_member_is_removed(broker: Broker) -> None:
    async with connected(broker) as one, connected(broker) as other:
        a = await Member(one, "a").join(lease_ms=1000)
        b = await Member(other, "b").join()
        assert await b.assignment() == [0]
        with pytest.raises(CallRefused, match="NOT_A_MEMBER"):
            await a.commit(q0=0)
        # Its connection is still there, and is none of b's.
        a.member = "b"
        with pytest.raises(CallRefused, match="NOT_A_MEMBER"):
            await a.commit(q0=0)
        await b.call("group.leave")
        a.member = ""
        assert (await a.join()).offsets == {0: 0}


async def test_more_queues_are_shared_out_at_once(broker: Broker, connection: Connection) -> None:
    member = await Member(connection, "a").join()
    waiting = asyncio.create_task(member.assignment())
    await asyncio.sleep(0)
    await grow(broker, 3)
    assert await waiting == [0, 1, 2]
    assert member.offsets == {0: 0, 1: 0, 2: 0}


async def test_a_group_takes_no_subscription_and_consumers_are_not_made_members(
    broker: Broker,
    connection: Connection,
) -> None:
    await Member(connection, "a").join()
    async with connected(broker) as other:
        with pytest.raises(ClientError, match="'g' of topic 't' is a group"):
            await other.ask(commands.subscribe("t", "g"))
    # A consumer gives up, since another attempt would be refused again.
    with pytest.raises(SubscribeRefused, match=r"E_BAD_CHANNEL.*'g' of topic 't' is a group"):
        async with Consumer("t", "g", broker.tcp_address):
            pass
    with pytest.raises(CallRefused, match="there is no group 'none' of topic 't'"):
        await connection.call("group.reset", topic="t", group="none", to="last")
    async with Consumer("u", "g", broker.tcp_address, max_in_flight=1) as consumer:
        await publish(broker, b"x", topic="u")
        await anext(consumer)
    with pytest.raises(CallRefused, match="CONFLICT 'g' of topic 'u' is a channel"):
        await connection.call("group.join", topic="u", group="g", client_id="a")
    async with Consumer("u", "g", broker.tcp_address) as consumer:
        assert (await anext(consumer)).body == b"x", "it can come back"
    with pytest.raises(CallRefused, match="is a group and stays one"):
        await configure(connection, kind="shared")


async def test_a_name_from_lookup_becomes_a_channel_once_a_consumer_subscribes(
    broker: Broker,
    connection: Connection,
) -> None:
    topic = broker.server.broker.topic("t")
    channel = topic.channel("g", policy=ChannelPolicy(from_lookup=True))
    async with Consumer("t", "g", broker.tcp_address):
        assert channel.policy == ChannelPolicy()
    with pytest.raises(CallRefused, match="'g' of topic 't' is a channel"):
        await Member(connection, "a").join()


async def test_a_policy_of_channels_is_refused_for_a_group(connection: Connection) -> None:
    await Member(connection, "a").join()
    for policy in ({"order": "key"}, {"kind": "shared"}):
        with pytest.raises(CallRefused, match=r"CONFLICT .* 'g' of topic 't' is a group"):
            await connection.call("channel.want", topic="t", channel="g", policy=policy)


async def test_a_deferred_message_comes_at_its_time_and_delays_no_other(
    broker: Broker,
    connection: Connection,
) -> None:
    member = await Member(connection, "a").join()
    began_s = asyncio.get_running_loop().time()
    await connection.ask(commands.publish_deferred("t", b"later", 1500))
    await publish(broker, b"now")
    fields, got = await member.fetch(0, 0)
    assert got == [b"now"]
    waiting = asyncio.create_task(member.fetch(0, fields["next_offset"], wait_ms=20_000))
    await member.commit(q0=fields["next_offset"])
    assert await lag_of(connection) == (0, 1)
    fields, got = await waiting
    assert got == [b"later"]
    assert asyncio.get_running_loop().time() - began_s >= 1.49
    assert await lag_of(connection) == (1, 0)
    await member.commit(q0=fields["next_offset"])
    assert await lag_of(connection) == (0, 0)
    # A channel got it once, at its time.
    async with Consumer("t", "c", broker.tcp_address) as consumer:
        await publish(broker, b"end")
        assert (await anext(consumer)).body == b"end"


async def test_only_wanted_tags_come_and_properties_with_them(
    broker: Broker, connection: Connection
) -> None:
    member = await Member(connection, "a").join(wanted_tags=["red"])
    red, blue = Properties(tag="red", keys=("k",)).pack(), Properties(tag="blue").pack()
    properties = pack_block([(0, blue), (2, red), (3, red), (5, blue)])
    await connection.ask(commands.send("t", [b"%d" % n for n in range(6)], {}, properties))
    fields, got = await member.fetch(0, 0, max_messages=1)
    assert (fields["next_offset"], got) == (3, [b"2"])
    fields, got = await member.fetch(0, 3)
    assert (fields["next_offset"], got) == (6, [b"3"])
    fields, got = await member.fetch(0, 4)
    assert (fields["status"], fields["next_offset"]) == ("NO_NEW", 6)
    answer = await member.call("group.fetch", queue=0, offset=0)
    assert Properties(tag="red", keys=("k",)).pack() in bytes(answer.data)
    async with connected(broker) as other:
        with pytest.raises(CallRefused, match=r"has tags=red, .* wants tags=blue"):
            await Member(other, "b").join(wanted_tags=["blue"])


async def test_a_fetch_keeps_to_its_bytes_and_gives_one_at_least(connection: Connection) -> None:
    sent = [bytes([65 + number]) * 1000 for number in range(10)]
    member = await Member(connection, "a").join()
    await connection.ask(commands.publish_many("t", sent))
    for max_bytes, count in ((1, 1), (1034, 1), (2067, 1), (2068, 2), (5000, 4)):
        fields, got = await member.fetch(0, 3, max_bytes=max_bytes)
        assert (got, fields["next_offset"]) == (sent[3 : 3 + count], 3 + count)
    for wrong in ({"max_bytes": 0}, {"max_messages": 10_001}, {"wait_ms": -1}, {"no": 1}):
        with pytest.raises(CallRefused, match="BAD_ARGUMENT"):
            await member.fetch(0, 0, **wrong)


async def test_a_group_is_reset_while_it_is_empty_or_by_force(tmp_path: Path) -> None:
    async def reset(connection: Connection, **fields: object) -> list[int]:
        answer = await connection.call("group.reset", topic="t", group="g", **fields)
        return [row["offset"] for row in answer.fields["queues"]]

    async with Broker(tmp_path) as broker, connected(broker) as connection:
        # A channel without consumers keeps all.
        await connection.call("channel.want", topic="t", channel="all", policy={})
        await publish(broker, *(b"%d" % number for number in range(10)))
        member = await Member(connection, "a").join(start="first")
        await member.commit(q0=8)
        with pytest.raises(CallRefused, match="CONFLICT the group has 1 member,"):
            await reset(connection, to="first")
        assert await reset(connection, to="offset", offset=3, force=True) == [3]
        with pytest.raises(CallRefused, match="NOT_A_MEMBER"):
            await member.commit(q0=9)
        with pytest.raises(CallRefused, match="offset 11 is not there: queue 0 of topic 't' has 0"):
            await reset(connection, to="offset", offset=11)
        with pytest.raises(CallRefused, match="'queue' is empty: leave it out"):
            await reset(connection, to="first", queue=None)
        assert await reset(connection, to="last") == [10]
        assert await reset(connection, to="time", time_ms=0) == [0]
        with pytest.raises(HttpRefused, match=r"409 .*martlet groups reset"):
            await http(broker.http_address, "/channel/replay?topic=t&channel=g&offset=0", b"")
    async with Broker(tmp_path) as broker, connected(broker) as connection:
        member = await Member(connection, "a").join()
        assert member.offsets == {0: 0}


async def test_where_a_new_group_begins(broker: Broker, connection: Connection) -> None:
    await publish(broker, b"0", b"1", b"2")

    async def begin(group: str, **fields: object) -> int:
        target = {"topic": "t", "group": group, "client_id": "a"}
        answer = await connection.call("group.join", **target, **fields)
        await connection.call("group.leave", topic="t", group=group, member="a")
        offset: int = answer.fields["queues"][0]["offset"]
        return offset

    with pytest.raises(CallRefused, match="none of it would be left for others"):
        await begin("offset", start="offset", start_offset=2)
    assert await begin("backlog") == 0
    assert await begin("last") == 3
    assert await begin("first", start="first") == 0
    assert await begin("time", start="time", start_time_ms=0) == 0
    assert await begin("now", start="time", start_time_ms=4_000_000_000_000) == 3
    assert await begin("offset", start="offset", start_offset=2) == 2
    # One that is there goes on where it is.
    assert await begin("offset", start="first") == 2
    listed = (await connection.call("group.list")).fields["groups"]
    assert {row["group"]: row["lag"] for row in listed} == {
        "backlog": 3, "first": 3, "last": 0, "now": 0, "offset": 1, "time": 3,
    }  # fmt: skip
    answer = await connection.call("topic.offset", topic="t", queue=0, time_ms=0)
    assert (answer.fields["offset"], answer.fields["gone"]) == (0, False)


async def test_a_topic_is_read_without_a_group(broker: Broker, connection: Connection) -> None:
    await publish(broker, b"0", b"1")
    target = {"topic": "t", "queue": 0}
    answer = await connection.call("topic.fetch", **target, offset=1, wait_ms=0)
    assert (answer.fields["status"], bodies(answer.data)) == ("FOUND", [b"1"])
    waiting = asyncio.create_task(connection.call("topic.fetch", **target, offset=2))
    await asyncio.sleep(0)
    await publish(broker, b"2")
    assert bodies((await waiting).data) == [b"2"]
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as http:
        request = {**target, "offset": 0, "max_messages": 2, "wait_ms": 0}
        async with http.post("/call/topic.fetch", json=request) as response:
            assert '"next_offset":2' in response.headers["X-Martlet-Fields"]
            assert bodies(await response.read()) == [b"0", b"1"]


async def test_a_paused_group_waits_and_goes_on_at_once(
    broker: Broker, connection: Connection
) -> None:
    member = await Member(connection, "a").join()
    for kind, target in (("channel", "topic=t&channel=g"), ("topic", "topic=t")):
        await http(broker.http_address, f"/{kind}/pause?{target}", b"")
        await publish(broker, b"x")
        offset = member.offsets[0]
        assert (await member.fetch(0, offset))[0]["status"] == "NO_NEW"
        waiting = asyncio.create_task(member.fetch(0, offset, wait_ms=20_000))
        await asyncio.sleep(0)
        await http(broker.http_address, f"/{kind}/unpause?{target}", b"")
        fields, got = await waiting
        assert got == [b"x"]
        member.offsets[0] = fields["next_offset"]


async def test_deleting_a_group_ends_its_waiting_calls(
    broker: Broker, connection: Connection
) -> None:
    member = await Member(connection, "a").join()
    calls = member.fetch(0, 0, wait_ms=20_000), member.assignment()
    waiting = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    await http(broker.http_address, "/channel/delete?topic=t&channel=g", b"")
    for task in waiting:
        with pytest.raises(CallRefused, match=r"NOT_FOUND|NOT_A_MEMBER"):
            await task


async def test_members_and_waiting_fetches_have_limits(
    broker: Broker, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "MAX_MEMBERS", 1)
    monkeypatch.setattr(fetch_calls, "MAX_WAITING", 1)
    member = await Member(connection, "a").join()
    with pytest.raises(CallRefused, match="LIMIT_REACHED the group has 1 members"):
        await Member(connection, "b").join()
    waiting = asyncio.create_task(member.fetch(0, 0, wait_ms=20_000))
    # Answered behind it.
    assert (await member.fetch(0, 0))[0]["status"] == "NO_NEW"
    with pytest.raises(CallRefused, match="LIMIT_REACHED 1 fetches wait for messages of topic"):
        await member.fetch(0, 0, wait_ms=20_000)
    await publish(broker, b"x")
    assert (await waiting)[1] == [b"x"]


async def test_a_client_that_reads_no_answers_gets_no_more_of_them(
    broker: Broker, connection: Connection
) -> None:
    big = b"x" * 500_000
    await publish(broker, big, big)
    host, _, port = broker.tcp_address.rpartition(":")
    before = set(broker.server.connections)
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    writer.write(b"  V2" + commands.identify({"martlet": True, "feature_negotiation": True}))
    for number in range(100):
        fields = {"topic": "t", "queue": 0, "offset": 0, "wait_ms": 0}
        writer.write(commands.call(number, "topic.fetch", fields))
    await writer.drain()
    # The last to be answered is known to have been taken in by what comes behind it.
    while not (fresh := set(broker.server.connections) - before):
        await connection.call("group.list")
    (slow,) = fresh
    while not slow.input.is_held_up:
        await connection.call("group.list")
    for _ in range(50):
        await connection.call("group.list")
    # An answer is begun below the limit, and has both messages.
    assert slow.output.transport.get_write_buffer_size() < LIMIT_BYTES + 2 * len(big) + 1000
    got = 0
    while got < 100 * 2 * len(big):
        got += len(await reader.read(1 << 20))
    writer.close()
    await writer.wait_closed()
