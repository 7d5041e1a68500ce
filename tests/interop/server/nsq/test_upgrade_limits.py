"""Limits of compressed and encrypted connections, on both sides."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.crash.wire import MESSAGE, message, pub
from tests.interop.certificates import Certificates
from tests.interop.server.conftest import tls_of, trusting
from tests.interop.upgraded_wire import OK, UpgradedWire
from tests.polling import until

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


def test_a_lone_message_is_not_held_back(
    broker: BrokerProcess, certificates: Certificates, form: dict[str, object], topic: str
) -> None:
    """Though the client's wishes would let nsqd gather for 30 seconds."""
    with UpgradedWire(broker.tcp_address) as wire, UpgradedWire(broker.tcp_address) as producer:
        wishes = {"output_buffer_timeout": 30_000, "output_buffer_size": 65_536}
        answer = wire.identify(**wishes, **form)
        assert answer.items() >= wishes.items()
        wire.upgrade(answer, trusting(certificates))
        wire.send(f"SUB {topic} c\nRDY 100\n".encode())
        assert wire.frame() == OK
        producer.send(pub(topic, b"alone"))
        started_s = time.monotonic()
        assert message(wire.frame()).body == b"alone"
    assert time.monotonic() - started_s < ANSWER_S


def test_a_client_that_sends_no_more_gets_its_answers(
    broker: BrokerProcess, certificates: Certificates, form: dict[str, object], topic: str
) -> None:
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(**form), trusting(certificates))
        wire.send(pub(topic, b"one") * 3)
        # Of the socket alone: Python's TLS would close both directions.
        socket.socket.shutdown(wire.socket, socket.SHUT_WR)
        assert [wire.frame() for _ in range(3)] == [OK] * 3
        assert wire.ends()


async def test_a_handshake_has_its_time(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(upgrade, "HANDSHAKE_S", 0.2)
    async with Broker(tmp_path, **tls_of(certificates), https_address="") as broker:

        def wait_in_vain() -> str:
            with UpgradedWire(broker.tcp_address) as wire:
                assert wire.identify(tls_v1=True)["tls_v1"]
                return wire.refusal()

        said = await asyncio.to_thread(wait_in_vain)
        assert said == "E_IDENTIFY_FAILED IDENTIFY failed no TLS handshake within 0.2 s"
        await until(lambda: not broker.server.connections)


def test_a_consumer_is_dropped_with_its_layers_and_its_messages_come_back(
    broker: BrokerProcess, certificates: Certificates, form: dict[str, object], topic: str
) -> None:
    for _ in range(2):
        with UpgradedWire(broker.tcp_address) as wire:
            wire.upgrade(wire.identify(**form), trusting(certificates))
            wire.send(f"SUB {topic} c\nRDY 10\n".encode())
            assert wire.frame() == OK
            wire.send(pub(topic, b"again"))
            seen = {wire.frame().type for _ in range(2)}
            assert MESSAGE in seen
