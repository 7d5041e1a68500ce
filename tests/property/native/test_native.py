"""The compiled hot path gives the same bytes, state and errors as Python, for any input."""

from __future__ import annotations

import asyncio
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.native.twins import Twin, TwinClient

from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.native import native
from martlet.properties.block import pack_block
from martlet.properties.model import Properties
from martlet.protocol.nsq import commands

pytestmark = pytest.mark.skipif(native is None, reason="the hot path is not compiled here")

CLIENTS = 3
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
Step = tuple[object, ...]
"""What is done, and its arguments."""
_MESSAGE = re.compile(rb"\x00\x00\x00\x02.{8}..([0-9a-f]{16})", re.DOTALL)


def sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


class Input(NamedTuple):
    """Input of a client, by a short description: hypothesis prints it.

    Attributes:
        verb: PUB for one command a body, MPUB for one of all.
        spare: bytes behind the last body.
    """

    verb: str
    topic: str
    sizes: tuple[int, ...]
    spare: bytes = b""

    @property
    def data(self) -> bytes:
        """The bytes."""
        line = f"{self.verb} {self.topic}\n".encode()
        bodies = [sized(b"x" * size) for size in self.sizes]
        if self.verb == "PUB":
            return b"".join(line + body for body in bodies) + self.spare
        inner = struct.pack(">I", len(bodies)) + b"".join(bodies) + self.spare
        return line + sized(inner)


topics = st.sampled_from(["a", "b", "several", "short#ephemeral"])
sizes = st.sampled_from([1, 2, 7, 8, 9, 100, 200, 3999, 4000])
publishes = st.builds(
    lambda topic, size, count: Input("PUB", topic, (size,) * count),
    topics,
    sizes,
    st.sampled_from([1, 1, 1, 2, 5, 40]),
)
several_sizes = st.lists(st.integers(1, 60), min_size=2, max_size=30).map(tuple)
uneven_runs = st.builds(lambda topic, bodies: Input("PUB", topic, bodies), topics, several_sizes)
batches = st.builds(
    lambda topic, bodies, spare: Input("MPUB", topic, bodies, spare),
    topics,
    st.one_of(
        several_sizes,
        st.integers(1, 30).map(lambda count: (50,) * count),
        st.sampled_from([(0,), (5, 4001), (5, 0)]),
    ),
    st.sampled_from([b"", b"", b"", b"?", b"\0\0\0\0"]),
)
broken = st.sampled_from(
    [
        b"PUB a\n" + sized(b""),
        Input("PUB", "a", (4001,)).data[:50],
        Input("PUB", "a", (4001,)).data,
        b"PUB a\n\xff\xff\xff\xff",
        b"PUB \n" + sized(b"x"),
        b"PUB a b\n" + sized(b"x"),
        b"PUB a\r\n" + sized(b"x"),
        b"FIN 0123456789abcdef\n",
        b"FIN 0123456789ABCDEG\n",
        b"FIN short\n",
        b"NOP\n",
        b"NONSENSE\n",
        b"DPUB a 100\n" + sized(b"later"),
        b"CLS\n",
        b"\n",
    ]
)
EXTENDED = {"feature_negotiation": True, "martlet": True}
identities = st.sampled_from(
    [
        {},
        EXTENDED,
        {"sample_rate": 40},
        {"msg_timeout": 1000},
        {"sample_rate": 99, "msg_timeout": 2000},
    ]
)


def tagged(tag: bytes) -> bytes:
    """A SEND of one message with a tag."""
    properties = pack_block([(0, Properties(tag=tag.decode()).pack())]) if tag else b""
    return commands.send("a", [b"tagged"], {}, properties)


client = st.integers(0, CLIENTS - 1)
lone = st.tuples(
    st.just("send"),
    client,
    st.builds(lambda topic, size: Input("PUB", topic, (size,)), st.sampled_from("ab"), sizes),
)
answer = st.tuples(
    st.just("answer"), client, st.sampled_from(["FIN", "FIN", "FIN", "FIN", "REQ", "TOUCH"])
)
ready = st.tuples(st.just("ready"), client, st.sampled_from([0, 1, 1, 2, 50]))
others = st.one_of(
    st.tuples(st.just("send"), client, publishes),
    st.tuples(st.just("send"), client, st.one_of(uneven_runs, batches)),
    st.tuples(st.just("send"), client, broken),
    st.tuples(st.just("cut"), client, st.one_of(publishes, batches), st.integers(1, 300)),
    st.tuples(st.just("subscribe"), client, topics, st.sampled_from(["x", "y", "z#ephemeral"])),
    ready,
    st.tuples(st.just("time"), st.sampled_from([0.0001, 1.0, 61.0])),
    st.tuples(st.just("pause"), topics, st.booleans()),
    st.tuples(st.just("trace"), topics, st.booleans()),
    st.tuples(st.just("order"), topics),
    st.tuples(st.just("block"), client, st.booleans()),
    st.tuples(st.just("filter"), topics, st.sampled_from(["", "red", "red blue"])),
    st.tuples(st.just("send"), client, st.sampled_from([b"", b"red"]).map(tagged)),
    st.tuples(st.just("together"), client, st.sampled_from([b"", b"red"]).map(tagged), publishes),
    st.tuples(st.just("leave"), client, identities),
    st.tuples(st.just("rate"), topics, st.sampled_from([0, 1, 50])),
)
# Mostly what the compiled path is for, with anything in between.
lives = st.lists(
    st.one_of(lone, lone, lone, answer, answer, answer, others), min_size=25, max_size=80
)
beginnings = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), client, st.sampled_from("ab"), st.just("x")),
        ready,
        lone,
    ),
    min_size=2,
    max_size=8,
)


class Pair:
    """The two brokers and their clients, driven alike."""

    def __init__(self, folder: Path, flush: str = "async") -> None:
        self.twins = [
            Twin(folder / name, compiled=name == "compiled", segment_bytes=1 << 16, flush=flush)
            for name in ("compiled", "python")
        ]
        for twin in self.twins:
            twin.broker.set_queues("several", 3)
            for topic in ("a", "b", "short#ephemeral"):
                twin.broker.topic(topic)
        self.clients = [self._client() for _ in range(CLIENTS)]
        self.in_flight: list[list[bytes]] = [[] for _ in range(CLIENTS)]

    def _client(self, identity: bytes = b"") -> list[TwinClient]:
        pair = [TwinClient(twin) for twin in self.twins]
        for client in pair:
            client.send(b"  V2" + identity)
            client.received()  # names the broker, each another
        return pair

    def send(self, number: int, *inputs: bytes) -> None:
        for client in self.clients[number]:
            client.send(*inputs)

    def step(self, step: Step) -> None:
        match step:
            case ("send", int(number), bytes() | Input() as some):
                self.send(number, some if isinstance(some, bytes) else some.data)
            case ("together", int(number), bytes(first), Input() as second):
                self.send(number, first, second.data)
            case ("cut", int(number), Input() as some, int(at)):
                self.send(number, some.data[:at])
                self.send(number, some.data[at:])
            case ("subscribe", int(number), topic, channel):
                self.send(number, f"SUB {topic} {channel}\n".encode())
            case ("ready", int(number), count):
                self.send(number, f"RDY {count}\n".encode())
            case ("answer", int(number), verb):
                holders = [n for n in range(CLIENTS) if self.in_flight[n]]
                if holders:
                    number = holders[number % len(holders)]
                    id = self.in_flight[number].pop(0)
                    extra = b" 0" if verb == "REQ" else b""
                    self.send(number, f"{verb} ".encode() + id + extra + b"\n")
            case ("time", float(seconds)):
                for twin in self.twins:
                    twin.pass_time(seconds)
            case ("leave", int(number), dict(identity)):
                for client in self.clients[number]:
                    client.leave()
                hello = commands.identify(identity) if identity else b""
                self.clients[number] = self._client(hello)
                self.in_flight[number] = []
            case ("block", int(number), bool(blocked)):
                for client in self.clients[number]:
                    with client.twin.own_way():
                        client.block(blocked)
            case (what, str(name), *arguments):
                for twin in self.twins:
                    with twin.own_way():
                        self._operate(twin, str(what), name, *arguments)

    @staticmethod
    def _operate(twin: Twin, what: str, name: str, *arguments: object) -> None:
        topic = twin.broker.topics.get(name)
        if topic is None:
            return
        if what == "pause":
            topic.set_paused(bool(arguments[0]))
        elif what == "trace":
            topic.configure(TopicPolicy(trace="on" if arguments[0] else "off"))
        elif what == "filter" and "x" in topic.channels:
            topic.configure_channel("x", ChannelPolicy(tags=tuple(str(arguments[0]).split())))
        elif what == "rate" and "x" in topic.channels:
            policy = topic.channels["x"].policy.configured({"rate_per_s": arguments[0]})
            topic.configure_channel("x", policy)
        elif what == "order" and "x" in topic.channels and not topic.channels["x"].consumers:
            topic.configure_channel("x", ChannelPolicy(order="queue"))

    def compare(self) -> None:
        for number, pair in enumerate(self.clients):
            answers = [twin.received() for twin in pair]
            assert answers[0] == answers[1]
            self.in_flight[number] += _MESSAGE.findall(answers[0])
            compiled, python = (twin.connection for twin in pair)
            assert compiled.message_counters == python.message_counters
            assert compiled.has_received == python.has_received
            assert compiled.state == python.state
            assert compiled.input.is_held_up == python.input.is_held_up
            closed = [twin.transport.closed for twin in pair]
            assert closed[0] == closed[1]
            if closed[0]:
                self.step(("leave", number, {}))
        compiled_state, python_state = (twin.state() for twin in self.twins)
        assert compiled_state == python_state

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.step(step)
            self.compare()


@contextmanager
def pair_of(flush: str = "async") -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        pair = Pair(Path(folder), flush)
        try:
            yield pair
        finally:
            for twin in pair.twins:
                twin.close()


@pytest.mark.timeout(600)  # about 10 s alone; much more beside other work, or where it fails
@settings(max_examples=int(os.environ.get("MARTLET_TWIN_LIVES", "100")))
@given(st.builds(list.__add__, beginnings, lives), st.sampled_from(["async", "async", "sync"]))
def test_the_compiled_path_equals_python(chosen: list[Step], flush: str) -> None:
    async def run() -> None:
        with pair_of(flush) as pair:
            pair.play(chosen)

    asyncio.run(run())


BEGIN: list[Step] = [("subscribe", 1, "a", "x"), ("ready", 1, 2)]
LONE: Step = ("send", 0, Input("PUB", "a", (200,)))
FINISH: Step = ("answer", 1, "FIN")
REQUEUE: Step = ("answer", 1, "REQ")
ELSEWHERE: Step = ("send", 0, Input("PUB", "b", (200,)))
GATES: dict[str, list[Step]] = {
    "journaled": [("time", 1.0)],
    "timed out": [LONE, ("time", 61.0)],
    "requeued": [LONE, REQUEUE],
    "pending beside free room": [FINISH, REQUEUE, LONE, LONE, REQUEUE],
    "paused topic": [("pause", "a", True)],
    "traced": [("trace", "a", True)],
    "filtered": [("filter", "a", "red")],
    "ordered": [("leave", 1, {}), ("order", "a"), *BEGIN],
    "sampled": [("leave", 1, {"sample_rate": 40}), *BEGIN],
    "output full": [("block", 1, True)],
    "output full beside free room": [FINISH, ("block", 1, True)],
    "own output full": [("block", 0, True)],
    "no room": [("ready", 1, 0)],
    "two consumers": [("subscribe", 2, "a", "x"), ("ready", 2, 1)],
    "two channels": [("subscribe", 2, "a", "y"), ("ready", 2, 1)],
    "ephemeral channel": [("ready", 1, 50), ("subscribe", 2, "a", "z#ephemeral")],
    "answer due": [
        ("leave", 0, EXTENDED),
        ELSEWHERE,
        ("together", 0, tagged(b"red"), ELSEWHERE[-1]),
    ],
    "closing": [("send", 1, b"CLS\n")],
    "too large": [("send", 0, Input("PUB", "a", (4001,)).data)],
    "largest": [("send", 0, Input("PUB", "a", (4000,)).data)],
    "no id": [("send", 1, b"FIN 0123456789ABCDEG\n")],
}
"""What happens between lone commands, by name."""


@pytest.mark.parametrize("gate", GATES)
async def test_lone_commands_behind_anything_else(gate: str) -> None:
    lone = [LONE, FINISH, LONE, LONE, LONE, LONE, FINISH, FINISH]
    with pair_of() as pair:
        pair.play([*BEGIN, *lone, *GATES[gate], *lone, *lone])


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_what_the_compiled_path_serves(flush: str) -> None:
    """A producer and a consumer that send one command at a time never need Python."""
    with pair_of(flush) as pair:
        pair.play([*BEGIN, LONE])
        served = pair.twins[0].served_count
        # Delivered at once; waiting for a FIN; and finished in another order.
        pair.play([LONE, FINISH, LONE, FINISH, LONE, LONE, LONE, *[FINISH] * 4] * 3)
        assert pair.twins[0].served_count - served == 31
        for what in ("trace", "pause"):
            pair.step((what, "a", True))
            pair.play([LONE, FINISH, LONE, (what, "a", False)])


async def test_the_compiled_path_leaves_a_limited_channel_to_python() -> None:
    with pair_of() as pair:
        pair.play([*BEGIN, ("ready", 1, 50), ("rate", "a", 1), *[LONE] * 5])
        for twin in pair.twins:
            assert twin.broker.topics["a"].channels["x"].delivered_count == 1


async def test_a_client_that_is_held_up_sends_more_than_its_socket_takes() -> None:
    large: Step = ("send", 0, Input("PUB", "a", (4000,) * 40))
    with pair_of() as pair:
        pair.play([*BEGIN, ("block", 0, True), *[large] * 20])
        assert pair.clients[0][0].transport.paused
        pair.play([("block", 0, False), LONE, LONE, FINISH])
        for twin in pair.twins:
            assert twin.broker.topics["a"].message_count == 802
