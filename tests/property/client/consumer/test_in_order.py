"""Ordering by queue with clients that get several messages of a queue at once.

The broker's core, and the client's acknowledgements with all that they know of the order; between
them wires that deliver late, in both directions, and are cut.  Random handlers finish messages,
fail, take too long or touch; consumers come and go, some of them NSQ's; the broker is killed. The
rule that is checked whenever a handler begins: all earlier messages of the queue have been handled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.broker.core import SECOND_NS, Core

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import NotInFlight
from martlet.broker.queue.queue_log import ID_MASK
from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.buffer import BufferedRun
from martlet.client.consumer.in_order import InOrderAcks
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq.message_run import MessageRun
from martlet.text import MILLISECOND_NS

TIMEOUT_NS = 5 * SECOND_NS


class Wire:
    """One client: its connection as the broker and as the consumer see it, and its handlers."""

    def __init__(self, broker: BrokerCore, *, in_order: bool) -> None:
        self.inbox: deque[MessageRun | int] = deque()
        """Runs of messages, and recalled queues, on their way to the consumer."""
        self.outbox: deque[tuple[bytes, ...]] = deque()
        """Commands on their way to the broker."""
        self.handlers: list[bytes] = []
        """The ids of messages that handlers may begin, or have begun."""
        self.bodies: dict[bytes, int] = {}
        self.channel: Any = broker.topics["t"].channel("c").all_queues
        self.consumer: Any = self.channel.add_consumer(self, TIMEOUT_NS)
        self.consumer.progress.in_order = in_order
        # Of the connection, for the consumer.
        self.features = SimpleNamespace(
            message_timeout_ms=5000, max_message_timeout_ms=60_000, extensions=0
        )
        self.id_base = self.channel.queue.id_base & ID_MASK
        self.on_recalled: Any = None
        self.is_alive = True
        connection = cast(Connection, self)
        self.answers: AckBatcher = (
            InOrderAcks(connection, self.hand_on) if in_order else AckBatcher(connection)
        )

    # for the broker

    def send_messages(self, frames: Any) -> None:
        for frame in map(bytes, frames):
            ends, at = [], 0
            while at < len(frame):
                at += 4 + int.from_bytes(frame[at : at + 4], "big")
                ends.append(at)
            self.inbox.append(MessageRun(frame, ends))

    def recalled(self, queue: int) -> None:
        self.inbox.append(queue)

    def channel_closed(self) -> None: ...

    def failures_counted(self, max_attempts: int) -> None: ...

    def channel_grown(self, channel: object, consumer: object) -> None:
        raise AssertionError("a channel has grown")

    # for the consumer

    def write(self, data: bytes) -> None:
        for line in data.splitlines():
            self.outbox.append(tuple(line.split(b" ")))

    def hand_on(self, delivery: BufferedRun) -> None:
        for _, _, message_id, body in delivery.run.fields():
            self.handlers.append(message_id)
            self.bodies[message_id] = int(body)

    # what happens

    def receive(self) -> None:
        if not self.inbox:
            return
        news = self.inbox.popleft()
        if isinstance(news, int):
            self.on_recalled(news)
        elif isinstance(self.answers, InOrderAcks):
            self.answers.arrived(news)
        else:
            self.hand_on(BufferedRun(self.answers, news, 0.0))

    def send(self, *, together: bool) -> None:
        """Let the broker read a command, or all FINs in a row."""
        offsets: list[int] = []
        while self.outbox and self.outbox[0][0] == b"FIN" and (together or not offsets):
            offsets.append(self.channel.queue.offset_of(self.outbox.popleft()[1]))
        if offsets:
            ids = np.array(offsets, np.uint64).view(np.int64)
            for offset in self.channel.finish_run(self.consumer, ids).tolist():
                self.answer(self.channel.finish, offset)
        elif self.outbox:
            verb, message_id, *delay = self.outbox.popleft()
            offset = self.channel.queue.offset_of(message_id)
            if verb == b"REQ":
                self.answer(self.channel.requeue, offset, int(delay[0]) * MILLISECOND_NS)
            else:
                self.answer(self.channel.touch, offset)

    def answer(self, method: Any, *arguments: int) -> None:
        try:
            method(self.consumer, *arguments)
        except NotInFlight:
            pass  # It has timed out: the client is told so.


class Model:
    """A broker with one channel, ordered by queue, and all that was handled."""

    def __init__(self, queues: int, seed: int) -> None:
        self.random = Random(seed)
        self.core = Core(segment_bytes=1 << 16)
        self.core.broker.set_queues("t", queues)
        self.core.channel("t")
        topic = self.core.broker.topics["t"]
        policy = topic.channels["c"].policy.changed({"order": "queue", "lock_ms": 3000})
        topic.configure_channel("c", policy)
        self.queues: list[list[int]] = [[] for _ in range(queues)]
        """The messages of each queue, in order."""
        self.queue_of: list[int] = []
        self.handled: set[int] = set()
        self.wires: list[Wire] = []
        self.lost: list[Wire] = []
        """Those whose connections are lost, and whose handlers may still end."""

    def publish(self) -> None:
        queue = self.random.randrange(len(self.queues))
        bodies = range(len(self.queue_of), len(self.queue_of) + self.random.randrange(1, 7))
        part = self.core.broker.topics["t"].at_queue(queue)
        part.stage([b"%d" % body for body in bodies], 0)
        self.core.broker.commit()
        self.queues[queue] += bodies
        self.queue_of += [queue] * len(bodies)

    def subscribe(self, *, in_order: bool) -> None:
        if len(self.wires) < 3:
            wire = Wire(self.core.broker, in_order=in_order)
            self.wires.append(wire)
            wire.channel.set_ready(wire.consumer, self.random.randrange(1, 20))

    async def handle(self, wire: Wire, how: str) -> None:
        """A handler begins and ends, with what it says written at the end of the loop's turn."""
        if not wire.handlers:
            return
        message_id = self.random.choice(wire.handlers)
        message = wire.bodies[message_id]
        queue = self.queues[self.queue_of[message]]
        earlier = set(queue[: queue.index(message)])
        assert earlier <= self.handled, (message, earlier - self.handled)
        if how == "touch":
            wire.answers.touch(message_id)
        else:
            wire.handlers.remove(message_id)
            if how == "finish":
                self.handled.add(message)
                wire.answers.finish(message_id)
            else:
                wire.answers.requeue(message_id, self.random.choice([0, 1000]))
        if self.random.random() < 0.5:
            await asyncio.sleep(0)

    def leave(self, wire: Wire) -> None:
        self.wires.remove(wire)
        wire.channel.remove_consumer(wire.consumer)
        self._lose(wire)

    def _lose(self, wire: Wire) -> None:
        wire.is_alive = False
        wire.inbox.clear()
        self.lost.append(wire)

    def crash(self) -> None:
        self.core.broker.write_journal()
        self.core.kill()
        for wire in self.wires:
            self._lose(wire)
        self.wires.clear()

    async def step(self, step: str) -> None:
        wires = self.lost if step == "late" else self.wires
        wire = self.random.choice(wires) if wires else None
        if step == "publish":
            self.publish()
        elif step.startswith("subscribe"):
            self.subscribe(in_order=step != "subscribe nsq")
        elif step == "wait":
            self.core.wait(self.random.choice([SECOND_NS, 3 * SECOND_NS, TIMEOUT_NS]))
        elif step == "kill":
            self.crash()
        elif step == "pause":
            for part in self.core.broker.topics["t"].at_queues:
                part.channels["c"].set_paused(not part.channels["c"].paused)
        elif wire is not None:
            if step == "leave":
                self.leave(wire)
            elif step == "receive":
                wire.receive()
            elif step == "send":
                wire.send(together=self.random.random() < 0.5)
            elif step == "ready":
                wire.channel.set_ready(wire.consumer, self.random.randrange(20))
            else:
                await self.handle(wire, "finish" if step == "late" else step)

    async def drain(self) -> None:
        """Let one client handle all that is left."""
        for part in self.core.broker.topics["t"].at_queues:
            part.channels["c"].set_paused(False)
        for wire in list(self.wires):
            self.leave(wire)
        self.subscribe(in_order=True)
        (wire,) = self.wires
        for _ in range(20 * len(self.queue_of) + 100):
            if len(self.handled) == len(self.queue_of):
                return
            if wire.inbox:
                wire.receive()
            elif wire.handlers:
                await self.handle(wire, "finish")
            else:
                await asyncio.sleep(0)
                if wire.outbox:
                    wire.send(together=True)
                else:
                    self.core.wait(SECOND_NS)
        missing = sorted(set(range(len(self.queue_of))) - self.handled)
        raise AssertionError(f"never handled: {missing}")


STEPS = [
    *["publish"] * 2,
    *["receive"] * 5,
    *["send"] * 4,
    *["finish"] * 6,
    *["fail", "late"] * 2,
    *["subscribe", "subscribe nsq", "touch", "leave", "wait", "ready", "kill", "pause"],
]


@given(st.integers(1, 3), st.lists(st.sampled_from(STEPS), max_size=150), st.integers(0, 2**32))
def test_no_message_is_handled_before_an_earlier_one_of_its_queue(
    queues: int, todo: list[str], seed: int
) -> None:
    async def play() -> None:
        model = Model(queues, seed)
        model.subscribe(in_order=True)
        for step in todo:
            await model.step(step)
        await model.drain()

    asyncio.run(play())
