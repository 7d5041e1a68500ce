"""The lane reads its connections' sockets, and leaves all else to the loop."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.property.native_twins import Twin, TwinClient

from martlet.broker.channel.delivery import Delivery
from martlet.native import ELSEWHERE, FED, SERVED, native

pytestmark = pytest.mark.skipif(native is None, reason="the hot path is not compiled here")

PUB = b"PUB a\n\0\0\0\1x"


@pytest.fixture
async def twin(tmp_path: Path) -> AsyncIterator[Twin]:
    made = Twin(tmp_path, compiled=True, segment_bytes=1 << 16)
    made.broker.topic("a")
    yield made
    made.close()


def greeted(twin: Twin) -> TwinClient:
    client = TwinClient(twin)
    client.send(b"  V2")
    client.send(PUB)  # Its line is known from now on.
    client.received()
    return client


def serve(twin: Twin, *clients: TwinClient, others: tuple[socket.socket, ...] = ()) -> int:
    lane = twin.server.commits.ticks.serve
    assert lane is not None
    watched = [*(client.transport.server for client in clients), *others]
    for sock in watched:
        twin.epoll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
    try:
        return lane(0)
    finally:
        for sock in watched:
            twin.epoll.unregister(sock.fileno())


async def test_a_lone_pub_is_served(twin: Twin) -> None:
    client = greeted(twin)
    client.transport.client.send(PUB)
    assert serve(twin, client) == SERVED
    assert client.received() == b"\0\0\0\6\0\0\0\0OK"
    assert serve(twin, client) == 0
    client.leave()


async def test_other_input_is_handed_over(twin: Twin) -> None:
    client = greeted(twin)
    client.transport.client.send(b"NOP\n")
    assert serve(twin, client) == FED
    client.transport.client.send(PUB[:7])
    assert serve(twin, client) == FED
    client.transport.client.send(PUB[7:])
    assert serve(twin, client) == FED
    twin.server.commits.end_tick()
    assert client.received() == b"\0\0\0\6\0\0\0\0OK"
    client.leave()


async def test_what_is_not_of_the_lane_is_left(twin: Twin) -> None:
    client, stranger = greeted(twin), socket.socketpair()
    stranger[1].send(b"x")
    client.transport.client.send(PUB)
    assert serve(twin, client, others=stranger[:1]) == ELSEWHERE | SERVED
    assert stranger[0].recv(9) == b"x"
    for held_up in ("_waits", "_closing"):
        setattr(client.connection, held_up, True)
        client.transport.client.send(PUB)
        assert serve(twin, client) == ELSEWHERE
        setattr(client.connection, held_up, False)
        assert serve(twin, client) & (FED | SERVED)
    client.transport.client.shutdown(socket.SHUT_WR)
    assert serve(twin, client) == ELSEWHERE
    assert not client.transport.closed, "the loop sees the end, and closes"
    client.leave()
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
        assert publisher.received() == b"\0\0\0\6\0\0\0\0OK"
        message = consumer.received()
        assert message.endswith(b"x"), "it waits for another turn"
        message_id = message[-17:-1]
    monkeypatch.undo()
    publisher.leave()
    consumer.leave()


async def test_an_error_ends_its_own_connection_only(
    twin: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = greeted(twin), greeted(twin)
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    monkeypatch.setattr(type(bad.connection.decoder), "decode", lambda *_: 1 / 0)
    bad.transport.client.send(b"NOP\n")
    good.transport.client.send(PUB)
    assert serve(twin, bad, good) == FED | SERVED
    assert [type(error["exception"]) for error in errors] == [ZeroDivisionError]
    assert bad.transport.closed
    assert not good.transport.closed
    bad.leave()
    assert good.received() == b"\0\0\0\6\0\0\0\0OK"
    good.leave()


async def test_a_refused_write_is_pythons(twin: Twin) -> None:
    client = greeted(twin)
    twin.broker.log.refuse_writes("for a test")
    client.transport.client.send(PUB)
    assert serve(twin, client) == FED
    twin.server.commits.end_tick()
    assert b"E_PUB_FAILED PUB failed for a test" in client.received()
    client.leave()
