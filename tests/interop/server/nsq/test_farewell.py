"""A disconnected client can read why, whatever it still sends, and cannot stay by sending."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.crash.wire import GONE, Wire, pub
from tests.interop.certificates import Certificates
from tests.interop.server.conftest import trusting
from tests.interop.upgraded_wire import UpgradedWire
from tests.polling import until

from martlet.server.nsq import lingering_close as farewell
from martlet.testing import Broker, BrokerProcess

pytestmark = pytest.mark.interop

MORE = b"x" * 4_000_000
"""More than the kernel buffers of unread bytes."""
INVALID = b"E_INVALID invalid command BAD"


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[BrokerProcess]:
    with BrokerProcess(None, *certificates.flags, "--snappy", "--deflate") as process:
        yield process


def test_the_error_is_read_though_much_more_was_sent(
    broker: BrokerProcess, certificates: Certificates, form: dict[str, object]
) -> None:
    """The unread bytes made the kernel reset the connection, and the error was lost."""
    with UpgradedWire(broker.tcp_address) as wire:
        wire.upgrade(wire.identify(**form), trusting(certificates))
        wire.send(b"BAD\n" + MORE)
        assert wire.refusal() == INVALID.decode()


async def test_so_is_that_the_protocol_is_another(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.tcp_address, magic=b"GET / HTTP/1.1\r\n" + MORE)
    assert (await wire.answer()).data == b"E_BAD_PROTOCOL"
    assert await wire.ended() == b""
    wire.close()


async def test_messages_of_a_refused_consumer_go_to_others_at_once() -> None:
    """Though it does not hang up."""
    async with Broker() as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        wire.send(pub("t", b"x"))
        await wire.ok()
        wire.send(b"RDY 1\n")
        assert (await wire.message()).attempts == 1
        other = await Wire.subscribed(broker.tcp_address, "t", "c")
        other.send(b"RDY 1\n")
        wire.send(b"BAD\n")
        assert (await other.message()).attempts == 2
        channel = broker.server.broker.topics["t"].channels["c"]
        assert channel.at_queues[0].timeout_count == 0, "it came at once"
        assert broker.server.connections
        wire.close()
        other.close()


async def flood(wire: Wire) -> None:
    """Send until the broker closes hard."""
    while True:
        wire.writer.write(MORE)
        await wire.writer.drain()


async def test_a_client_that_goes_on_sending_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(farewell, "LINGER_S", 1000)
    async with Broker() as broker:
        wire = await Wire.open(broker.tcp_address)
        wire.send(b"BAD\n")
        with pytest.raises(GONE):
            await flood(wire)
        wire.writer.transport.abort()


async def test_a_client_that_does_not_hang_up_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "LINGER_S", 0.1)
    async with Broker() as broker:
        wire = await Wire.open(broker.tcp_address)
        wire.send(b"BAD\n")
        assert (await wire.answer()).data == INVALID
        await until(lambda: not broker.server.connections)
        wire.close()


async def test_no_more_than_some_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farewell, "MAX_AT_ONCE", 3)
    monkeypatch.setattr(farewell, "LINGER_S", 1000)
    async with Broker() as broker:
        wires = [await Wire.open(broker.tcp_address) for _ in range(5)]
        for wire in wires:
            wire.send(b"BAD\n")
            assert (await wire.answer()).data == INVALID
        await until(lambda: len(broker.server.connections) <= 3)
        assert len(broker.server.connections) == 3
        for wire in wires:
            wire.close()
