"""One client that sends very much at once: the others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.crash.wire import Wire, message, pub
from tests.interop.certificates import Certificates
from tests.interop.server.conftest import tls_of, trusting
from tests.interop.upgraded_wire import UpgradedWire
from tests.polling import until

from martlet.broker.channel.channel import Channel
from martlet.broker.policy import ChannelPolicy
from martlet.broker.topic.topic import Topic
from martlet.options import LogLevel
from martlet.server import clock as pace
from martlet.server.nsq import connection, unread_input
from martlet.server.nsq.clients import Clients
from martlet.server.nsq.unread_input import MAX_UNREAD_BYTES
from martlet.testing import Broker

MANY = 100


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_thousands_of_topics_in_one_receive_are_made_few_at_a_time(
    flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making a topic takes long: 5,000 at once held up all clients for seconds."""
    monkeypatch.setattr(pace, "SLICE_NS", 0)
    async with Broker(flush=flush) as broker:
        wire = await Wire.open(broker.tcp_address)
        wire.send(b"".join(pub(f"t{number}", b"x") for number in range(MANY)))
        # What a command waits for comes between the slices too.
        wire.send(b"SUB t0 c\nRDY 1\n" + b"FIN 0000000000000000\n" * MANY + b"NOP\nCLS\n")
        rounds = 0

        async def count() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        made: list[int] = []

        def note(topic: Topic) -> None:
            made.append(rounds)

        broker.server.broker.on_topic = note
        for _ in range(MANY + 1):
            await wire.ok()
        assert (await wire.message()).body == b"x"
        for _ in range(MANY):
            assert (await wire.answer()).data.startswith(b"E_FIN_FAILED")
        assert (await wire.answer()).data == b"CLOSE_WAIT"
        counting.cancel()
        assert len(made) == MANY
        assert max(Counter(made).values()) <= 2 * 4
        wire.close()


async def resetting(
    broker: Broker, context: ssl.SSLContext | None = None, **features: bool
) -> UpgradedWire:
    """A client that negotiates features, and hangs up with a reset."""

    def connect() -> UpgradedWire:
        wire = UpgradedWire(broker.tcp_address)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.upgrade(wire.identify(**features), context)
        return wire

    return await asyncio.to_thread(connect)


async def lose(broker: Broker, wire: UpgradedWire, data: bytes) -> None:
    """Have the only client send this and be lost, which a write shows before this is read."""
    (connection,) = broker.server.connections
    lost = asyncio.Event()
    connection.caller.when_gone[lost] = lost.set
    wire.send(data)
    wire.socket.close()
    connection.beat()
    async with asyncio.timeout(50):
        await lost.wait()


@pytest.mark.parametrize("layers", ["", "tls", "deflate", "tls deflate"])
async def test_commands_sent_before_a_client_was_lost_count(
    layers: str, certificates: Certificates
) -> None:
    """It reset its connection, and the next write to it failed before its FINs were read."""
    context = trusting(certificates)
    async with Broker(**tls_of(certificates)) as broker:
        wire = await resetting(broker, context, tls_v1="tls" in layers, deflate="deflate" in layers)
        wire.send(pub("t", b"1") * 3 + b"SUB t c\nRDY 3\n")
        frames = await asyncio.to_thread(lambda: [wire.frame() for _ in range(7)])
        (connection,) = broker.server.connections
        channel, _ = connection.subscribed()
        finishes = [b"FIN %s\n" % message(frame).id for frame in frames[4:6]]
        await lose(broker, wire, b"".join(finishes))
        assert channel.depth + channel.in_flight_count == 1


async def test_input_during_a_handshake_is_no_command(certificates: Certificates) -> None:
    async with asyncio.timeout(50), Broker(**tls_of(certificates)) as broker:
        wire = await asyncio.to_thread(UpgradedWire, broker.tcp_address)
        await asyncio.to_thread(wire.identify, tls_v1=True)
        (connection,) = broker.server.connections
        wire.send(pub("t", b"slipped in"))
        wire.socket.close()
        connection.beat()
        await until(lambda: not broker.server.connections)
        assert not broker.server.broker.topics


async def test_a_connection_is_counted_no_longer_though_its_channel_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Channel, consumer: object) -> None:
        raise AssertionError("on purpose")

    monkeypatch.setattr(Channel, "remove_consumer", broken)
    async with asyncio.timeout(50), Broker() as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        (connection,) = broker.server.connections
        broker.server.commits.stage(connection.replies)
        wire.close()
        await until(lambda: not broker.server.connections)
    assert "on purpose" in caplog.text


async def test_nothing_behind_a_corrupt_chunk_is_a_command() -> None:
    async with asyncio.timeout(50), Broker() as broker:
        wire = await resetting(broker, snappy=True)
        wire.send(pub("good", b"x" * 100))
        await until(lambda: "good" in broker.server.broker.topics)
        corrupt = bytearray(wire.codec.encode(pub("corrupt", b"x" * 100)))
        corrupt[-1] ^= 1
        wire.socket.sendall(corrupt + wire.codec.encode(pub("behind", b"x")))
        await until(lambda: not broker.server.connections)
        wire.socket.close()
        assert list(broker.server.broker.topics) == ["good"]


async def test_unread_input_is_handled_up_to_a_limit() -> None:
    async with Broker() as broker:
        wire = await resetting(broker, deflate=True)
        count = 4 * MAX_UNREAD_BYTES // len(pub("t", b"x" * 1000))
        await lose(broker, wire, pub("t", b"x" * 1000) * count)
        stored = broker.server.broker.topics["t"].message_count
        assert 0 < stored * 1000 <= 2 * MAX_UNREAD_BYTES


async def test_unread_input_takes_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few compressed bytes may be very many commands."""
    monkeypatch.setattr(unread_input, "MAX_CPU_NS", 0)
    async with Broker() as broker:
        wire = await resetting(broker, deflate=True)
        await lose(broker, wire, pub("t", b"x") * 100)
        assert "t" not in broker.server.broker.topics


async def test_a_standby_that_ends_a_silent_splice_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A standby does so at each hand-over, and the primary logged an error."""
    caplog.set_level("INFO")
    loop = asyncio.get_running_loop()
    async with Broker(log_level=LogLevel.INFO) as broker:
        ours, theirs = socket.socketpair()
        await loop.connect_accepted_socket(lambda: broker.server.connect("192.0.2.7:80"), theirs)
        ours.close()
        await until(lambda: not broker.server.connections)
        direct = await Wire.open(broker.tcp_address, magic=b"")
        direct.close()
        await until(lambda: "failed to read protocol version - EOF" in caplog.text)
    spliced, _, later = caplog.text.partition("TCP: new client(127.0.0.1:")
    assert "CLIENT(192.0.2.7:80): the standby that it is at no longer splices it" in spliced
    assert "ERROR" not in spliced
    assert later.count("failed to read protocol version") == 1


class CountingTransport:
    """A transport that counts the writes of several buffers."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def writelines(self, buffers: list[bytes]) -> None:
        self.written.append(sum(map(len, buffers)))
        self._transport.writelines(buffers)


@pytest.mark.parametrize(("body_bytes", "writes"), [(200, 1), (40_000, 4)])
async def test_a_run_of_fins_sends_the_messages_of_all_queues_at_once(
    body_bytes: int, writes: int
) -> None:
    """Each queue wrote its own, which took most of the time of an ordered channel."""
    async with Broker() as broker:
        topic = broker.server.broker.set_queues("t", 8)
        topic.channel("c")
        topic.configure_channel("c", ChannelPolicy(order="queue"))
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        for _ in range(2):
            for _queue in range(8):
                wire.send(pub("t", b"x" * body_bytes))
                await wire.ok()
        wire.send(b"RDY 8\n")
        got = [await wire.message() for _ in range(8)]
        (connection,) = broker.server.connections
        counting = CountingTransport(connection.output.transport)
        connection.output.transport = cast(asyncio.Transport, counting)
        wire.send(b"".join(b"FIN %s\n" % message.id for message in got))
        after = [await wire.message() for _ in range(8)]
        assert {message.id for message in after}.isdisjoint(message.id for message in got)
        assert len(counting.written) == writes
        assert sum(counting.written) == 8 * (body_bytes + 34)
        wire.close()


@pytest.mark.parametrize("begun", [b"", b"  V"])
async def test_a_client_that_does_not_say_its_protocol_is_not_kept(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GREETING_S", 0.01)
    async with Broker() as broker:
        wire = await Wire.open(broker.tcp_address, magic=begun)
        with suppress(ConnectionResetError):
            await wire.ended()
        wire.close()
        await until(lambda: not broker.server.connections)


async def test_a_client_that_has_said_its_protocol_has_no_such_limit() -> None:
    async with Broker() as broker:
        wire = await Wire.open(broker.tcp_address)
        wire.send(pub("t", b"x"))
        await wire.ok()
        (client,) = broker.server.connections
        assert client._greeting.cancelled()
        wire.close()


async def test_a_connection_that_begins_while_the_broker_stops_is_ended() -> None:
    """The stop would wait for its end."""
    clients = Clients(0, Mock(), Mock())
    first, late = Mock(), Mock()
    late.abort = partial(clients.closed, late, None)

    def abort_first() -> None:
        clients.opened(late)
        asyncio.get_running_loop().call_soon(clients.closed, first, None)

    first.abort = abort_first
    clients.opened(first)
    async with asyncio.timeout(60):
        await clients.stop()
    assert not clients.connections
