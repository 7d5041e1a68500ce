"""Messages in flight at the end of a broker, over kills and clean stops."""

from __future__ import annotations

import asyncio

import pytest
from tests import brokers
from tests.crash.load import JOURNAL_INTERVAL_S, STEP_S, STEPS
from tests.crash.wire import Wire, http, pub

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.crash

FLAGS = (f"--journal-interval={int(JOURNAL_INTERVAL_S * 1000)}ms", "--log-level=warn")


broker = brokers.process(*FLAGS, scope="function")


async def journaled(wire: Wire) -> None:
    """Return when the broker has written down the commands of this connection."""
    for _ in range(1 + STEPS):
        wire.send(pub("barrier", b"x"))
        await wire.ok()
        await asyncio.sleep(STEP_S)


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_in_flight_messages_come_again_at_once_with_their_ids(
    broker: BrokerProcess, how: str
) -> None:
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(b"RDY 2\n")
    await http(broker.http_address, "/mpub?topic=t", b"done\nkept")
    done, kept = await wire.message(), await wire.message()
    wire.send(b"FIN %b\n" % done.id)
    await journaled(wire)
    wire.close()
    if how == "killed":
        broker.kill()
    else:
        assert broker.stop() == 0
    broker.start()
    wire = await Wire.subscribed(broker.tcp_address, "t", "c")
    wire.send(b"RDY 2\n")
    got_again = await wire.message()
    assert (got_again.body, got_again.id) == (kept.body, kept.id)
    assert await wire.silent(0.2)
    wire.close()
