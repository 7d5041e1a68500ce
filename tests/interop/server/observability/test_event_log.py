"""The log lines of what clients and operators do, beside those that nsqd 1.3.0 writes."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.crash.wire import Wire, dpub, mpub, pub, u32
from tests.interop.nsqd_process import NEEDS_NSQD, NsqdProcess

from martlet.client import Consumer, Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

ANSWER_S = 60.0

LINES = """
INFO: TCP: listening on TCP
INFO: HTTP: listening on HTTP
INFO: TCP: new client(CLIENT)
ERROR: failed to read protocol version - EOF
INFO: TOPIC(t): created
INFO: 200 POST /topic/create?topic=t (CLIENT) TIME
INFO: TOPIC(t): new channel(c)
INFO: 200 POST /channel/create?topic=t&channel=c (CLIENT) TIME
INFO: 200 POST /channel/pause?topic=t&channel=c (CLIENT) TIME
INFO: 404 POST /nothing (CLIENT) TIME
ERROR: failed to parse request params - invalid URL escape "%zz"
INFO: 400 GET /stats?a=%zz (CLIENT) TIME
ERROR: failed to parse request params - invalid URL escape "%z"
INFO: 400 GET /stats?a=%z&b (CLIENT) TIME
INFO: 200 GET /info?% (CLIENT) TIME
ERROR: failed to parse request params - invalid URL escape "%e"
WARNING: deprecated value 'yes' used for /mpub binary param
INFO: 405 GET /topic/create?topic=t (CLIENT) TIME
INFO: 200 GET /stats?format=json&topic=t (CLIENT) TIME
INFO: TCP: new client(CLIENT)
INFO: CLIENT(CLIENT): desired protocol magic '  V2'
INFO: [CLIENT] IDENTIFY: {ClientID:cid Hostname:h HeartbeatInterval:30000 OutputBufferSize:0 \
OutputBufferTimeout:0 FeatureNegotiation:true TLSv1:false Deflate:false DeflateLevel:0 \
Snappy:false SampleRate:0 UserAgent:u/1 MsgTimeout:0}
ERROR: [CLIENT] - E_FIN_FAILED FIN 0000000000000000 failed ID not in flight
INFO: PROTOCOL(V2): [CLIENT] REQ timeout 3600001000000 out of range 0-3600000000000. Setting to \
3600000000000
ERROR: [CLIENT] - E_REQ_FAILED REQ 0000000000000000 failed ID not in flight
INFO: PROTOCOL(V2): [CLIENT] exiting ioloop
INFO: TCP: new client(CLIENT)
ERROR: failed to read protocol version - EOF
INFO: TCP: new client(CLIENT)
INFO: CLIENT(CLIENT): desired protocol magic 'BOOM'
ERROR: client(CLIENT) bad protocol magic 'BOOM'
INFO: TCP: new client(CLIENT)
INFO: CLIENT(CLIENT): desired protocol magic '  V2'
ERROR: [CLIENT] - E_INVALID invalid command BAD
ERROR: client(CLIENT) - E_INVALID invalid command BAD
INFO: PROTOCOL(V2): [CLIENT] exiting ioloop
INFO: TCP: new client(CLIENT)
INFO: CLIENT(CLIENT): desired protocol magic '  V2'
INFO: TOPIC(e#ephemeral): created
INFO: TOPIC(e#ephemeral): new channel(f#ephemeral)
INFO: PROTOCOL(V2): [CLIENT] exiting ioloop
INFO: TOPIC(e#ephemeral): deleting channel f#ephemeral
INFO: CHANNEL(f#ephemeral): deleting
INFO: TOPIC(e#ephemeral): deleting
INFO: TOPIC(t): deleting channel c
INFO: CHANNEL(c): deleting
INFO: 200 POST /channel/delete?topic=t&channel=c (CLIENT) TIME
INFO: TOPIC(t): deleting
INFO: 200 POST /topic/delete?topic=t (CLIENT) TIME
INFO: TCP: closing TCP
INFO: HTTP: closing HTTP
INFO: NSQ: closing topics
INFO: NSQ: stopping subsystems
INFO: NSQ: bye
""".strip().splitlines()
"""Clients and durations are masked. The first client only checks that the port is open."""
CHECK = LINES[2:4]
OWN = re.compile(
    # of the files that each of them writes, of its start, which is waited for by /ping, and of
    # threads that only nsqd has
    r"INFO: (NSQ: persisting|DISKQUEUE\(|LOG: |nsqd v|martlet v|ID: |hot path: |SIGTERM|LOOKUP: "
    r"|QUEUESCAN: |HTTP: the routes )"
    r"|.* messagePump$|WARNING: LOG: |INFO: 200 GET /ping "
)


CONVERSATION = """
[IDENTIFY]
[SUB t c]
[PUB t]
[PUB t]
[MPUB t]
[DPUB t 60000]
[RDY 2]
writing msg(ID) to client(CLIENT) - one
writing msg(ID) to client(CLIENT) - two
[TOUCH ID]
[REQ ID 50000]
writing msg(ID) to client(CLIENT) - three
[FIN ID]
[FIN ID]
[RDY 0]
[NOP]
[CLS]
""".strip().splitlines()
"""The lines of `talk` at the level debug, in both directions."""


def ask(address: str, target: str, method: str = "POST") -> None:
    request = urllib.request.Request(f"http://{address}{target}", method=method)
    try:
        urllib.request.urlopen(request, timeout=ANSWER_S).close()
    except urllib.error.HTTPError as error:
        error.close()


async def say(address: str, data: bytes) -> None:
    """Send something, end the sending side, and wait until the broker has closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(ANSWER_S):
        writer.write(data)
        writer.write_eof()
        await reader.read()
    writer.close()


async def act(broker: BrokerProcess) -> None:
    http, tcp = broker.http_address, broker.tcp_address
    for method, target in (
        ("POST", "/topic/create?topic=t"),
        ("POST", "/channel/create?topic=t&channel=c"),
        ("POST", "/channel/pause?topic=t&channel=c"),
        ("POST", "/pub?topic=bad!"),
        ("POST", "/nothing"),
        ("GET", "/stats?a=%zz"),
        ("GET", "/stats?a=%z&b"),
        ("GET", "/info?%"),
        ("POST", "/mpub?topic=t&x=%e"),
        ("POST", "/mpub?topic=t&binary=yes"),
        ("GET", "/topic/create?topic=t"),
        ("GET", "/stats?format=json&topic=t"),
    ):
        await asyncio.to_thread(ask, http, target, method)
    fields = {
        "client_id": "cid",
        "hostname": "h",
        "user_agent": "u/1",
        "heartbeat_interval": 30000,
        "feature_negotiation": True,
    }
    body = json.dumps(fields).encode()
    identify = b"IDENTIFY\n" + u32(len(body)) + body
    wrong = b"FIN 0000000000000000\nREQ 0000000000000000 3600001\n"
    await say(tcp, b"  V2" + identify + b"SUB t c\n" + wrong)
    await say(tcp, b"")
    await say(tcp, b"BOOM")
    await say(tcp, b"  V2BAD\n")
    await say(tcp, b"  V2SUB e#ephemeral f#ephemeral\n")
    await asyncio.to_thread(ask, http, "/channel/delete?topic=t&channel=c")
    await asyncio.to_thread(ask, http, "/topic/delete?topic=t")


async def talk(broker: BrokerProcess) -> None:
    wire = await Wire.open(broker.tcp_address)
    await wire.identify(client_id="cid", heartbeat_interval=60_000)
    wire.send(b"SUB t c\n")
    await wire.ok()
    wire.send(pub("t", b"one") + pub("t", b"two"))
    wire.send(mpub("t", [b"three"]) + dpub("t", 60_000, b"later"))
    for _ in range(4):
        await wire.ok()
    wire.send(b"RDY 2\n")
    first, second = await wire.message(), await wire.message()
    wire.send(b"TOUCH %b\nREQ %b 50000\n" % (first.id, first.id))
    third = await wire.message()
    wire.send(b"FIN %b\nFIN %b\nRDY 0\nNOP\nCLS\n" % (second.id, third.id))
    assert (await wire.answer()).data == b"CLOSE_WAIT"
    wire.close()


def conversation(text: str) -> list[str]:
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text)
    text = re.sub(r"\b[0-9a-f]{16}\b", "ID", text)
    lines = re.findall(r" DEBUG: PROTOCOL\(V2\): (.*)$", text, re.MULTILINE)
    # nsqd logs a second IDENTIFY.
    return [line.removeprefix("[CLIENT] ") for line in lines if "{" not in line]


def lines_of(broker: BrokerProcess, text: str) -> list[str]:
    text = text.replace(broker.tcp_address, "TCP").replace(broker.http_address, "HTTP")
    text = re.sub(r"127\.0\.0\.1:\d+", "CLIENT", text)
    text = re.sub(r"\) [\d.]+(ns|µs|ms|s)$", ") TIME", text, flags=re.MULTILINE)
    lines = re.findall(r"^\[\w+\] [\d/]+ [\d:.]+ (.*)$", text, re.MULTILINE)
    return [line for line in lines if not OWN.match(line)]


async def logged(kind: type[BrokerProcess], folder: Path) -> list[str]:
    with kind(folder) as broker:
        await act(broker)
        await asyncio.to_thread(broker.stop)
        lines = lines_of(broker, broker.log())
    # The check of a start connects again where TCP listens and HTTP does not yet.
    for _ in range(lines.count(CHECK[1]) - LINES.count(CHECK[1])):
        for line in CHECK:
            lines.remove(line)
    return lines


async def test_an_operator_finds_the_lines_that_nsqd_writes(tmp_path: Path) -> None:
    lines = await logged(BrokerProcess, tmp_path)
    # Joint deletions, and actions of a client and the broker at once, have no set order.
    assert sorted(lines) == sorted(LINES)
    steady = [line for line in LINES if line.startswith("INFO: 200 ")]
    assert [line for line in lines if line.startswith("INFO: 200 ")] == steady


@NEEDS_NSQD
async def test_recorded_log_lines_are_those_of_nsqd(tmp_path: Path) -> None:
    lines = await logged(NsqdProcess, tmp_path)
    lines = [line.removesuffix(" - ID not in flight") for line in lines]
    assert sorted(lines) == sorted(LINES)


def test_at_level_debug_commands_messages_and_a_consumers_state_have_lines_as_nsqds(
    tmp_path: Path,
) -> None:
    with BrokerProcess(tmp_path, "--log-level=debug") as broker:
        asyncio.run(talk(broker))
        log = broker.log()
    assert conversation(log) == CONVERSATION
    states = re.findall(r" DEBUG: \[127\.0\.0\.1:\d+\] state (.*)$", log, re.MULTILINE)
    for expected in ("rdy:    2 inflt:    1", "rdy:    2 inflt:    2", "rdy:    0 inflt:    0"):
        assert expected in states


async def test_at_level_debug_messages_with_properties_are_delivered(tmp_path: Path) -> None:
    """The frame with the properties was taken for a message, and the consumer's connection lost."""
    with BrokerProcess(tmp_path, "--log-level=debug") as broker:
        async with Producer(broker.tcp_address) as producer:
            await producer.send("t", b"one", keys=["k"])
        async with Consumer("t", "c", broker.tcp_address) as consumer, asyncio.timeout(50):
            message = await anext(aiter(consumer))
            assert (message.body, message.properties.keys) == (b"one", ("k",))
            message.finish()
        log = broker.log()
    assert re.search(r"writing msg\([0-9a-f]{16}\) to client\([\d.:]+\) - one\n", log)
    assert "Traceback" not in log


@NEEDS_NSQD
def test_the_recorded_conversation_is_that_of_nsqd(tmp_path: Path) -> None:
    with NsqdProcess(tmp_path, "--log-level=debug") as broker:
        asyncio.run(talk(broker))
        lines = conversation(broker.log())
    # A message goes out by another thread than the one that reads.
    assert sorted(lines) == sorted(CONVERSATION)


def test_without_it_nothing_is_traced(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        asyncio.run(talk(broker))
        assert conversation(broker.log()) == []
