"""Lines that statsd gets, beside those of nsqd 1.3.0 after the same actions."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.wire import Wire, http, pub
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

WAIT_S = 60.0
PACKET_BYTES = 200
SETTINGS = (
    "--broadcast-address=a.b-c",
    "--broadcast-http-port=4151",
    "--statsd-prefix=nsq.%s.x",
    "--e2e-processing-latency-percentile=0.999,0.5",
    f"--statsd-udp-packet-size={PACKET_BYTES}",
)
OFTEN = "--statsd-interval=300ms"
AS_OFTEN_AS_NSQD_CAN = "--statsd-interval=1100ms"
PREFIX = "nsq.a_b-c_4151.x."

AFTER_THE_ACTIONS = {
    "topic.t.message_count": ("c", 5),
    "topic.t.message_bytes": ("c", 15),
    "topic.t.depth": ("g", 0),
    "topic.t.backend_depth": ("g", 0),
    "topic.t.e2e_processing_latency_100": ("g", 0),
    "topic.t.e2e_processing_latency_50": ("g", 0),
    "topic.t.channel.c.message_count": ("c", 5),
    "topic.t.channel.c.depth": ("g", 3),
    "topic.t.channel.c.backend_depth": ("g", 3),
    "topic.t.channel.c.in_flight_count": ("g", 1),
    "topic.t.channel.c.deferred_count": ("g", 1),
    "topic.t.channel.c.requeue_count": ("c", 1),
    "topic.t.channel.c.timeout_count": ("c", 0),
    "topic.t.channel.c.clients": ("g", 1),
    "topic.t.channel.c.e2e_processing_latency_100": ("g", 0),
    "topic.t.channel.c.e2e_processing_latency_50": ("g", 0),
}
"""Kind and value of each line of the topic, counters summed up, as nsqd sends them."""
EPHEMERAL = {
    f"topic.e#ephemeral.{name}": kind_and_value
    for name, kind_and_value in {
        "message_count": ("c", 0),
        "message_bytes": ("c", 0),
        "depth": ("g", 0),
        "backend_depth": ("g", 0),
    }.items()
}
MEMORY = {
    "mem.heap_objects": "g",
    "mem.heap_idle_bytes": "g",
    "mem.heap_in_use_bytes": "g",
    "mem.heap_released_bytes": "g",
    "mem.gc_pause_usec_100": "g",
    "mem.gc_pause_usec_99": "g",
    "mem.gc_pause_usec_95": "g",
    "mem.next_gc_bytes": "g",
    "mem.gc_runs": "c",
}
LAST = "mem.gc_runs"
"""The last line of a round."""


class Receiver(asyncio.DatagramProtocol):
    """Keeps the packets that come, and adds up what they say."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.values: dict[str, tuple[str, int]] = {}
        self.order: list[str] = []
        self._came = asyncio.Event()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.packets.append(data)
        assert data.endswith(b"\n")
        for line in data.decode().splitlines():
            match = re.fullmatch(r"(.+):(-?\d+)\|([cg])", line)
            assert match, line
            name, value, kind = match[1], int(match[2]), match[3]
            assert name.startswith(PREFIX), name
            name = name.removeprefix(PREFIX)
            if kind == "c" and name in self.values:
                value += self.values[name][1]
            self.values[name] = (kind, value)
            self.order.append(name)
        self._came.set()

    async def again(self, name: str, count: int) -> None:
        """Wait until a line has come `count` times more."""
        total = self.order.count(name) + count
        async with asyncio.timeout(WAIT_S):
            while self.order.count(name) < total:
                self._came.clear()
                await self._came.wait()


@asynccontextmanager
async def receiver() -> AsyncIterator[tuple[Receiver, str]]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
    try:
        port = transport.get_extra_info("sockname")[1]
        yield protocol, f"--statsd-address=127.0.0.1:{port}"
    finally:
        transport.close()


async def act(broker: BrokerProcess) -> Wire:
    """Five messages; one is in flight, one was requeued for later. Returns the consumer."""
    for path in ("topic/create?topic=e%23ephemeral", "topic/create?topic=t"):
        await http(broker.http_address, f"/{path}", b"")
    await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
    wire = await Wire.open(broker.tcp_address)
    for number in range(5):
        wire.send(pub("t", b"%03d" % number))
        await wire.ok()
    wire.send(b"SUB t c\n")
    await wire.ok()
    wire.send(b"RDY 2\n")
    first, _ = await wire.message(), await wire.message()
    wire.send(b"RDY 0\nREQ %b 60000\n" % first.id)
    # A refusal is answered, so the broker has done all that came before.
    wire.send(b"TOUCH 0000000000000000\n")
    assert b"E_TOUCH_FAILED" in (await wire.answer()).data
    return wire


async def received(
    kind: type[BrokerProcess], folder: Path, *more: str, last: str = LAST
) -> Receiver:
    async with receiver() as (statsd, address):
        with kind(folder, *SETTINGS, address, *more) as broker:
            wire = await act(broker)
            await statsd.again(last, 2)
            wire.close()
        return statsd


def totals(statsd: Receiver) -> dict[str, tuple[str, int]]:
    return {name: at for name, at in statsd.values.items() if not name.startswith("mem.")}


def memory(statsd: Receiver) -> dict[str, str]:
    return {name: at[0] for name, at in statsd.values.items() if name.startswith("mem.")}


async def test_statsd_gets_the_same_lines_as_from_nsqd(tmp_path: Path) -> None:
    statsd = await received(BrokerProcess, tmp_path, OFTEN)
    assert totals(statsd) == AFTER_THE_ACTIONS | EPHEMERAL
    assert memory(statsd) == MEMORY
    assert max(map(len, statsd.packets)) <= PACKET_BYTES
    # A round is the topics by name, the topic's lines as above, the memory at the end.
    end = len(statsd.order) - statsd.order[::-1].index(LAST)
    names = [*EPHEMERAL, *AFTER_THE_ACTIONS, *MEMORY]
    assert statsd.order[end - len(names) : end] == names


async def test_ephemeral_topics_and_memory_may_be_left_out(tmp_path: Path) -> None:
    off = ("--statsd-exclude-ephemeral", "--statsd-mem-stats=false")
    last = "topic.t.channel.c.clients"
    statsd = await received(BrokerProcess, tmp_path, OFTEN, *off, last=last)
    assert totals(statsd) == AFTER_THE_ACTIONS
    assert memory(statsd) == {}


@NEEDS_NSQD
async def test_recorded_lines_are_those_of_nsqd(tmp_path: Path) -> None:
    statsd = await received(NsqdProcess, tmp_path, AS_OFTEN_AS_NSQD_CAN)
    assert totals(statsd) == AFTER_THE_ACTIONS | EPHEMERAL
    assert memory(statsd) == MEMORY
    assert max(map(len, statsd.packets)) <= PACKET_BYTES
