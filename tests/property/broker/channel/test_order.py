"""Ordered channels: whatever consumers and crashes do, no message overtakes one of its key.

Random consumers take messages of random keys, finish them, give them back, let their time run out,
leave, and the broker is killed or loses its power.  The rule that is checked at each delivery: all
earlier messages of the same key have been finished, or were in what a crash made come again.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.core import SECOND_NS, Client, Core

from martlet.broker.channel.ordering import MAX_PARKED
from martlet.broker.queue.cursor import Cursor
from martlet.log.index import IndexEntry
from martlet.properties.model import Properties

TIMEOUT_NS = 5 * SECOND_NS


class Ordered:
    """A broker with one ordered channel, and all that was published and finished."""

    def __init__(self, order: str, seed: int) -> None:
        self.random = Random(seed)
        self.core = Core(segment_bytes=1 << 16)
        self.order = order
        self.keys: list[str] = []
        self.finished: set[int] = set()
        self.durable: set[int] = set()
        self.clients: list[Client] = []
        self.seen: dict[Client, int] = {}
        self.held: dict[Client, list[tuple[int, int]]] = {}
        """By client the numbers of what it has, and the messages."""
        self.core.channel("t")
        self.configure()

    def configure(self) -> None:
        topic = self.core.broker.topic("t")
        policy = topic.channels["c"].policy.changed({"order": self.order, "lock_ms": 3000})
        topic.configure_channel("c", policy)

    def publish(self, keys: list[str]) -> None:
        topic = self.core.broker.topic("t")
        bodies = [b"%d" % (len(self.keys) + n) for n in range(len(keys))]
        entries = [(n, Properties(order_key=key).pack()) for n, key in enumerate(keys) if key]
        topic.stage(bodies, 0, entries)
        self.core.broker.commit()
        self.keys += keys
        self.look()

    def subscribe(self, ready: int) -> None:
        client = self.core.client("t", timeout_ns=TIMEOUT_NS)
        self.clients.append(client)
        self.seen[client], self.held[client] = 0, []
        client.ready(ready)
        self.look()

    def key(self, message: int) -> str | None:
        return "queue" if self.order == "queue" else self.keys[message] or None

    def look(self) -> None:
        """Check what was delivered since the last time."""
        for client in self.clients:
            for number in range(self.seen[client], len(client.got)):
                message = int(client.got[number].body)
                key = self.key(message)
                before = [
                    m for m in range(message) if self.key(m) == key and m not in self.finished
                ]
                assert key is None or not before, (message, before)
                self.held[client].append((number, message))
            self.seen[client] = len(client.got)

    def answer(self, *, fail: bool) -> None:
        some = [(client, message) for client in self.clients for message in self.held[client]]
        if not some:
            return
        client, (number, message) = self.random.choice(some)
        self.held[client].remove((number, message))
        if fail:
            client.requeue(number, self.random.choice([0, SECOND_NS]))
        else:
            self.finished.add(message)
            client.finish(number)
        self.look()

    def finish_all(self) -> None:
        """Finish all that a client has, in one run."""
        if not self.clients:
            return
        client = self.random.choice(self.clients)
        held, self.held[client] = self.held[client], []
        if held:
            self.finished.update(message for _, message in held)
            offsets = [client.offset(number) for number, _ in held]
            left = client.channel.finish_run(client.consumer, np.array(offsets, np.int64))
            for offset in left.tolist():  # Those that were held when the ordering began.
                client.channel.finish(client.consumer, offset)
            self.look()

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            client.leave()
            self.look()

    def wait(self) -> None:
        duration_ns = self.random.choice([SECOND_NS // 2, 2 * SECOND_NS, TIMEOUT_NS])
        if duration_ns == TIMEOUT_NS:
            for held in self.held.values():
                held.clear()
        self.core.wait(duration_ns)
        self.look()

    def crash(self, *, power: bool) -> None:
        """End a life; a killed broker may have forgotten the last finishes."""
        if power:
            self.core.flush()
        if power or self.random.random() < 0.5:
            self.core.broker.write_journal()
        if power:
            self.core.flush()
        self.core.kill(power=power)
        self.clients.clear()
        self.core.broker.topic("t").channel("c")

    def drain(self) -> None:
        while self.clients:
            self.leave()
        self.subscribe(3)
        client = self.clients[0]
        for _ in range(10 * len(self.keys) + 100):
            if len(self.finished) == len(self.keys):
                return
            if self.held[client]:
                self.answer(fail=False)
            else:
                self.core.wait(SECOND_NS)
                self.look()
        missing = sorted(set(range(len(self.keys))) - self.finished)
        raise AssertionError(f"never delivered: {missing}")


STEPS = [
    "publish",
    "publish",
    "subscribe",
    "finish",
    "finish",
    "finish",
    "finish all",
    "fail",
    "leave",
    "wait",
    "kill",
    "power",
]
steps = st.lists(st.sampled_from(STEPS), max_size=60)


@given(st.sampled_from(["queue", "key"]), steps, st.integers(0, 2**32))
def test_nothing_overtakes_its_key_and_all_arrives(order: str, todo: list[str], seed: int) -> None:
    ordered = Ordered(order, seed)
    for step in todo:
        if step == "publish":
            keys = ordered.random.choices(["a", "b", "c", ""], k=ordered.random.randrange(1, 6))
            ordered.publish(keys)
        elif step == "subscribe" and len(ordered.clients) < 4:
            ordered.subscribe(ordered.random.randrange(1, 5))
        elif step in ("finish", "fail"):
            ordered.answer(fail=step == "fail")
        elif step == "finish all":
            ordered.finish_all()
        elif step == "leave":
            ordered.leave()
        elif step == "wait":
            ordered.wait()
        elif step in ("kill", "power"):
            ordered.crash(power=step == "power")
    ordered.drain()


def test_other_keys_go_on_while_one_fails() -> None:
    ordered = Ordered("key", 1)
    ordered.publish(["a", "a", "b", "", "a", "b"])
    ordered.subscribe(10)
    client = ordered.clients[0]
    assert client.bodies == [b"0", b"2", b"3"]
    client.requeue(0, SECOND_NS)
    client.finish(1)
    assert client.bodies[3:] == [b"5"]
    ordered.core.wait(SECOND_NS)
    assert [(got.body, got.attempts) for got in client.got[4:]] == [(b"0", 2)]


def test_a_run_of_finishes_lets_the_next_of_each_key_go_out_together() -> None:
    ordered = Ordered("key", 1)
    ordered.publish(["a", "b", "a", "", "b"])
    client = ordered.core.client("t").ready(10)
    assert client.bodies == [b"0", b"1", b"3"]
    answered = np.array([client.offset(number) for number in (2, 0, 1, 0)], np.int64)
    left = client.channel.finish_run(client.consumer, answered)
    assert left.tolist() == [client.offset(0)]  # Said twice: its second answer is refused.
    assert client.bodies[3:] == [b"2", b"4"]


def test_consumers_share_what_may_be_delivered() -> None:
    ordered = Ordered("key", 1)
    clients = [ordered.core.client("t") for _ in range(3)]
    ordered.publish([str(number) for number in range(30)])
    ordered.core.channel("t").paused = True
    for client in clients:
        client.ready(30)
    ordered.core.channel("t").paused = False
    ordered.core.channel("t").pump()
    counts = [len(client.got) for client in clients]
    assert sum(counts) == 30
    assert min(counts) >= 5


def test_a_failed_read_of_messages_to_deliver_delays_them_and_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordered = Ordered("key", 1)
    ordered.publish(["a", "b", "a", "b"])
    read, calls = Cursor.read, iter(range(1000))

    def fails_once(cursor: Cursor, entry: IndexEntry) -> tuple[int, memoryview]:
        if next(calls) == 1:
            raise OSError(24, "too many open files")
        return read(cursor, entry)

    monkeypatch.setattr(Cursor, "read", fails_once)
    client = ordered.core.client("t").ready(10)
    assert not client.got
    ordered.core.wait(SECOND_NS)
    assert client.bodies == [b"0", b"1"]
    client.finish()
    assert client.bodies[2:] == [b"2", b"3"]


def test_a_queue_stays_with_its_consumer_until_its_lock_runs_out() -> None:
    ordered = Ordered("queue", 1)
    ordered.publish(["", ""])
    one = ordered.core.client("t").ready(1)
    other = ordered.core.client("t").ready(1)
    assert (one.bodies, other.bodies) == ([b"0"], [])
    one.channel.set_ready(one.consumer, 0)
    one.finish(0)
    assert not other.bodies  # It is the first one's for three seconds more.
    ordered.core.wait(3 * SECOND_NS)
    assert other.bodies == [b"1"]
    other.leave()
    one.ready(1)
    assert [(got.body, got.attempts) for got in one.got[1:]] == [(b"1", 2)]


def test_parked_messages_have_a_limit_and_the_cursor_waits() -> None:
    ordered = Ordered("key", 1)
    for _ in range(30):
        ordered.publish(["a"] * 100)
    ordered.publish(["b"])
    client = ordered.core.client("t").ready(10)
    ordered.core.wait(SECOND_NS)
    channel = ordered.core.channel("t")
    assert client.bodies == [b"0"]
    assert channel.cursor.next == MAX_PARKED + 1
    assert channel.depth == 3000
    for number in range(3000):
        client.finish(number)
    ordered.core.wait(SECOND_NS)
    assert [body for body in client.bodies if body != b"3000"] == [b"%d" % n for n in range(3000)]
    assert b"3000" in client.bodies


@pytest.mark.parametrize("order", ["queue", "key"])
def test_messages_in_flight_when_order_is_configured_keep_their_place(order: str) -> None:
    ordered = Ordered("none", 1)
    ordered.publish(["a", "a", "a", "a"])
    client = ordered.core.client("t").ready(2)
    assert client.bodies == [b"0", b"1"]
    ordered.order = order
    ordered.configure()
    client.finish(1)
    assert client.bodies == [b"0", b"1"]
    client.finish(0)
    assert client.bodies[2:] == [b"2"]
    ordered.order = "none"
    ordered.configure()
    client.channel.pump()
    assert client.bodies[2:] == [b"2", b"3"]


def test_ordering_resumes_after_a_failed_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ordered = Ordered("none", 1)
    ordered.publish(["a"] * 5)
    client = ordered.core.client("t").ready(10)
    assert len(client.got) == 5
    for number in range(5):
        client.requeue(number, SECOND_NS)
    client.got.clear()
    read, calls = Cursor.properties, iter(range(1000))

    def properties(cursor: Cursor, offset: int) -> bytes:
        if next(calls) == 2:
            raise OSError(24, "too many open files")
        return read(cursor, offset)

    monkeypatch.setattr(Cursor, "properties", properties)
    ordered.order = "key"
    ordered.configure()
    for _ in range(4):
        ordered.core.wait(SECOND_NS)
    assert client.bodies == [b"0"]
    client.finish()
    assert client.bodies == [b"0", b"1"]
