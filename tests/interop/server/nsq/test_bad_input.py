"""Clients that make mistakes, or mean harm: each gets an error as nsqd gives it, the broker lives,
and the others do not notice.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests import polling
from tests.crash.wire import (
    ERROR,
    GONE,
    MESSAGE,
    RESPONSE,
    Frame,
    Wire,
    channels_of,
    drain,
    http,
    message,
    mpub,
    pub,
    u32,
    until,
)
from tests.interop.bystanders import others, undisturbed
from tests.interop.memory import MIB, private_bytes
from tests.interop.nsqd_process import NEEDS_NSQD
from tests.interop.server.nsq import bad_input_cases
from tests.interop.server.nsq.bad_input_cases import LIMITS, identify

from martlet.log.index import MAX_ROWS_IN_MEMORY
from martlet.testing import Broker, BrokerProcess

pytestmark = pytest.mark.interop

RECORDED: dict[str, list[str]] = json.loads(
    (Path(__file__).parent / "nsqd_bad_input.json").read_text(encoding="utf-8")
)
ELSE = {
    # nsqd's number overflows, and it calls another number out of range.
    "RDY of many digits": [
        "response OK",
        "error E_INVALID RDY could not parse count 99999999999999999999999",
        "closed",
    ],
}
"""Where another answer than nsqd's is meant."""


@pytest.fixture(scope="module")
def process() -> Iterator[BrokerProcess]:
    with BrokerProcess(None, *LIMITS, "--log-level=error") as process:
        yield process


@pytest.fixture
async def broker(process: BrokerProcess) -> AsyncIterator[BrokerProcess]:
    async with undisturbed(process):
        yield process


async def has(broker: BrokerProcess, topic: str, expected: dict[str, int]) -> bool:
    channel = (await channels_of(broker.http_address))[topic, "c"]
    return channel.items() >= expected.items()


async def check_channel(broker: BrokerProcess, topic: str, **expected: int) -> None:
    """The channel c of a topic has these counts."""
    assert await has(broker, topic, expected), await channels_of(broker.http_address)


async def until_channel(broker: BrokerProcess, topic: str, **expected: int) -> None:
    await until(lambda: has(broker, topic, expected))


# mistakes that nsqd makes an answer to


async def test_answers_are_those_of_nsqd(broker: BrokerProcess) -> None:
    answers = await bad_input_cases.transcripts(broker.tcp_address)
    assert answers == RECORDED | ELSE


@NEEDS_NSQD
async def test_recorded_answers_are_those_of_nsqd(tmp_path: Path) -> None:
    with bad_input_cases.nsqd(tmp_path) as process:
        assert await bad_input_cases.transcripts(process.tcp_address) == RECORDED


@pytest.mark.parametrize("at_once", [True, False])
async def test_publishes_before_an_error_are_answered_first(
    broker: BrokerProcess, at_once: bool
) -> None:
    wire = await Wire.open(broker.tcp_address)
    wire.send(pub("mistakes", b"good"))
    if not at_once:
        await wire.writer.drain()
        await asyncio.sleep(0.01)
    wire.send(b"NONSENSE\n" + pub("mistakes", b"never"))
    assert await wire.answer() == Frame(RESPONSE, b"OK")
    assert await wire.answer() == Frame(ERROR, b"E_INVALID invalid command NONSENSE")
    assert await wire.ended() == b""
    wire.close()
    got = await drain(broker.tcp_address, broker.http_address, "mistakes", f"c{at_once}")
    assert b"never" not in {message.body for message in got}


# pieces


@pytest.mark.parametrize("how", ["closed", "reset"])
async def test_a_command_of_which_the_end_never_comes_is_not_done(
    broker: BrokerProcess, how: str
) -> None:
    topic = f"half-{how}"
    await http(broker.http_address, f"/topic/create?topic={topic}", b"")
    command = mpub(topic, [b"a" * 100, b"b" * 100])
    line_bytes = len(f"MPUB {topic}\n")
    for cut in (1, 5, line_bytes + 2, line_bytes + 8, 100, len(command) - 1):
        wire = await Wire.open(broker.tcp_address)
        wire.send(command[:cut])
        await wire.writer.drain()
        if how == "closed":
            wire.writer.write_eof()
            assert b"OK" not in await wire.ended()
        wire.close()
    await http(broker.http_address, f"/channel/create?topic={topic}&channel=c", b"")
    await check_channel(broker, topic, depth=0)


async def test_an_endless_line_ends_the_connection(broker: BrokerProcess) -> None:
    before = private_bytes(broker)
    wire = await Wire.open(broker.tcp_address)

    async def send_for_ever() -> None:
        while True:
            wire.send(b"x" * 4096)
            await wire.writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_for_ever(), 50)
    assert private_bytes(broker) - before < 10 * MIB
    wire.close()


async def test_announced_octets_cost_nothing_until_they_come(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level=error") as process:
        async with others(process):
            before = private_bytes(process)
            wires = [await Wire.open(process.tcp_address) for _ in range(200)]
            for wire in wires:
                wire.send(b"MPUB t\n" + u32(5 * MIB) + b"x" * 1000)
            await asyncio.sleep(0.5)
            grown = private_bytes(process) - before
            for wire in wires:
                wire.close()
        assert grown < 100 * MIB, f"{grown / MIB:.0f} MiB for 200 KB received"


# clients that do not read


async def publish(broker: BrokerProcess, *commands: bytes) -> None:
    wire = await Wire.open(broker.tcp_address)
    for command in commands:
        wire.send(command)
        await wire.ok()
    wire.close()


def deaf(wire: Wire) -> None:
    """Read nothing more from the socket."""
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]


async def test_a_consumer_that_never_reads_holds_nothing_for_ever(broker: BrokerProcess) -> None:
    """It is dropped when it has not read for a heartbeat, and others get its messages."""
    wire = await Wire.subscribed(broker.tcp_address, "deaf", "c", heartbeat_interval=1000)
    deaf(wire)
    wire.send(b"RDY 100\n")
    bodies = [b"%05d" % n + b"x" * 900 for n in range(2000)]
    await publish(broker, *(mpub("deaf", bodies[at : at + 4]) for at in range(0, 2000, 4)))
    await until_channel(broker, "deaf", client_count=0)
    got = await drain(broker.tcp_address, broker.http_address, "deaf", "c")
    assert {message.body for message in got} == set(bodies)
    wire.close()


async def test_a_consumer_that_talks_but_never_reads_is_dropped(tmp_path: Path) -> None:
    """It is not silent; but more waits for it than the kernel's buffers hold, for too long."""
    with BrokerProcess(tmp_path, "--log-level=error") as process:
        async with others(process):
            await publish(process, *[mpub("blind", [b"x" * 10_000] * 100)] * 30)
            before = private_bytes(process)
            wire = await Wire.subscribed(process.tcp_address, "blind", "c", heartbeat_interval=1000)
            deaf(wire)
            wire.send(b"RDY 2500\n")
            grown: list[int] = []

            async def dropped() -> bool:
                wire.send(b"NOP\nFIN 0123456789abcdef\n")
                grown.append(private_bytes(process) - before)
                state = (await channels_of(process.http_address))["blind", "c"]
                return not state["client_count"]

            await until(dropped)
            assert max(grown) < 50 * MIB  # pages of the log, which it reads, among them
            await check_channel(process, "blind", depth=3000, in_flight_count=0)
            wire.close()


async def test_a_publisher_that_never_reads_its_answers_is_held_up(broker: BrokerProcess) -> None:
    before = private_bytes(broker)
    wire = await Wire.open(broker.tcp_address)
    wire.writer.get_extra_info("socket").setsockopt(1, 8, 4096)  # SO_RCVBUF
    deaf(wire)
    sent = 0
    piece = pub("torrent", b"x") * 20_000
    try:
        async with asyncio.timeout(3):
            while not wire.writer.is_closing():
                wire.send(piece)
                await wire.writer.drain()
                sent += 20_000
    except (TimeoutError, ConnectionError):
        pass
    assert private_bytes(broker) - before < 50 * MIB
    wire.close()


async def test_a_consumer_that_never_reads_its_answers_is_held_up(broker: BrokerProcess) -> None:
    """Or all the answers to what it says would wait for it in memory."""
    wire = await Wire.subscribed(broker.tcp_address, "torrent", "c#ephemeral")
    deaf(wire)
    sent, piece = 0, pub("torrent", b"x")
    with suppress(TimeoutError):
        while sent < 200 * MIB:
            wire.send(piece * 10_000)
            async with asyncio.timeout(2):
                await wire.writer.drain()
            sent += len(piece) * 10_000
    assert sent < 100 * MIB
    assert b"torrent" in await http(broker.http_address, "/stats")
    wire.close()


async def test_a_consumer_that_reads_slowly_is_not_dropped(tmp_path: Path) -> None:
    """More waits for it than the kernel's buffers hold; it gets it all, by and by."""
    loop = asyncio.get_running_loop()
    bodies = [b"%02d" % number + b"x" * 900_000 for number in range(12)]
    with BrokerProcess(tmp_path, "--log-level=error") as process, socket.socket() as sock:
        await publish(process, *(pub("slow", body) for body in bodies))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.setblocking(False)
        host, _, port = process.tcp_address.partition(":")
        await loop.sock_connect(sock, (host, int(port)))
        hello = identify({"heartbeat_interval": 1000})
        await loop.sock_sendall(sock, b"  V2" + hello + b"SUB slow c\nRDY 100\n")
        got = bytearray()
        for _ in range(45):
            got += await loop.sock_recv(sock, 24_000)
            await asyncio.sleep(0.1)
        await check_channel(process, "slow", client_count=1)
        while got.count(b"x" * 900_000) < len(bodies):
            got += await loop.sock_recv(sock, 1 << 20)
            await loop.sock_sendall(sock, b"NOP\n")
        at, received = 0, []
        while at < len(got):
            size = int.from_bytes(got[at : at + 4], "big")
            frame = bytes(got[at + 4 : at + 4 + size])
            received += [message(Frame(MESSAGE, frame[4:])).body] if frame[3] == MESSAGE else []
            at += 4 + size
        assert received == bodies


async def test_a_client_without_heartbeats_that_never_reads_is_dropped() -> None:
    async with Broker(client_timeout_ns=1_000_000_000) as broker:
        wire = await Wire.open(broker.tcp_address)
        await wire.identify(heartbeat_interval=-1)
        deaf(wire)
        wire.send(pub("torrent", b"x") * 2_000_000)
        await polling.until(lambda: not broker.server.connections)
        wire.close()


# connections


async def test_thousands_come_and_go(broker: BrokerProcess) -> None:
    host, _, port = broker.tcp_address.rpartition(":")
    before = psutil.Process(broker.process_id).num_fds()

    async def visit(number: int) -> None:
        _, writer = await asyncio.open_connection(host, int(port))
        if number % 3:
            writer.write(b"  V2" if number % 3 == 1 else b"  V2SUB visited c#ephemeral\n")
        if number % 2:
            await asyncio.sleep(0)
        writer.transport.abort() if number % 5 else writer.close()

    for start in range(0, 3000, 100):
        await asyncio.gather(*(visit(number) for number in range(start, start + 100)))
    await polling.until(lambda: psutil.Process(broker.process_id).num_fds() <= before + 5)

    async def deleted() -> bool:  # the last few may be leaving still
        return ("visited", "c#ephemeral") not in await channels_of(broker.http_address)

    await until(deleted)


async def published(process: BrokerProcess, topic: str, body: bytes) -> bool:
    """Whether the broker had a descriptor for a connection to publish on."""
    wire = await Wire.open(process.tcp_address)
    wire.send(pub(topic, body))
    try:
        await wire.ok()
    except GONE:
        return False
    finally:
        wire.close()
    return True


async def test_a_broker_without_file_descriptors_recovers(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--log-level=error") as process:
        resource.prlimit(process.process_id, resource.RLIMIT_NOFILE, (64, 64))
        kept = await Wire.subscribed(process.tcp_address, "t", "c")
        kept.send(b"RDY 1\n")
        crowd = [await Wire.open(process.tcp_address) for _ in range(100)]
        await asyncio.sleep(0.3)
        cpu = psutil.Process(process.process_id).cpu_times()
        await asyncio.sleep(0.5)
        busy = psutil.Process(process.process_id).cpu_times()
        assert busy.user + busy.system - cpu.user - cpu.system < 0.4, "it spins"
        for wire in crowd:
            wire.close()
        await until(lambda: published(process, "t", b"alive"))
        assert (await kept.message()).body == b"alive"
        kept.close()


async def test_no_file_descriptor_for_an_index_does_not_stop_other_clients(tmp_path: Path) -> None:
    """A channel whose old messages cannot be looked up waits; publishers and timers go on."""
    with BrokerProcess(tmp_path, "--checkpoint-interval=1h", "--log-level=error") as process:
        address = process.tcp_address
        await http(process.http_address, "/topic/create?topic=t", b"")
        await http(process.http_address, "/channel/create?topic=t&channel=c", b"")
        publisher = await Wire.open(address)
        bodies = [b"%d" % number for number in range(MAX_ROWS_IN_MEMORY + 10)]
        publisher.send(b"".join(pub("t", body) for body in bodies[:10]))
        for _ in range(10):
            await publisher.ok()
        old = await Wire.subscribed(address, "t", "c", msg_timeout=1000)
        old.send(b"RDY 1\n")
        got = await old.message()
        for body in bodies[10:]:
            publisher.send(pub("t", body))
            await publisher.ok()
        other = await Wire.subscribed(address, "other", "c", msg_timeout=1000)
        other.send(b"RDY 1\n")
        limit = psutil.Process(process.process_id).num_fds()
        _, max_count = resource.prlimit(process.process_id, resource.RLIMIT_NOFILE)
        resource.prlimit(process.process_id, resource.RLIMIT_NOFILE, (limit, max_count))
        publisher.send(mpub("other", [b"again"]))
        await publisher.ok()
        for attempts in (1, 2, 3, 4):
            assert (await other.message()).attempts == attempts
        assert "delivery is tried again in a second: [Errno 24]" in process.log()
        for command in (pub("t", b"x"), mpub("t", [b"y", b"z"]), pub("other", b"x")):
            publisher.send(command)
            await publisher.ok()
        resource.prlimit(process.process_id, resource.RLIMIT_NOFILE, (limit + 50, max_count))
        # A fresh one may have its turn first, and time out in its turn.
        again = await old.message()
        for _ in range(4):
            if again.body == got.body:
                break
            again = await old.message()
        assert again.body == got.body
        assert again.attempts >= 2
        for wire in (publisher, old, other):
            wire.close()


# what belongs to others


async def test_a_message_is_finished_once_and_by_its_client_only(broker: BrokerProcess) -> None:
    mine = await Wire.subscribed(broker.tcp_address, "ids", "c")
    mine.send(b"RDY 1\n")
    await http(broker.http_address, "/pub?topic=ids", b"one")
    got = await mine.message()
    theirs = await Wire.subscribed(broker.tcp_address, "ids", "c")
    elsewhere = await Wire.subscribed(broker.tcp_address, "ids", "d")
    for wire, why in ((theirs, b"client does not own message"), (elsewhere, b"ID not in flight")):
        for verb, after in ((b"FIN", b""), (b"REQ", b" 0"), (b"TOUCH", b"")):
            wire.send(b"%b %b%b\n" % (verb, got.id, after))
            failed = b"E_%b_FAILED %b %b failed %b" % (verb, verb, got.id, why)
            assert await wire.answer() == Frame(ERROR, failed)
    mine.send(b"FIN %b\n" % got.id)
    assert await mine.silent(0.1)
    for _ in range(2):
        mine.send(b"FIN %b\n" % got.id)
        failed = b"E_FIN_FAILED FIN %b failed ID not in flight" % got.id
        assert await mine.answer() == Frame(ERROR, failed)
    await check_channel(broker, "ids", depth=0, in_flight_count=0)
    for wire in (mine, theirs, elsewhere):
        wire.close()


async def test_many_finishes_of_which_some_are_wrong(broker: BrokerProcess) -> None:
    """A run of FINs in one packet: each good one counts, each bad one gets its error."""
    wire = await Wire.subscribed(broker.tcp_address, "runs", "c")
    await http(broker.http_address, "/mpub?topic=runs", b"\n".join(b"%d" % n for n in range(50)))
    wire.send(b"RDY 50\n")
    got = [await wire.message() for _ in range(50)]
    ids = [message.id for message in got]
    wrong = [b"f" * 16, b"0" * 16, ids[3], ids[3].upper() if ids[3].isdigit() else b"1" * 16]
    sent = ids[:20] + wrong[:3] + ids[20:40] + wrong[:1] + ids[40:]
    wire.send(b"".join(b"FIN %b\n" % id for id in sent))
    errors = [await wire.answer() for _ in range(4)]
    assert [frame.type for frame in errors] == [ERROR] * 4
    refused_ids = [frame.data.split()[2] for frame in errors]
    assert refused_ids == [b"f" * 16, b"0" * 16, ids[3], b"f" * 16]
    assert await wire.silent(0.1)
    await check_channel(broker, "runs", depth=0, in_flight_count=0)
    wire.close()


@pytest.mark.parametrize(
    "name", ["\ud800", "two\nlines", "\x00", '"quoted"', "\u2028", "x" * 900], ids=range(6)
)
async def test_a_strange_client_id_spoils_no_statistics(broker: BrokerProcess, name: str) -> None:
    wire = await Wire.open(broker.tcp_address)
    fields = {"client_id": name, "hostname": name, "user_agent": name}
    wire.send(identify(json.dumps(fields).encode()))
    await wire.ok()
    wire.send(b"SUB strange c#ephemeral\n")
    await wire.ok()
    for target in ("/stats", "/stats?format=json"):
        assert await http(broker.http_address, target)
    wire.close()
