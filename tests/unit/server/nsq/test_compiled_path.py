"""The compiled path reads its connections' sockets, and leaves all else to the loop."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash.wire import pub
from tests.property.native.twins import Twin, TwinClient

from martlet.broker.channel.delivery import Delivery
from martlet.broker.queue.queue_log import QueueLog
from martlet.log.storage import DiskSegment
from martlet.native import ELSEWHERE, FED, SERVED, native
from martlet.server.flusher import QUICK_S
from martlet.server.nsq.connection import ClientConnection

pytestmark = pytest.mark.skipif(native is None, reason="the hot path is not compiled here")

PUB = b"PUB a\n\0\0\0\1x"
OK = b"\0\0\0\6\0\0\0\0OK"


@contextmanager
def compiled_twin(folder: Path, flush: str) -> Iterator[Twin]:
    twin = Twin(folder, compiled=True, segment_bytes=1 << 16, flush=flush)
    for topic in "ab":
        twin.broker.topic(topic)
    yield twin
    twin.close()


@pytest.fixture
async def twin(tmp_path: Path) -> AsyncIterator[Twin]:
    with compiled_twin(tmp_path, "async") as made:
        yield made


@pytest.fixture
async def flushing(tmp_path: Path) -> AsyncIterator[Twin]:
    """A broker with ``--flush=sync``."""
    with compiled_twin(tmp_path, "sync") as made:
        yield made


@pytest.fixture
async def errors() -> list[type]:
    """The types of the errors that the loop has logged."""
    logged: list[type] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(type(context["exception"])))
    return logged


def greeted(twin: Twin) -> TwinClient:
    client = TwinClient(twin)
    client.send(b"  V2")
    client.send(PUB)  # Its line is known from now on.
    client.received()
    return client


def serve(twin: Twin, *clients: TwinClient, others: tuple[socket.socket, ...] = ()) -> int:
    serve = twin.server.commits.ticks.serve
    assert serve is not None
    watched = [*(client.transport.server for client in clients), *others]
    for sock in watched:
        twin.epoll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
    try:
        return serve(0, 10**9)
    finally:
        for sock in watched:
            twin.epoll.unregister(sock.fileno())


async def test_a_lone_pub_is_served(twin: Twin) -> None:
    client = greeted(twin)
    client.transport.client.send(PUB)
    assert serve(twin, client) == SERVED
    assert client.received() == OK
    assert serve(twin, client) == 0


async def test_other_input_is_handed_over(twin: Twin) -> None:
    client = greeted(twin)
    client.transport.client.send(b"NOP\n")
    assert serve(twin, client) == FED
    client.transport.client.send(PUB[:7])
    assert serve(twin, client) == FED
    client.transport.client.send(PUB[7:])
    assert serve(twin, client) == FED
    twin.server.commits.end_tick()
    assert client.received() == OK


async def test_what_is_not_of_the_lane_is_left(twin: Twin) -> None:
    client, stranger = greeted(twin), socket.socketpair()
    stranger[1].send(b"x")
    client.transport.client.send(PUB)
    assert serve(twin, client, others=stranger[:1]) == ELSEWHERE | SERVED
    assert stranger[0].recv(9) == b"x"
    for owner, name in ((client.connection.input, "waits"), (client.connection, "brief")):
        served = getattr(owner, name)
        setattr(owner, name, not served)
        client.transport.client.send(PUB)
        assert serve(twin, client) == ELSEWHERE
        setattr(owner, name, served)
        assert serve(twin, client) & (FED | SERVED)
    client.transport.client.shutdown(socket.SHUT_WR)
    assert serve(twin, client) == ELSEWHERE
    assert not client.transport.closed, "the loop sees the end, and closes"
    for sock in stranger:
        sock.close()


async def test_a_fin_makes_room_for_a_pub_that_has_come_before_it(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that finishes and publishes had each message delivered by Python."""
    publisher, consumer = greeted(twin), greeted(twin)
    consumer.send(b"SUB a c\nRDY 1\n")
    twin.server.commits.end_tick()
    message_id = consumer.received()[-17:-1]
    consumer.send(b"FIN " + message_id + b"\n")  # One more is in the topic.
    message_id = consumer.received()[-17:-1]
    monkeypatch.setattr(Delivery, "pump", lambda _self: pytest.fail("Python delivers"))
    for _ in range(3):
        publisher.transport.client.send(PUB)
        consumer.transport.client.send(b"FIN " + message_id + b"\n")
        assert serve(twin, publisher, consumer) == SERVED
        assert publisher.received() == OK
        message = consumer.received()
        assert message.endswith(b"x"), "it waits for another turn"
        message_id = message[-17:-1]
    monkeypatch.undo()


async def test_an_error_ends_its_own_connection_only(
    twin: Twin, errors: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = greeted(twin), greeted(twin)
    monkeypatch.setattr(type(bad.connection.decoder), "decode", lambda *_: 1 / 0)
    bad.transport.client.send(b"NOP\n")
    good.transport.client.send(PUB)
    assert serve(twin, bad, good) == FED | SERVED
    assert errors == [ZeroDivisionError]
    assert bad.transport.closed
    assert not good.transport.closed
    assert good.received() == OK


async def test_a_refused_write_is_pythons(twin: Twin) -> None:
    client = greeted(twin)
    twin.broker.log.refuse_writes("for a test")
    client.transport.client.send(PUB)
    assert serve(twin, client) == FED
    twin.server.commits.end_tick()
    assert b"E_PUB_FAILED PUB failed for a test" in client.received()


async def test_pubs_that_come_together_are_flushed_once_before_they_are_answered(
    flushing: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [greeted(flushing) for _ in range(4)]
    clients[0].send(pub("b", b"x"))
    clients[0].received()
    answered_early: list[bytes] = []
    flush = DiskSegment.flush

    def look(segment: DiskSegment) -> None:
        answered_early.append(b"".join(client.received() for client in clients))
        flush(segment)

    monkeypatch.setattr(DiskSegment, "flush", look)
    for client, topic in zip(clients, "baaa", strict=True):
        client.transport.client.send(pub(topic, b"x"))
    assert serve(flushing, *clients) == SERVED
    assert answered_early == [b""]
    assert [client.received() for client in clients] == [OK] * len(clients)
    log = flushing.broker.log
    assert log.durable_position == log.position


async def test_pubs_whose_flush_fails_are_refused_and_end_their_connections(
    flushing: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [greeted(flushing) for _ in range(3)]
    monkeypatch.setattr(DiskSegment, "flush", lambda _: fail_with(errno.EIO))
    for client in clients:
        client.transport.client.send(PUB)
    assert serve(flushing, *clients) == SERVED | FED
    flushing.server.commits.end_tick()
    for client in clients:
        answer = client.received()
        assert b"E_PUB_FAILED PUB failed flushing the log failed" in answer
        assert b"OK" not in answer.replace(b"E_BROKER", b"")
        assert client.transport.closed


async def test_an_unexpected_error_of_a_flush_ends_the_connections_of_its_pubs(
    flushing: Twin, errors: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their clients had waited without end for an answer."""
    clients = [greeted(flushing) for _ in range(3)]
    monkeypatch.setattr(DiskSegment, "flush", lambda _: 1 // 0)
    for client in clients:
        client.transport.client.send(PUB)
    assert serve(flushing, *clients) == FED
    assert errors == [ZeroDivisionError] * len(clients)
    for client in clients:
        assert client.received() == b""
        assert client.transport.closed


async def test_pubs_stored_while_a_flush_begins_in_the_thread_wait_for_the_next(
    flushing: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop had waited for the thread."""
    publisher, other = greeted(flushing), greeted(flushing)
    flusher = flushing.server.flusher
    monkeypatch.setattr(
        ClientConnection, "buffer_updated", lambda *_: setattr(flusher, "flushing", True)
    )
    publisher.transport.client.send(PUB)
    other.transport.client.send(b"NOP\n")
    assert serve(flushing, publisher, other) == SERVED | FED
    assert publisher.received() == b""
    flusher.flushing = False
    flushing.server.commits.end_tick()
    assert publisher.received() == OK
    assert publisher.connection.message_counters == {"a": 2}


def fail_with(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("what", ["a slow disk", "a flush in the thread", "a checkpoint"])
async def test_while_flushes_take_long_the_loop_serves(flushing: Twin, what: str) -> None:
    client, flusher = greeted(flushing), flushing.server.flusher
    changed = {
        "a slow disk": ("_recent_s", 10 * QUICK_S),
        "a flush in the thread": ("flushing", True),
        "a checkpoint": ("_checkpointing", True),
    }
    name, value = changed[what]
    before = getattr(flusher, name)
    setattr(flusher, name, value)
    client.transport.client.send(PUB)
    assert serve(flushing, client) == ELSEWHERE
    setattr(flusher, name, before)
    assert serve(flushing, client) == SERVED
    assert client.received() == OK


@pytest.mark.parametrize("sizes", [(200,) * 9, (1, 50, 3999, 7, 8, 9, 2, 2)], ids=str)
async def test_pubs_that_come_together_are_the_record_that_python_writes(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    compiled, python = (
        Twin(tmp_path / name, compiled=name == "compiled", segment_bytes=1 << 16)
        for name in ("compiled", "python")
    )
    bodies = [bytes([65 + number]) * size for number, size in enumerate(sizes)]
    for each in (compiled, python):
        each.broker.topic("a").channel("c")
    clients = [greeted(compiled) for _ in bodies]
    for _ in bodies:
        python.broker.append(python.broker.topic("a"), b"x")
    for client, body in zip(clients, bodies, strict=True):
        client.transport.client.send(pub("a", body))
    assert serve(compiled, *clients) == SERVED
    assert [client.received() for client in clients] == [OK] * len(clients)
    topic = python.broker.topic("a")
    topic.stage(bodies, 0)
    python.broker.commit()
    assert compiled.state() == python.state()
    assert topic.queue.index.rows(0, topic.queue.index.end_row)[-1].count == len(sizes)
    for client in clients:
        assert client.connection.message_counters == {"a": 2}
    compiled.close()
    python.close()


async def test_pubs_that_come_together_are_stored_once_over_ends_of_segments(twin: Twin) -> None:
    """A batch that does not fit is stored by Python, and each topic has a record of its own."""
    twin.broker.topic("b").channel("c")
    consumer, publishers = greeted(twin), [greeted(twin) for _ in range(12)]
    consumer.send(b"SUB b c\nRDY 2500\n")
    for client in publishers:
        client.send(pub("b", b"x"))
        client.received()
    sent: dict[str, list[bytes]] = {"a": [], "b": []}
    got: list[bytes] = []
    done = 0
    for turn in range(60):
        for number, client in enumerate(publishers):
            topic, body = "ab"[number % 3 == 0], b"<%d %d>" % (turn, number)
            sent[topic].append(body.ljust(number * 100, b"."))
            client.transport.client.send(pub(topic, sent[topic][-1]))
        done |= serve(twin, *publishers)
        twin.server.commits.end_tick()
        assert [client.received() for client in publishers] == [OK] * len(publishers)
        got += re.findall(rb"<%d \d+>\.*" % turn, consumer.received())
    assert done & FED, "no segment ended"
    assert sorted(got) == sorted(sent["b"])
    for name, bodies in sent.items():
        queue = twin.broker.topic(name).queue
        rows = queue.index.rows(0, queue.index.end_row)
        records = b"".join(twin.broker.log.view(row.position, row.length) or b"" for row in rows)
        assert all(records.count(body) == 1 for body in bodies)
        assert len(rows) < queue.end_offset / 2, "each has a record of its own"


async def test_an_error_while_pubs_are_stored_ends_the_connections_that_sent_them(
    twin: Twin, errors: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = [greeted(twin) for _ in range(3)], greeted(twin)
    good.send(pub("b", b"x"))
    good.received()
    appended = QueueLog.appended

    def fail_for_a(queue: QueueLog, *arguments: int) -> None:
        if queue is twin.broker.topic("a").queue:
            raise ZeroDivisionError
        appended(queue, *arguments)

    monkeypatch.setattr(QueueLog, "appended", fail_for_a)
    for client in bad:
        client.transport.client.send(PUB)
    good.transport.client.send(pub("b", b"x"))
    assert serve(twin, *bad, good) == FED | SERVED
    assert errors == [ZeroDivisionError] * 3
    assert all(client.transport.closed for client in bad)
    assert good.received() == OK


@pytest.mark.parametrize("has_consumers", [False, True], ids=["alone", "with consumers"])
async def test_pubs_to_as_many_topics_as_sockets_are_served_at_once(
    twin: Twin, has_consumers: bool
) -> None:
    clients, consumers = [greeted(twin) for _ in range(64)], []
    for number, client in enumerate(clients):
        if has_consumers:
            consumers.append(greeted(twin))
            consumers[-1].send(b"SUB t%d c\nRDY 2500\n" % number)
        client.send(pub(f"t{number}", b"x"))
        client.received()
        client.transport.client.send(pub(f"t{number}", b"%d" % number))
    assert serve(twin, *clients) == SERVED
    assert [client.received() for client in clients] == [OK] * len(clients)
    assert [twin.broker.topic(f"t{number}").queue.end_offset for number in range(64)] == [2] * 64
    for number, consumer in enumerate(consumers):
        assert consumer.received().endswith(b"%d" % number)
