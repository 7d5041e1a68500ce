"""Limits of compressed and encrypted connections, on both sides."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.crash.wire import MESSAGE, message, pub, until
from tests.interop.certificates import Certificates
from tests.interop.server.nsq.test_upgrade import COMPRESSIONS, trusting
from tests.interop.upgraded_wire import OK, UpgradedWire, identify

from martlet.server.nsq import upgrade
from martlet.testing import Broker, BrokerProcess

pytestmark = pytest.mark.interop

ANSWER_S = 25.0
"""How long others may wait while a bomb goes off, on a machine that has other work too."""


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[BrokerProcess]:
    flags = [*certificates.flags, "--https-address="]
    with BrokerProcess(None, *flags) as process:
        yield process


def bomb(command: bytes, size_bytes: int) -> bytes:
    """A thousandth of what it becomes."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    piece = command * (1 << 16)
    pieces = [compressor.compress(piece) for _ in range(size_bytes // len(piece))]
    return b"".join(pieces) + compressor.flush(zlib.Z_SYNC_FLUSH)


def test_a_bomb_takes_no_memory_and_others_have_their_turn(broker: BrokerProcess) -> None:
    data = bomb(b"NOP\n", 4 << 20)
    process = psutil.Process(broker.process_id)
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as other:
        wire.upgrade(wire.identify(deflate=True))
        other.send(pub("bombed", b"one"))
        assert other.frame() == OK
        before_bytes = process.memory_info().rss
        sender = threading.Thread(target=wire.socket.sendall, args=(data,))
        sender.start()
        slowest_s, max_bytes = 0.0, 0
        done = False
        while not done:
            done = not sender.is_alive()
            started_s = time.monotonic()
            other.send(pub("bombed", b"two"))
            assert other.frame() == OK
            slowest_s = max(slowest_s, time.monotonic() - started_s)
            max_bytes = max(max_bytes, process.memory_info().rss)
        sender.join()
        wire.send(pub("bombed", b"behind it"))
        assert wire.frame() == OK
    assert slowest_s < ANSWER_S
    assert max_bytes - before_bytes < 32 << 20


def test_a_bomb_in_a_body_ends_at_the_limit_of_a_body(broker: BrokerProcess) -> None:
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(deflate=True))
        wire.send(b"PUB bombed\n\x7f\xff\xff\xff")
        frame = wire.frame()
    assert frame.data == b"E_BAD_MESSAGE PUB message too big 2147483647 > 1048576"


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_lone_message_is_not_held_back(
    broker: BrokerProcess, certificates: Certificates, tls: bool, compression: dict[str, object]
) -> None:
    """Though the client's wishes would let nsqd gather for 30 seconds."""
    topic = f"lone-{tls}-{'-'.join(compression)}"
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as producer:
        answer = wire.identify(
            tls_v1=tls, output_buffer_timeout=30_000, output_buffer_size=65_536, **compression
        )
        assert (answer["output_buffer_timeout"], answer["output_buffer_size"]) == (30_000, 65_536)
        wire.upgrade(answer, trusting(certificates))
        wire.send(f"SUB {topic} c\nRDY 100\n".encode())
        assert wire.frame() == OK
        producer.send(pub(topic, b"alone"))
        started_s = time.monotonic()
        assert message(wire.frame()).body == b"alone"
    assert time.monotonic() - started_s < ANSWER_S


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_client_that_sends_no_more_gets_its_answers(
    broker: BrokerProcess, certificates: Certificates, tls: bool, compression: dict[str, object]
) -> None:
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=tls, **compression), trusting(certificates))
        wire.send(pub("half", b"one") * 3)
        # Of the socket alone: Python's TLS would close both directions.
        socket.socket.shutdown(wire.socket, socket.SHUT_WR)
        assert [wire.frame() for _ in range(3)] == [OK] * 3
        assert wire.ends()


def test_a_client_that_breaks_off_in_the_handshake_harms_no_other(
    broker: BrokerProcess, certificates: Certificates
) -> None:
    for early in (b"", b"\x16\x03\x01\x02\x00\x01", os.urandom(500)):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.send(identify(tls_v1=True))
            wire.socket.sendall(early)
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(tls_v1=True), trusting(certificates))
        wire.send(pub("after", b"one"))
        assert wire.frame() == OK


async def test_a_handshake_has_its_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upgrade, "HANDSHAKE_S", 0.2)
    async with Broker(
        tmp_path,
        tls_cert=str(certificates.certificate),
        tls_key=str(certificates.key),
        https_address="",
    ) as broker:

        def wait_in_vain() -> str:
            with UpgradedWire(broker.tcp_address) as wire:
                assert wire.identify(tls_v1=True)["tls_v1"]
                return wire.refusal()

        said = await asyncio.to_thread(wait_in_vain)
        assert said == "E_IDENTIFY_FAILED IDENTIFY failed no TLS handshake within 0.2 s"

        async def gone() -> bool:
            return not broker.server.connections

        await until(gone)


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_consumer_is_dropped_with_its_layers_and_its_messages_come_back(
    broker: BrokerProcess, certificates: Certificates, tls: bool, compression: dict[str, object]
) -> None:
    topic = f"dropped-{tls}-{'-'.join(compression)}"
    for _ in range(2):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.upgrade(wire.identify(tls_v1=tls, **compression), trusting(certificates))
            wire.send(f"SUB {topic} c\nRDY 10\n".encode())
            assert wire.frame() == OK
            wire.send(pub(topic, b"again"))
            seen = {wire.frame().type for _ in range(2)}
            assert MESSAGE in seen
