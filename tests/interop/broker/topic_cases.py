r"""The lives of topics and channels: the actions, and the observations after them.

    NSQD=/path/to/nsqd python -m tests.interop.broker.topic_cases \
        > tests/interop/broker/nsqd_topics.json

records what nsqd shows.  Each story has topics of its own; one restarts the broker.
"""

from __future__ import annotations

import json
import struct
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote

from tests.interop.nsqd_process import NsqdProcess
from tests.interop.server.http.http_cases import Client

from martlet.testing import BrokerProcess

_STILL_S = 0.1
_PATIENCE_S = 60.0
_TOPIC = ["depth", "message_count", "message_bytes", "paused"]
_CHANNEL = [
    "depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "requeue_count",
    "timeout_count",
]
_CHANNEL += ["client_count", "paused"]
_CLIENT = [
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
]
Seen = dict[str, Any]


class NsqdInMemory(NsqdProcess):
    """An nsqd with its defaults: ephemeral topics and channels need its queues in memory."""

    @property
    def command(self) -> list[str]:
        return [word for word in super().command if not word.startswith("--mem-queue-size")]


def sized(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


class Stage:
    """A broker, its clients, and what was seen so far."""

    def __init__(self, broker: BrokerProcess, clients: ExitStack) -> None:
        self.broker = broker
        self.seen: list[list[Any]] = []
        self._clients = clients

    def client(self, name: str, **fields: object) -> Client:
        """Open a connection; `fields` go with IDENTIFY."""
        client = Client(int(self.broker.tcp_address.rpartition(":")[2]), name, **fields)
        self._clients.callback(client.close)
        return client

    def consumer(self, topic: str, channel: str, ready: int = 0, **fields: object) -> Client:
        """A connection that is subscribed."""
        client = self.client("consumer", **fields)
        assert client.ask(f"SUB {topic} {channel}\n".encode()) == b"OK"
        if ready:
            client.send(f"RDY {ready}\n".encode())
        return client

    def publish(self, topic: str, *bodies: str) -> None:
        """Publish from a connection that goes again."""
        producer = self.client("producer")
        for body in bodies:
            assert producer.ask(f"PUB {topic}\n".encode() + sized(body.encode())) == b"OK"
        producer.close()

    def get(self, target: str) -> Any:
        with urllib.request.urlopen(f"http://{self.broker.http_address}{target}") as answer:
            return json.loads(answer.read())

    def post(self, path: str, body: bytes = b"", **arguments: str) -> int:
        """Ask HTTP for something. Returns the status."""
        query = "&".join(f"{name}={quote(value)}" for name, value in arguments.items())
        try:
            url = f"http://{self.broker.http_address}{path}?{query}"
            with urllib.request.urlopen(url, data=body, timeout=10) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def poll(self, topic: str) -> Seen | None:
        """A topic as the stats show it now; None where there is none."""
        target = f"/stats?format=json&include_mem=false&topic={quote(topic)}"
        for shown in self.get(target)["topics"] or ():
            seen: Seen = {name: shown[name] for name in _TOPIC}
            seen["channels"] = {c["channel_name"]: _channel(c) for c in shown["channels"]}
            return seen
        return None

    def see(self, name: str, *topics: str) -> None:
        """Write down how topics look when they have come to rest."""
        before: dict[str, Seen | None] | None = None
        deadline_s = time.monotonic() + _PATIENCE_S
        while (now := {topic: self.poll(topic) for topic in topics}) != before:
            assert time.monotonic() < deadline_s, f"{topics} do not come to rest: {now}"
            before = now
            time.sleep(_STILL_S)
        self.seen.append([name, now])

    def note(self, name: str, value: object) -> None:
        """Write something else down."""
        self.seen.append([name, value])

    def wait(self, topic: str, channel: str, field: str, value: int) -> None:
        """Wait until a channel's field has a value."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while (seen := self.poll(topic)) is None or seen["channels"][channel][field] != value:
            assert time.monotonic() < deadline_s, f"{field} does not become {value}: {seen}"
            time.sleep(_STILL_S)


def _channel(shown: Seen) -> Seen:
    seen: Seen = {name: shown[name] for name in _CHANNEL}
    clients = [{name: client[name] for name in _CLIENT} for client in shown["clients"]]
    return seen | {"clients": sorted(clients, key=json.dumps)}


def ended(client: Client) -> bool:
    """Whether the broker closes the connection."""
    try:
        return client.receive() == b""
    except ConnectionError:
        return True


def body_of(frame: bytes) -> str:
    return frame[26:].decode()


def id_of(frame: bytes) -> bytes:
    return frame[10:26]


# the stories


def ephemeral_channels_go_with_their_last_consumer(stage: Stage) -> None:
    one, other = (stage.consumer("e1", "c#ephemeral") for _ in range(2))
    stays = stage.consumer("e1", "stays")
    stage.see("subscribed", "e1")
    one.close()
    stage.see("one has left", "e1")
    other.close()
    stays.close()
    stage.see("all have left", "e1")


def what_an_ephemeral_channel_held_goes_with_it(stage: Stage) -> None:
    tail = stage.consumer("e2", "tail#ephemeral", ready=1)
    stage.publish("e2", "1", "2", "3")
    tail.receive()
    stage.see("one of three is in flight", "e2")
    tail.close()
    stage.see("it has left", "e2")
    stage.publish("e2", "4", "5")
    stage.see("two more", "e2")
    main = stage.consumer("e2", "main", ready=5)
    stage.note("the next channel gets", [body_of(main.receive()) for _ in range(2)])
    stage.see("at the end", "e2")


def ephemeral_topics_go_with_their_last_channel(stage: Stage) -> None:
    stage.publish("e3#ephemeral", "1")
    stage.see("published", "e3#ephemeral")
    consumer = stage.consumer("e3#ephemeral", "c", ready=1)
    message = consumer.receive()
    stage.note("the first channel gets", body_of(message))
    # nsqd lets it time out where it is left unfinished; Martlet gives it to others at once.
    consumer.send(b"FIN " + id_of(message) + b"\n")
    stage.note("leave", consumer.ask(b"CLS\n").decode())
    consumer.close()
    stage.see("a channel that stays, stays", "e3#ephemeral")
    stage.note("delete", stage.post("/channel/delete", topic="e3#ephemeral", channel="c"))
    stage.see("without it", "e3#ephemeral")
    stage.note("create", stage.post("/topic/create", topic="e4#ephemeral"))
    stage.see("made without a channel", "e4#ephemeral")
    stage.consumer("e4#ephemeral", "c#ephemeral").close()
    stage.see("its only consumer has left", "e4#ephemeral")


def a_paused_channel_delivers_nothing(stage: Stage) -> None:
    stage.post("/topic/create", topic="p1")
    consumer = stage.consumer("p1", "c", ready=2)
    stage.publish("p1", "1", "2", "3")
    held = [consumer.receive() for _ in range(2)]
    stage.note("pause", [stage.post("/channel/pause", topic="p1", channel="c") for _ in range(2)])
    consumer.send(b"FIN " + id_of(held[0]) + b"\n")
    stage.see("paused, and one finished", "p1")
    stage.note("unpause", stage.post("/channel/unpause", topic="p1", channel="c"))
    stage.note("then comes", body_of(consumer.receive()))
    stage.see("unpaused", "p1")


def a_paused_topic_keeps_what_is_published(stage: Stage) -> None:
    stage.post("/topic/create", topic="p2")
    consumer = stage.consumer("p2", "c", ready=9)
    stage.publish("p2", "before")
    stage.note("before", body_of(consumer.receive()))
    stage.note("pause", [stage.post("/topic/pause", topic="p2") for _ in range(2)])
    stage.publish("p2", "1", "2")
    stage.see("paused", "p2")
    late = stage.consumer("p2", "late", ready=9)
    stage.see("with one channel more", "p2")
    stage.note("unpause", stage.post("/topic/unpause", topic="p2"))
    for client in (consumer, late):
        stage.note("then come", sorted(body_of(client.receive()) for _ in range(2)))
    stage.see("unpaused", "p2")


def an_emptied_channel_holds_nothing(stage: Stage) -> None:
    consumer = stage.consumer("m1", "c", ready=2)
    stage.publish("m1", "1", "2", "3", "4")
    held = [consumer.receive() for _ in range(2)]
    stage.note("defer", stage.post("/pub", b"later", topic="m1", defer="60000"))
    stage.see("full", "m1")
    stage.note("empty", stage.post("/channel/empty", topic="m1", channel="c"))
    stage.see("emptied", "m1")
    answer = consumer.ask(b"FIN " + id_of(held[0]) + b"\n")
    stage.note("FIN", answer.replace(id_of(held[0]), b"ID").decode())
    stage.publish("m1", "5", "6")
    stage.note("then come", [body_of(consumer.receive()) for _ in range(2)])
    stage.see("again in flight", "m1")


def an_emptied_topic_keeps_its_channels_messages(stage: Stage) -> None:
    stage.publish("m2", "1", "2")
    stage.see("without a channel", "m2")
    stage.note("empty", stage.post("/topic/empty", topic="m2"))
    stage.see("emptied", "m2")
    stage.post("/channel/create", topic="m2", channel="c")
    stage.publish("m2", "3", "4", "5")
    stage.see("with a channel", "m2")
    stage.note("empty", stage.post("/topic/empty", topic="m2"))
    stage.see("emptied again", "m2")
    stage.post("/topic/pause", topic="m2")
    stage.publish("m2", "6", "7")
    stage.note("empty", stage.post("/topic/empty", topic="m2"))
    stage.see("emptied while paused", "m2")
    stage.post("/topic/unpause", topic="m2")
    consumer = stage.consumer("m2", "c", ready=9)
    stage.note("what is left", sorted(body_of(consumer.receive()) for _ in range(3)))
    stage.see("at the end", "m2")


def a_deleted_channel_closes_its_consumers(stage: Stage) -> None:
    consumers = [stage.consumer("d1", "c", ready=1) for _ in range(2)]
    other = stage.consumer("d1", "other", ready=5)
    stage.publish("d1", "1", "2", "3")
    stage.see("two channels", "d1")
    stage.note("delete", [stage.post("/channel/delete", topic="d1", channel="c") for _ in range(2)])
    for client in consumers:
        client.receive()
        stage.note("its consumer is closed", ended(client))
    stage.note("the other gets", [body_of(other.receive()) for _ in range(3)])
    stage.see("deleted", "d1")
    again = stage.consumer("d1", "c", ready=5)
    stage.publish("d1", "4")
    stage.note("made anew it gets", body_of(again.receive()))
    stage.see("at the end", "d1")


def a_deleted_topic_closes_its_consumers_and_no_producer(stage: Stage) -> None:
    consumer = stage.consumer("d2", "c", ready=1)
    producer = stage.client("producer")
    assert producer.ask(b"PUB d2\n" + sized(b"1")) == b"OK"
    assert producer.ask(b"PUB d2\n" + sized(b"2")) == b"OK"
    consumer.receive()
    stage.note("delete", [stage.post("/topic/delete", topic="d2") for _ in range(2)])
    stage.note("its consumer is closed", ended(consumer))
    stage.see("deleted", "d2")
    stage.note("publish", producer.ask(b"PUB d2\n" + sized(b"3")).decode())
    stage.see("made anew", "d2")
    late = stage.consumer("d2", "c", ready=5)
    stage.note("a consumer gets", body_of(late.receive()))
    stage.see("at the end", "d2")


def the_first_channel_gets_the_backlog(stage: Stage) -> None:
    stage.publish("b1", "1", "2", "3")
    stage.see("no channel", "b1")
    stage.note("create", stage.post("/channel/create", topic="b1", channel="first"))
    stage.see("one channel", "b1")
    stage.note("create", stage.post("/channel/create", topic="b1", channel="second"))
    stage.publish("b1", "4")
    stage.see("two channels", "b1")
    stage.post("/channel/delete", topic="b1", channel="first")
    stage.post("/channel/delete", topic="b1", channel="second")
    stage.publish("b1", "5")
    stage.see("both deleted", "b1")
    third = stage.consumer("b1", "third", ready=9)
    stage.note("the next gets", body_of(third.receive()))
    stage.see("at the end", "b1")


def topics_are_made_by_who_publishes_or_subscribes(stage: Stage) -> None:
    client = stage.client("maker")
    stage.note("PUB", client.ask(b"PUB t1\n" + sized(b"1")).decode())
    stage.note("MPUB", client.ask(b"MPUB t2\n" + sized(b"\0\0\0\1" + sized(b"1"))).decode())
    stage.note("DPUB", client.ask(b"DPUB t3 60000\n" + sized(b"1")).decode())
    stage.note("SUB", client.ask(b"SUB t4 c\n").decode())
    stage.note("/pub", stage.post("/pub", b"1", topic="t5"))
    stage.note("/mpub", stage.post("/mpub", b"1\n2\n", topic="t6"))
    stage.note("/topic/create", stage.post("/topic/create", topic="t7"))
    stage.note("/pub of nothing", stage.post("/pub", b"", topic="t8"))
    stage.note("/mpub of nothing", stage.post("/mpub", b"", topic="t9"))
    stage.note("/channel/create", stage.post("/channel/create", topic="t10", channel="c"))
    stage.note("/pub in vain", stage.post("/pub", b"1", topic="t11", defer="-1"))
    stage.see("topics", *(f"t{number}" for number in range(1, 12)))
    stage.note("create", stage.post("/channel/create", topic="t3", channel="c"))
    stage.see("what was deferred goes to the first channel", "t3")


def names_have_limits(stage: Stage) -> None:
    names = ["n" * 64, "n" * 65, "n" * 54 + "#ephemeral", "n" * 55 + "#ephemeral", "#ephemeral"]
    names += ["n#Ephemeral", "n#ephemeral#ephemeral", "A.b_c-9", "a:b", ".", "n#", "n/n", "\u00fc"]
    for name in names:
        for command in (f"SUB {name} c\n", f"SUB limits {name}\n"):
            answer = stage.client("c").ask(command.encode())
            stage.note(command, answer.decode(errors="replace"))
        for verb in ("PUB", "DPUB", "MPUB"):
            command = f"{verb} {name}{' 0' if verb == 'DPUB' else ''}\n"
            body = b"\0\0\0\1" + sized(b"1") if verb == "MPUB" else b"1"
            answer = stage.client("c").ask(command.encode() + sized(body))
            stage.note(command, answer.decode(errors="replace"))


def counters_tell_what_became_of_messages(stage: Stage) -> None:
    consumer = stage.consumer("c1", "c", ready=4, msg_timeout=1000)
    stage.post("/channel/create", topic="c1", channel="idle")
    stage.publish("c1", "1", "2", "3", "4")
    held = [consumer.receive() for _ in range(4)]
    consumer.send(b"RDY 3\nFIN " + id_of(held[0]) + b"\nREQ " + id_of(held[1]) + b" 0\n")
    again = consumer.receive()
    stage.note("again", [body_of(again), struct.unpack(">H", again[8:10])[0]])
    consumer.send(b"RDY 0\nREQ " + id_of(held[2]) + b" 60000\n")
    stage.wait("c1", "c", "timeout_count", 2)
    stage.see("two have timed out", "c1")


def a_restart_keeps_messages_and_begins_to_count_anew(stage: Stage) -> None:
    consumer = stage.consumer("r1", "c", ready=3)
    stage.post("/channel/create", topic="r1", channel="paused")
    stage.post("/channel/pause", topic="r1", channel="paused")
    tail = stage.consumer("r1", "tail#ephemeral")
    stage.publish("r1", "1", "2", "3", "4")
    held = [consumer.receive() for _ in range(3)]
    consumer.send(b"RDY 0\nFIN " + id_of(held[0]) + b"\nREQ " + id_of(held[1]) + b" 0\n")
    stage.publish("r2", "kept for the first channel")
    stage.post("/topic/create", topic="r3")
    stage.post("/channel/create", topic="r3", channel="c")
    stage.post("/topic/pause", topic="r3")
    stage.publish("r3", "1", "2")
    stage.publish("r4#ephemeral", "1")
    topics = ("r1", "r2", "r3", "r4#ephemeral")
    stage.see("before", *topics)
    stage.broker.restart()
    for client in (consumer, tail):
        stage.note("closed", ended(client))
    stage.see("after", *topics)
    consumer = stage.consumer("r1", "c", ready=9)
    again = [consumer.receive() for _ in range(3)]
    stage.note("messages", sorted(body_of(message) for message in again))
    stage.publish("r1", "5")
    stage.note("new", body_of(consumer.receive()))
    stage.post("/topic/unpause", topic="r3")
    stage.see("at the end", *topics)


STORIES: tuple[Callable[[Stage], None], ...] = (
    ephemeral_channels_go_with_their_last_consumer,
    what_an_ephemeral_channel_held_goes_with_it,
    ephemeral_topics_go_with_their_last_channel,
    a_paused_channel_delivers_nothing,
    a_paused_topic_keeps_what_is_published,
    an_emptied_channel_holds_nothing,
    an_emptied_topic_keeps_its_channels_messages,
    a_deleted_channel_closes_its_consumers,
    a_deleted_topic_closes_its_consumers_and_no_producer,
    the_first_channel_gets_the_backlog,
    topics_are_made_by_who_publishes_or_subscribes,
    names_have_limits,
    counters_tell_what_became_of_messages,
    a_restart_keeps_messages_and_begins_to_count_anew,
)


def answers_of(broker: BrokerProcess, story: Callable[[Stage], None]) -> list[Any]:
    """Play a story, and return what it notes."""
    with ExitStack() as clients:
        stage = Stage(broker, clients)
        story(stage)
        seen: list[Any] = json.loads(json.dumps(stage.seen))
        return seen


if __name__ == "__main__":
    with NsqdInMemory() as nsqd:
        rows = [f" {json.dumps(s.__name__)}: {json.dumps(answers_of(nsqd, s))}" for s in STORIES]
    print("{\n" + ",\n".join(rows) + "\n}")
