"""Times that outlive the broker: of deferred and requeued messages, over kills and clean stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.here import BrokerHere
from tests.crash.load import EARLY_NS, JOURNAL_INTERVAL_S, STEP_S, STEPS
from tests.crash.wire import Message, Wire, channels_of, dpub, http, pub

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

DELAY_MS = 3000
LATE_NS = 30_000_000_000
"""A busy machine may be this late."""


FLAGS = (f"--journal-interval={int(JOURNAL_INTERVAL_S * 1000)}ms", "--log-level=warn")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, *FLAGS) as process:
        yield process


@pytest.fixture
def again(tmp_path: Path) -> Iterator[BrokerHere]:
    """The broker of the second life, which starts before anything is due."""
    broker = BrokerHere(tmp_path, *FLAGS)
    yield broker
    broker.close()


def end(broker: BrokerProcess, how: str) -> None:
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0


async def journaled(wire: Wire) -> None:
    """Return when the broker has written down the commands of this connection."""
    for _ in range(1 + STEPS):
        wire.send(pub("barrier", b"x"))
        await wire.ok()
        await asyncio.sleep(STEP_S)


async def next_message(wire: Wire, due_ns: int) -> Message:
    got = await wire.message()
    late_ns = time.time_ns() - due_ns
    assert -EARLY_NS <= late_ns < LATE_NS, f"{got.body!r} came {late_ns / 1e6:.1f} ms late"
    return got


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_deferred_and_requeued_messages_come_at_their_time(
    broker: BrokerProcess, again: BrokerHere, how: str
) -> None:
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(b"RDY 10\n")
    await http(broker.http_address, "/pub?topic=t", b"requeued")
    got = await wire.message()
    assert (got.body, got.attempts) == (b"requeued", 1)
    requeued_due_ns = time.time_ns() + DELAY_MS * 1_000_000
    wire.send(b"REQ %b %d\n" % (got.id, DELAY_MS))
    deferred_due_ns = time.time_ns() + (DELAY_MS + 300) * 1_000_000
    wire.send(dpub("t", DELAY_MS + 300, b"deferred"))
    await wire.ok()
    await journaled(wire)
    wire.close()
    end(broker, how)

    again.start()
    state = (await channels_of(again.http_address))["t", "c"]
    assert time.time_ns() < requeued_due_ns, "the machine is too slow for this test"
    assert (state["depth"], state["deferred_count"]) == (0, 2)
    wire = await Wire.subscribed(again.tcp_address, "t", "c")
    wire.send(b"RDY 10\n")
    got_again = await next_message(wire, requeued_due_ns)
    assert (got_again.body, got_again.id, got_again.attempts) == (b"requeued", got.id, 2)
    deferred = await next_message(wire, deferred_due_ns)
    assert (deferred.body, deferred.attempts) == (b"deferred", 1)
    wire.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_messages_due_during_an_outage_come_at_once(
    broker: BrokerProcess, again: BrokerHere, how: str
) -> None:
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(dpub("t", 100, b"deferred"))
    await wire.ok()
    wire.close()
    end(broker, how)
    await asyncio.sleep(0.1)
    again.start()
    wire = await Wire.subscribed(again.tcp_address, "t", "c")
    wire.send(b"RDY 1\n")
    got = await next_message(wire, time.time_ns())
    assert (got.body, got.attempts) == (b"deferred", 1)
    wire.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_in_flight_messages_come_again_at_once_with_their_ids(
    broker: BrokerProcess, again: BrokerHere, how: str
) -> None:
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(b"RDY 2\n")
    await http(broker.http_address, "/mpub?topic=t", b"done\nkept")
    done, kept = await wire.message(), await wire.message()
    wire.send(b"FIN %b\n" % done.id)
    await journaled(wire)
    wire.close()
    end(broker, how)

    again.start()
    wire = await Wire.subscribed(again.tcp_address, "t", "c")
    wire.send(b"RDY 2\n")
    got_again = await next_message(wire, time.time_ns())
    assert (got_again.body, got_again.id) == (kept.body, kept.id)
    assert await wire.silent(0.2)
    wire.close()
