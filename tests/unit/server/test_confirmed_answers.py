"""Answers to changes wait until enough replicas, or the disk, have what was changed."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tests.crash.wire import MESSAGE, RESPONSE, Frame, Wire, http, message, pub
from tests.interop.http_client import HttpClient
from tests.polling import until
from tests.unit.server.held_broker import HeldBroker, HeldDisk, HeldReplicas, held_broker

from martlet.broker.channel.channel import Channel
from martlet.broker.channel.partitioned import PartitionedChannel
from martlet.broker.errors import WritesRefused
from martlet.http_requests import SAFE_METHODS
from martlet.protocol.nsq import commands, v2
from martlet.server.http.request import Request
from martlet.server.http.routes import when_settled
from martlet.server.nsq.calls import MAX_CALLS
from martlet.server.nsq.commands import AT_ONCE, command_handlers, settled
from martlet.server.nsq.connection import ClientConnection
from martlet.server.rpc import registry
from martlet.server.rpc.registry import CallArguments, Caller, CallRegistry

KINDS = (HeldDisk, HeldReplicas)
OK = Frame(RESPONSE, b"OK")
TC = {"topic": "t", "channel": "c"}
TG = {"topic": "t", "group": "g"}
MINE = TG | {"member": "{member}", "generation": "{generation}"}
V1 = "/v1/topics/t/channels/v1"

CALLS: Mapping[str, Mapping[str, object]] = {
    "channel.configure": TC | {"policy": {"max_attempts": 3}},
    "channel.restore": {"topic": "t", "channel": "other", "queues": "{emptied}"},
    "channel.want": {"topic": "t", "channel": "new", "policy": {}},
    "dead_letters.purge": TC | {"all": True},
    "dead_letters.redrive": TC | {"all": True},
    "delay.cancel": {"topic": "t", "id": "{late}"},
    "group.commit": MINE | {"offsets": {"0": 1}},
    "group.dead": MINE
    | {"queue": 0, "offset": 0, "reason": "rejected", "attempts": 1}
    | {"first_error": "", "last_error": ""},
    "group.follow": {"topic": "t", "group": "spark", "offsets": {"0": 2}, "retain": True},
    "group.join": {"topic": "t", "group": "new", "client_id": "x"},
    "group.release": MINE | {"offsets": {"0": 1}},
    "group.reset": {"topic": "t", "group": "idle", "to": "first"},
    "message.dead": {"id": "{id}", "reason": "rejected", "error": "bad"},
    "message.give_back": {"ids": ["{id}"], "started": True},
    "message.later": {"id": "{id}", "delay_ms": 60_000},
    "topic.configure": {"topic": "t", "policy": {"retention_ms": 1_000_000}},
    "topic.create": {"topic": "new"},
    "transaction.begin": {"id": "new"},
    "transaction.commit": {"id": "open", "branches": {"b": 1}},
    "transaction.prepare": {"id": "open", "branches": {"b": 1}},
    "transaction.rollback": {"id": "open"},
    "transaction.series": {"series": "s"},
}
"""A request to each method that changes something, on the broker that `prepare` has made."""
READS = ("transaction.series",)
"""They change nothing, but what they answer has to stay true."""
CURSORS = {
    "group.commit": "g",
    "group.follow": "spark",
    "group.release": "g",
    "message.give_back": "c",
    "message.later": "c",
    "/channel/advance": "backlog",
    "/v1/topics/:topic/channels/:channel/finish": "v1",
    "/v1/topics/:topic/channels/:channel/requeue": "v1",
}
"""The channels of topic t whose cursors calls and routes move."""
WITHOUT_HTTP = ("message.dead", "message.give_back", "message.later")

CALLS_AT_ONCE: Mapping[str, Mapping[str, object]] = {
    "dead_letters.list": {},
    "dead_letters.show": TC,
    "delay.list": {"topic": "t"},
    "group.assignment": MINE | {"generation": 0, "wait_ms": 0},
    "group.describe": TG,
    "group.fetch": TG | {"member": "{member}", "queue": 0, "offset": 0, "wait_ms": 0},
    "group.leave": TG | {"member": "{member}"},
    "group.list": {},
    "group.plan": TG | {"member": "{member}", "roster": 0, "count": 0, "members": {}},
    "group.start": TG | {"member": "{member}", "queue": 0, "runs": [[0, 1]]},
    "group.volunteer": TG | {"member": "{member}", "name": "x", "brokers": 1},
    "message.started": {"id": "{id}"},
    "topic.describe": {"topic": "t"},
    "topic.fetch": {"topic": "t", "offset": 0, "wait_ms": 0},
    "topic.find": {"topic": "t", "key": "k"},
    "topic.offset": {"topic": "t", "time_ms": 0},
    "trace.find": {"id": "{id}"},
    "transaction.checks": {"group": "nobody", "wait_ms": 0},
    "transaction.list": {},
    "transaction.show": {"id": "open"},
}

ROUTES: Mapping[str, tuple[str, object]] = {
    "/topic/create": ("?topic=new", b""),
    "/topic/delete": ("?topic=t", b""),
    "/topic/empty": ("?topic=full", b""),
    "/topic/pause": ("?topic=t", b""),
    "/topic/unpause": ("?topic=paused", b""),
    "/channel/create": ("?topic=t&channel=new", b""),
    "/channel/delete": ("?topic=t&channel=other", b""),
    "/channel/empty": ("?topic=t&channel=backlog", b""),
    "/channel/pause": ("?topic=t&channel=other", b""),
    "/channel/unpause": ("?topic=paused&channel=c", b""),
    "/channel/replay": ("?topic=t&channel=other&beginning=true", b""),
    "/channel/advance": ("?topic=t&channel=backlog&offset=2", b""),
    "/pub": ("?topic=t", b"x"),
    "/mpub": ("?topic=new", b"\n"),
    "/v1/topics/:topic/messages": ("", {"body": "x"}),
    "/v1/topics/:topic/channels/:channel/receive": ("", b""),
    "/v1/topics/:topic/channels/:channel/finish": ("", {"receipts": ["{receipt}"]}),
    "/v1/topics/:topic/channels/:channel/requeue": ("", {"receipts": ["{receipt}"]}),
    "/v1/topics/:topic/channels/:channel/reject": ("", {"receipts": ["{receipt}"]}),
    "/v1/topics/:topic/channels/:channel/touch": ("", {"receipts": ["{receipt}"]}),
}
"""A request to each route that changes something."""
ROUTES_AT_ONCE = ("/config/:name", "/debug/freememory", "/debug/setblockrate", "/log/index")


class Client:
    """Asks a held broker, and knows what `prepare` has made.

    Args:
        held: the broker.
        wire: a connection that consumes, with messages in flight.
    """

    def __init__(self, held: HeldBroker, wire: Wire) -> None:
        self.held = held
        self.wire = wire
        self.facts: dict[str, object] = {}
        self._numbers = count(1)

    async def call(self, method: str, fields: Mapping[str, object], *, by_http: bool) -> Any:
        """Return the fields of an answer, which must be no error."""
        fields = self.filled(fields)
        if by_http:
            body = json.dumps(fields).encode()
            answer = json.loads(await self.post(f"/call/{method}", body) or b"{}")
        else:
            self.wire.send(commands.call(next(self._numbers), method, fields))
            frame = await self.frame(v2.FrameType.ANSWER)
            text = frame.data[8 : 8 + int.from_bytes(frame.data[4:8])]
            answer = json.loads(text)
        assert "error" not in answer, answer
        return answer

    async def frame(self, kind: v2.FrameType) -> Frame:
        """Return the next frame of a kind; messages may come before it."""
        while (frame := await self.wire.answer()).type != kind:
            assert frame.type in (v2.FrameType.PROPERTIES, MESSAGE), frame
        return frame

    async def post(self, target: str, body: object = b"") -> Any:
        """Return an answer, which must be of status 200; JSON for a body that is no bytes."""
        address, prefix = self.held.broker.http_address, "/v1/topics/t/"
        if not target.startswith(prefix):
            assert isinstance(body, bytes)
            return await http(address, target, body)
        content = body if isinstance(body, bytes) else json.dumps(self.filled(body)).encode()
        sender = HttpClient(address, "t")
        answer = await asyncio.to_thread(sender.post, target.removeprefix(prefix), content)
        assert answer.status == 200, answer
        return answer.json

    def filled(self, value: Any) -> Any:
        """Put facts into a request."""
        if isinstance(value, Mapping):
            return {name: self.filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if isinstance(value, str) and value.startswith("{"):
            return self.facts[value.strip("{}")]
        return value


@pytest.fixture(params=KINDS)
async def held(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HeldBroker]:
    async with held_broker(request.param, tmp_path, monkeypatch) as held:
        yield held


@pytest.fixture
async def client(held: HeldBroker) -> AsyncIterator[Client]:
    """A client of a broker on which each request finds something to do; it is held."""
    core = held.core
    for channel in ("c", "other", "backlog", "v1"):
        core.topic("t").channel(channel)
    core.topic("full")
    core.topic("paused").channel("c")
    wire = await Wire.open(held.broker.tcp_address)
    client = Client(held, wire)
    wire.send(commands.identify({"feature_negotiation": True, "martlet": True}))
    await client.frame(v2.FrameType.RESPONSE)
    wire.send(b"SUB t c\n")
    await wire.ok()
    await client.post("/topic/pause?topic=paused")
    await client.post("/channel/pause?topic=paused&channel=c")
    await client.post("/mpub?topic=t", b"a\nb\nc")
    await client.post("/pub?topic=full", b"a")
    wire.send(b"RDY 3\n")
    ids = [(await wire.message()).id.decode() for _ in range(3)]
    await _prepare(client, ids)
    core.write_journal()
    held.hold()
    yield client
    wire.close()


async def _prepare(client: Client, ids: list[str]) -> None:
    held, facts = client.held, client.facts
    core = held.core

    async def call(method: str, **fields: object) -> Any:
        return await client.call(method, fields, by_http=not method.startswith("message."))

    await call("message.dead", id=ids[0], reason="rejected", error="bad")
    await until(lambda: "t.c.dead" in core.topics)
    facts["id"] = ids[1]
    core.delays.publish(core.topic("t"), [b"late"], core.clock() + 3600 * 10**9)
    core.commit()
    (late,) = (await call("delay.list", topic="t"))["messages"]
    facts["late"] = late["id"]
    joined = await call("group.join", **TG, client_id="x", start="first", lease_ms=600_000)
    facts["member"] = joined["member"]
    facts["generation"] = joined["generation"]
    await call("group.follow", topic="t", group="spark", offsets={"0": 1}, retain=False)
    other = await call("group.join", topic="t", group="idle", client_id="x", start="last")
    await call("group.leave", topic="t", group="idle", member=other["member"])
    await call("transaction.begin", id="open")
    options = {"transaction": "open", "branch": "b", "number": 0}
    client.wire.send(commands.send("t", [b"half"], options))
    frame = await client.frame(v2.FrameType.RESPONSE)
    assert json.loads(frame.data)["status"] == "OK"
    emptied = await client.post("/channel/empty?topic=t&channel=other&undo=true")
    facts["emptied"] = json.loads(emptied)["queues"]
    received = await client.post(f"{V1}/receive")
    facts["receipt"] = received["messages"][0]["receipt"]


async def held_back(held: HeldBroker, ask: Awaitable[Any], moved: str = "") -> Any:
    """Ask a held broker, and check that it answers only once it is released.

    Args:
        held: the broker.
        ask: asks.
        moved: a channel whose cursor this moves.
    """
    task = asyncio.ensure_future(ask)
    await until(lambda: task.done() or held.has_waiting)
    if task.done():
        pytest.fail(f"answered at once: {task.result()}")
    assert not moved or not held.core.topics["t"].channels[moved].dirty, "it is not in the journal"
    held.release()
    return await asyncio.wait_for(task, 20)


@pytest.mark.parametrize(
    ("method", "by_http"),
    [(method, False) for method in CALLS]
    + [(method, True) for method in CALLS if method not in WITHOUT_HTTP],
)
async def test_a_call_that_changes_something_is_answered_once_that_is_confirmed(
    client: Client, method: str, by_http: bool
) -> None:
    core = client.held.core
    if method in READS:
        core.topic("unconfirmed")
    before = core.log.position
    asked = client.call(method, CALLS[method], by_http=by_http)
    await held_back(client.held, asked, CURSORS.get(method, ""))
    assert method in READS or core.log.position > before


def test_the_tables_have_each_call_each_route_and_each_command(held: HeldBroker) -> None:
    assert set(held.server.calls.methods) == {*CALLS, *CALLS_AT_ONCE}
    assert set(CALLS_AT_ONCE) == registry.AT_ONCE
    changing = {
        path
        for path, methods in held.server.routes().items()
        if not SAFE_METHODS.issuperset(methods)
    }
    assert changing == {*ROUTES, *ROUTES_AT_ONCE, "/call/:name"}
    handlers = command_handlers(*(MagicMock() for _ in range(4)))
    assert set(handlers) - AT_ONCE == {v2.Subscribe}


@pytest.mark.parametrize("method", CALLS_AT_ONCE)
async def test_a_call_that_reads_is_answered_while_nothing_is_confirmed(
    client: Client, method: str
) -> None:
    core = client.held.core
    core.topic("unconfirmed")
    before = core.log.position
    fields = dict(CALLS_AT_ONCE[method])
    if method == "group.plan":
        described = await client.call("group.describe", TG, by_http=True)
        fields["roster"] = described["roster"]
        await client.call("group.volunteer", CALLS_AT_ONCE["group.volunteer"], by_http=True)
    await client.call(method, fields, by_http=False)
    assert core.log.position == before


@pytest.mark.parametrize("path", ROUTES)
async def test_a_route_that_changes_something_answers_once_that_is_confirmed(
    client: Client, path: str
) -> None:
    query, body = ROUTES[path]
    core, is_receive, moved = client.held.core, path.endswith("/receive"), CURSORS.get(path, "")
    path = path.replace(":topic", "t").replace(":channel", "new" if is_receive else "v1")
    if path.endswith("/touch"):
        core.topic("unconfirmed")  # A lease is not in the journal.
    before = core.log.position
    await held_back(client.held, client.post(path + query, body), moved)
    assert core.log.position > before or path.endswith("/touch")


async def test_calls_beyond_the_limit_wait_until_others_are_confirmed(client: Client) -> None:
    """A client that requeues many messages expects no answer, and would not repeat one."""
    held, some = client.held, MAX_CALLS + 200
    held.core.topic("unconfirmed")
    fields: dict[str, object] = {"ids": [], "started": True}
    calls = [commands.call(number, "message.give_back", fields) for number in range(some)]
    client.wire.send(b"".join(calls))
    connections = list(held.server.connections)
    await until(lambda: any(len(each.caller.begun) == MAX_CALLS for each in connections))
    held.release()
    for _ in range(some):
        assert b"error" not in (await client.frame(v2.FrameType.ANSWER)).data


async def test_a_call_that_is_cancelled_at_once_leaves_no_coroutine(
    client: Client, recwarn: pytest.WarningsRecorder
) -> None:
    client.held.core.topic("unconfirmed")
    connection = next(iter(client.held.server.connections))
    connection._handle(v2.Call(1, "message.give_back", {"ids": [], "started": True}))
    assert len(connection.caller.begun) == 1
    connection.caller.leave()
    await until(lambda: not connection.caller.begun)
    gc.collect()
    assert not [warning.message for warning in recwarn]


async def test_many_requeues_at_once_are_one_entry_of_the_journal(client: Client) -> None:
    held = client.held
    ids: list[str] = []
    held.release()
    await client.post("/mpub?topic=t", b"\n".join(b"%d" % number for number in range(100)))
    client.wire.send(b"RDY 200\n")
    while len(ids) < 100:
        frame = await client.wire.answer()
        if frame.type == MESSAGE:
            ids.append(message(frame).id.decode())
    held.hold()
    written: list[object] = []
    write_moved = held.core.write_moved

    def counted(channel: Channel | PartitionedChannel) -> None:
        written.append(channel)
        write_moved(channel)

    held.core.write_moved = counted  # type: ignore[method-assign]
    fields = {"delay_ms": 60_000}
    calls = [commands.call(1, "message.later", {"id": each, **fields}) for each in ids]
    client.wire.send(b"".join(calls))
    await until(lambda: held.core.topics["t"].channels["c"].deferred_count >= 100)
    await until(lambda: held.has_waiting)
    held.release()
    for _ in ids:
        assert b"error" not in (await client.frame(v2.FrameType.ANSWER)).data
    assert len(written) < 10


async def test_a_requeue_that_cannot_be_journaled_is_refused(client: Client) -> None:
    log = client.held.core.log
    log.refuse_writes("too few replicas")
    client.wire.send(commands.call(1, "message.later", client.filled(CALLS["message.later"])))
    assert b"REFUSED" in (await client.frame(v2.FrameType.ANSWER)).data
    log.accept_writes()


# by construction


async def test_a_new_call_waits_though_nobody_has_thought_of_it(held: HeldBroker) -> None:
    def change(caller: Caller, arguments: CallArguments) -> None:
        held.core.topic("new")

    async def change_late(caller: Caller, arguments: CallArguments) -> None:
        await asyncio.sleep(0)
        held.core.topic("late").stage([b"x"])

    calls = CallRegistry(lambda: {"new": change, "late": change_late}, held.commits)
    held.hold()
    for method in calls.methods:
        held.hold()
        await held_back(held, calls.run(MagicMock(), method, {}))
        assert held.core.log.position == held.commits.durable_position


async def test_a_new_route_waits_though_nobody_has_thought_of_it(held: HeldBroker) -> None:
    async def change(request: Request) -> str:
        held.core.topic("new")
        return "done"

    routes = when_settled({"/new": {"POST": change, "GET": change}}, held.commits)
    held.hold()
    assert await routes["/new"]["GET"](MagicMock()) == "done"
    assert await held_back(held, routes["/new"]["POST"](MagicMock()))


async def test_a_new_command_waits_though_nobody_has_thought_of_it(held: HeldBroker) -> None:
    def change(connection: ClientConnection, command: object) -> None:
        held.core.topic("new")
        connection.replies.reply(v2.OK)

    wire = await Wire.open(held.broker.tcp_address)
    wire.send(b"NOP\n")
    await until(lambda: held.server.connections)
    (connection,) = held.server.connections
    connection._commands = {**connection._commands, v2.Nop: settled(v2.Nop, change)}
    held.hold()
    wire.send(b"NOP\n")
    assert await held_back(held, wire.answer()) == OK
    wire.close()


# SUB


@pytest.fixture
async def wire(client: Client) -> AsyncIterator[Wire]:
    """Another connection."""
    wire = await Wire.open(client.held.broker.tcp_address)
    yield wire
    wire.close()


@pytest.mark.parametrize("topic", ["t", "new"])
async def test_a_sub_of_something_new_is_answered_once_that_is_confirmed(
    client: Client, wire: Wire, topic: str
) -> None:
    wire.send(f"SUB {topic} new\n".encode())
    await held_back(client.held, wire.ok())


async def test_a_second_sub_of_what_is_not_confirmed_waits_too(client: Client) -> None:
    """The first one's client may have given up, and try again."""
    address = client.held.broker.tcp_address
    first, second = await Wire.open(address), await Wire.open(address)
    first.send(b"SUB t new\n")
    await until(lambda: client.held.has_waiting)
    first.close()
    second.send(b"SUB t new\n")
    await until(lambda: len(client.held.core.topics["t"].channels["new"].consumers) == 2)
    await held_back(client.held, second.ok())
    second.close()


async def test_a_sub_of_a_confirmed_channel_does_not_wait_for_messages(
    client: Client, wire: Wire
) -> None:
    """A standby that is down keeps no consumer from what is confirmed."""
    wire.send(pub("t", b"unconfirmed"))
    await until(lambda: client.held.has_waiting)
    other = await Wire.subscribed(client.held.broker.tcp_address, "t", "other")
    client.held.release()
    await wire.ok()
    other.close()


async def test_answers_keep_the_order_of_commands_around_a_sub_that_waits(
    client: Client, wire: Wire
) -> None:
    """No message comes before the OK, though RDY was sent together with SUB."""
    wire.send(pub("new", b"first") + b"SUB new c\nRDY 5\n" + pub("new", b"second") + b"CLS\n")
    frames = [await held_back(client.held, wire.answer())]
    frames += [await wire.answer() for _ in range(4)]
    kinds = [frame.type if frame.type == MESSAGE else frame.data for frame in frames]
    assert kinds[:2] == [b"OK", b"OK"]
    assert kinds[2] == MESSAGE
    assert sorted(map(str, kinds[3:])) == sorted(map(str, (b"OK", b"CLOSE_WAIT")))


async def test_nothing_else_that_was_waited_for_lets_messages_overtake_the_answer_to_sub(
    client: Client, wire: Wire
) -> None:
    """As an auth server's answer, or a client that reads again."""
    wire.send(b"SUB full c\nRDY 1\n")
    await until(lambda: client.held.has_waiting)
    for connection in client.held.server.connections:
        connection.go_on()
    assert await held_back(client.held, wire.answer()) == OK
    assert (await wire.message()).body == b"a"


@pytest.mark.parametrize(
    ("command", "verb"), [(b"SUB t new\n", "SUB"), (pub("t", b"x"), "PUB")], ids=["SUB", "PUB"]
)
async def test_what_will_not_be_confirmed_is_refused(
    client: Client, wire: Wire, command: bytes, verb: str
) -> None:
    wire.send(command)
    await until(lambda: client.held.has_waiting)
    client.held.commits.refuse_waiting(WritesRefused("too few replicas"))
    refusal = f"E_{verb}_FAILED {verb} failed too few replicas"
    assert (await wire.answer()).data.decode() == refusal
    if verb == "SUB":
        assert await wire.ended() == b""
