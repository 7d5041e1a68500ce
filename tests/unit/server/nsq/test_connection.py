"""One client that sends very much at once: the others have their turn meanwhile."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter

import pytest
from tests.crash.wire import Wire, pub
from tests.unit.client.scripted_broker import eventually

from martlet.broker.channel.channel import Channel
from martlet.broker.topic.topic import Topic
from martlet.protocol.nsq import v2
from martlet.server import time_slice as pace
from martlet.testing import Broker

MANY = 100


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_thousands_of_topics_in_one_receive_are_made_few_at_a_time(
    flush: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make a topic takes long: 5,000 at once held up everybody for seconds."""
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


async def test_what_a_client_sent_before_it_was_lost_counts() -> None:
    """It reset its connection, and the next write to it failed before its FINs were read."""
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        host, _, port = broker.tcp_address.rpartition(":")
        client = socket.create_connection((host, int(port)))
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        commands = [b"  V2", pub("t", b"1") * 3, b"SUB t c\nRDY 3\n"]
        await loop.sock_sendall(client, b"".join(commands))
        received = b""
        async with asyncio.timeout(10):
            while len(received) < 4 * len(ok := v2.OK) + 3 * 35:
                received += await loop.sock_recv(client, 1 << 16)
        messages = received[4 * len(ok) :]
        ids = [messages[at + 18 : at + 34] for at in range(0, len(messages), 35)]
        (connection,) = broker.server.connections
        channel, _ = connection.subscription()
        lost = asyncio.Event()
        connection.when_gone[lost] = lost.set
        # The broker is not asked to read in between.
        client.send(b"".join(b"FIN %s\n" % id for id in ids[:2]))
        client.close()
        connection.beat()
        async with asyncio.timeout(10):
            await lost.wait()
        assert channel.depth + channel.in_flight_count == 1


async def test_a_connection_is_counted_no_longer_though_its_channel_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Channel, consumer: object) -> None:
        raise AssertionError("on purpose")

    monkeypatch.setattr(Channel, "remove_consumer", broken)
    async with asyncio.timeout(10), Broker() as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        (connection,) = broker.server.connections
        broker.server.commits.stage(connection)
        wire.close()
        await eventually(lambda: not broker.server.connections)
    assert "on purpose" in caplog.text
