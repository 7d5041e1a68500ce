"""One client that sends very much at once: the others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.crash.wire import Wire, pub
from tests.interop.certificates import Certificates
from tests.polling import until

from martlet.broker.channel.channel import Channel
from martlet.broker.policy import ChannelPolicy
from martlet.broker.topic.topic import Topic
from martlet.options import LogLevel
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy
from martlet.protocol.nsq import v2
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


class Client:
    """A client that sends and receives at once, and hangs up with a reset."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        self.codec: Deflate | None = None
        self.received = b""

    def send(self, data: bytes) -> None:
        if self.codec is not None:
            data = self.codec.encode([data])
        if self.tls is not None:
            self.tls.write(data)
            data = self.outgoing.read()
        self.socket.send(data)

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(50):
            while len(self.received) < size:
                self.received += self._plain(await self._receive())
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    async def _receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)

    def _plain(self, data: bytes) -> bytes:
        if self.tls is not None:
            self.incoming.write(data)
            data = b""
            with suppress(ssl.SSLWantReadError):
                while piece := self.tls.read(1 << 16):
                    data += piece
        return data if self.codec is None else self._inflated(data)

    def _inflated(self, data: bytes) -> bytes:
        assert self.codec is not None
        self.codec.feed(memoryview(data))
        space = memoryview(bytearray(1 << 16))
        return bytes(space[: self.codec.read_into(space)])

    def inflate(self) -> None:
        self.codec = Deflate()
        self.received = self._inflated(self.received)

    async def identify(self, **fields: object) -> None:
        body = json.dumps({"feature_negotiation": True, **fields}).encode()
        self.send(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        head = await self.receive(4)
        await self.receive(*struct.unpack(">I", head))

    async def shake(self, authority: Path) -> None:
        context = ssl.create_default_context(cafile=str(authority))
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.send(self.outgoing.read())
                self.incoming.write(await self._receive())
            else:
                self.socket.send(self.outgoing.read())
                return


@pytest.mark.parametrize("layers", ["", "tls", "deflate", "tls deflate"])
async def test_commands_sent_before_a_client_was_lost_count(
    layers: str, certificates: Certificates
) -> None:
    """It reset its connection, and the next write to it failed before its FINs were read."""
    options = {"tls_cert": str(certificates.certificate), "tls_key": str(certificates.key)}
    async with Broker(**options) as broker:
        client = Client(broker.tcp_address)
        await client.identify(tls_v1="tls" in layers, deflate="deflate" in layers)
        if "tls" in layers:
            await client.shake(certificates.authority)
            await client.receive(len(v2.OK))
        if "deflate" in layers:
            client.inflate()
            await client.receive(len(v2.OK))
        client.send(b"".join([pub("t", b"1") * 3, b"SUB t c\nRDY 3\n"]))
        received = await client.receive(4 * len(v2.OK) + 3 * 35)
        messages = received[4 * len(v2.OK) :]
        ids = [messages[at + 18 : at + 34] for at in range(0, len(messages), 35)]
        (connection,) = broker.server.connections
        channel, _ = connection.subscribed()
        lost = asyncio.Event()
        connection.caller.when_gone[lost] = lost.set
        # The broker is not asked to read in between.
        client.send(b"".join(b"FIN %s\n" % id for id in ids[:2]))
        client.socket.close()
        connection.beat()
        async with asyncio.timeout(50):
            await lost.wait()
        assert channel.depth + channel.in_flight_count == 1


async def test_input_during_a_handshake_is_no_command(certificates: Certificates) -> None:
    options = {"tls_cert": str(certificates.certificate), "tls_key": str(certificates.key)}
    async with asyncio.timeout(50), Broker(**options) as broker:
        client = Client(broker.tcp_address)
        await client.identify(tls_v1=True)
        (connection,) = broker.server.connections
        client.send(pub("t", b"slipped in"))
        client.socket.close()
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
        client = Client(broker.tcp_address)
        await client.identify(snappy=True)
        codec = Snappy()
        good, corrupt, behind = (
            codec.encode([pub(topic, b"x" * 100)]) for topic in ("good", "corrupt", "behind")
        )
        broken = bytearray(corrupt)
        broken[-1] ^= 1
        client.send(good)
        await until(lambda: "good" in broker.server.broker.topics)
        client.send(bytes(broken) + behind)
        await until(lambda: not broker.server.connections)
        client.socket.close()
        assert list(broker.server.broker.topics) == ["good"]


async def test_unread_input_is_handled_up_to_a_limit() -> None:
    async with asyncio.timeout(50), Broker() as broker:
        client = Client(broker.tcp_address)
        await client.identify(deflate=True)
        client.inflate()
        await client.receive(len(v2.OK))
        (connection,) = broker.server.connections
        lost = asyncio.Event()
        connection.caller.when_gone[lost] = lost.set
        count = 4 * MAX_UNREAD_BYTES // len(pub("t", b"x" * 1000))
        client.send(pub("t", b"x" * 1000) * count)
        client.socket.close()
        connection.beat()
        await lost.wait()
        stored = broker.server.broker.topics["t"].message_count
        assert 0 < stored * 1000 <= 2 * MAX_UNREAD_BYTES


async def test_unread_input_takes_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few compressed bytes may be very many commands."""
    monkeypatch.setattr(unread_input, "MAX_CPU_NS", 0)
    async with asyncio.timeout(50), Broker() as broker:
        client = Client(broker.tcp_address)
        await client.identify(deflate=True)
        client.inflate()
        await client.receive(len(v2.OK))
        (connection,) = broker.server.connections
        lost = asyncio.Event()
        connection.caller.when_gone[lost] = lost.set
        client.send(pub("t", b"x") * 100)
        client.socket.close()
        connection.beat()
        await lost.wait()
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
