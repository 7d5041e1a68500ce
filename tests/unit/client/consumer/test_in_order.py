"""Messages of a queue are handed on one after the other, and none behind one that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.client.scripted_broker import message_frame

from martlet.client.consumer.buffer import BufferedRun
from martlet.client.consumer.in_order import InOrderAcks
from martlet.client.transport.connection import Connection
from martlet.protocol.nsq.message_run import MessageRun

BASE = (1 << 64) - 5
"""Ids of a queue go round the end of 64 bits, so that their first bits differ."""


class _Connection:
    """A connection that writes down what is sent."""

    def __init__(self, base: int | None = BASE) -> None:
        self.features = SimpleNamespace(
            message_timeout_ms=5000, max_message_timeout_ms=60_000, extensions=4
        )
        self.id_base = base
        self.max_attempts = 0
        self.is_alive = True
        self.sent: list[bytes] = []
        self.on_recalled: Any = None

    def write(self, data: bytes) -> None:
        self.sent += data.splitlines()

    def unanswered(self, method: str, **fields: Any) -> bytes:
        return b"CALL " + method.encode() + b"\n"


def _id(queue: int, offset: int) -> bytes:
    return b"%016x" % ((BASE + (queue << 54) + offset) & (1 << 64) - 1)


class _Queues:
    """The acknowledgements of a connection, and what they hand on."""

    def __init__(self, base: int | None = BASE) -> None:
        self.connection = _Connection(base)
        self.got: list[tuple[int, int]] = []
        self.answers = InOrderAcks(cast(Connection, self.connection), self._take)

    def _take(self, delivery: BufferedRun) -> None:
        for _, _, message_id, body in delivery.run.fields():
            queue, offset = map(int, body.split())
            assert message_id == _id(queue, offset)
            self.got.append((queue, offset))

    def arrive(self, *messages: tuple[int, int]) -> None:
        frames = [
            message_frame(b"%d %d" % message, number=int(_id(*message), 16)) for message in messages
        ]
        ends = np.cumsum([len(frame) for frame in frames]).tolist()
        run = MessageRun(b"".join(frames), ends)
        self.answers.received += run.count
        self.answers.arrived(run)


def _ids(*messages: tuple[int, int]) -> Any:
    return np.array([_id(*message) for message in messages], "V16")


async def test_each_queue_has_one_message_out_and_the_next_when_it_is_finished() -> None:
    queues = _Queues()
    queues.arrive((0, 1), (0, 2), (0, 6), (1, 1), (1, 2))
    assert queues.got == [(0, 1), (1, 1)]
    queues.answers.finish(_id(0, 1))
    queues.answers.finish_array(_ids((1, 1)))
    assert queues.got[2:] == [(0, 2), (1, 2)]
    queues.arrive((0, 7))
    queues.answers.finish(_id(0, 2))
    queues.answers.finish(_id(0, 6))
    assert queues.got[4:] == [(0, 6), (0, 7)]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        ("requeue", (0,)),
        ("later", ("error",)),
        ("reject", ("rejected", "")),
        ("give_back_one", ()),
        ("give_back", ()),
        ("requeue_array", (0,)),
    ],
)
async def test_nothing_behind_a_failed_one_begins_until_the_broker_has_taken_it_back(
    answer: str, fields: Sequence[object]
) -> None:
    queues = _Queues()
    queues.arrive((0, 1), (0, 2), (0, 3), (1, 1))
    queues.answers.finish(_id(0, 1))
    message_id = _ids((0, 2)) if answer in ("give_back", "requeue_array") else _id(0, 2)
    backoff = {} if answer.startswith(("give", "reject")) else {"backoff": False}
    getattr(queues.answers, answer)(message_id, *fields, **backoff)
    queues.arrive((0, 4), (1, 2))
    await asyncio.sleep(0)
    # The finish before is written first, or the broker would take back that message too.
    assert queues.connection.sent[0] == b"FIN " + _id(0, 1)
    assert len(queues.connection.sent) == 2
    queues.answers.finish(_id(1, 1))
    assert queues.got == [(0, 1), (1, 1), (0, 2), (1, 2)]
    queues.connection.on_recalled(0)
    queues.arrive((0, 2), (0, 3))
    assert queues.got[4:] == [(0, 2)]
    await asyncio.sleep(0)
    assert queues.answers.in_flight == 3  # Of queue 1 one.


async def test_a_late_finish_of_a_recalled_message_lets_nothing_begin() -> None:
    queues = _Queues()
    queues.arrive((0, 1), (0, 2))
    queues.connection.on_recalled(0)
    queues.arrive((0, 1), (0, 2))
    queues.answers.finish(_id(0, 1))
    assert queues.got == [(0, 1), (0, 1), (0, 2)]
    queues.answers.finish(_id(0, 1))
    assert len(queues.got) == 3


async def test_nothing_begins_once_the_connection_is_lost() -> None:
    queues = _Queues()
    queues.arrive((0, 1), (0, 2))
    queues.connection.is_alive = False
    queues.answers.finish(_id(0, 1))
    assert queues.got == [(0, 1)]


async def test_all_is_handed_on_where_the_broker_sends_one_at_a_time() -> None:
    queues = _Queues(None)
    queues.arrive((0, 1), (3, 1))
    assert queues.got == [(0, 1), (3, 1)]
