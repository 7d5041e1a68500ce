"""Bad input over TCP and the answers to it, recorded from nsqd.

Run as ``python -m tests.interop.server.nsq.bad_input_cases NSQD`` it prints the record anew.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.crash.wire import ERROR, MESSAGE, Wire, dpub, mpub, pub, u32
from tests.interop.nsqd_process import NsqdProcess

LIMITS = ("--max-msg-size=1000", "--max-body-size=5000", "--max-rdy-count=100")
SILENCE_S = 2.0
"""A connection on which nothing comes for so long is taken for open."""
ID = b"0123456789abcdef"


class Case(NamedTuple):
    """Bytes behind the magic, in one piece; ``{t}`` in them is a topic of the case's own."""

    name: str
    data: bytes
    magic: bytes = b"  V2"


def identify(fields: object) -> bytes:
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return b"IDENTIFY\n" + u32(len(body)) + body


SUB = b"SUB {t} c\n"
CASES = [
    # the magic
    Case("magic of V1", b"", b"  V1"),
    Case("magic of nobody", b"", b"ABCD"),
    Case("HTTP instead of the magic", b" / HTTP/1.1\r\n\r\n", b"GET "),
    Case("TLS instead of the magic", b"\x01\x00\xfc\x03\x03", b"\x16\x03\x01\x02"),
    Case("zeros instead of the magic", b"", bytes(4)),
    # lines
    Case("an unknown command", b"HELLO\n"),
    Case("an empty line", b"\n"),
    Case("a blank line", b"  \n"),
    Case("a command in small letters", b"nop\n"),
    Case("garbage", bytes(range(11, 256)) + b"\n"),
    Case("a line as long as may be", b"NOP " + b"x" * 16379 + b"\n"),
    Case("a line that is longer", b"NOP " + b"x" * 16380 + b"\n"),
    Case("NOP with a carriage return", b"NOP\r\n"),
    Case("NOP with parameters", b"NOP a b c\n"),
    Case("a second magic", b"  V2\n"),
    # in the wrong state
    Case("RDY before SUB", b"RDY 1\n"),
    Case("FIN before SUB", b"FIN " + ID + b"\n"),
    Case("REQ before SUB", b"REQ " + ID + b" 0\n"),
    Case("TOUCH before SUB", b"TOUCH " + ID + b"\n"),
    Case("CLS before SUB", b"CLS\n"),
    Case("SUB twice", SUB + SUB),
    Case("IDENTIFY behind SUB", SUB + identify({})),
    Case("IDENTIFY twice", identify({}) + identify({})),
    Case("AUTH where there is none", b"AUTH\n" + u32(3) + b"abc"),
    Case("AUTH with a parameter", b"AUTH x\n" + u32(3) + b"abc"),
    Case("AUTH with no secret", b"AUTH\n" + u32(0)),
    Case("CLS twice", SUB + b"CLS\nCLS\n"),
    Case("RDY behind CLS", SUB + b"CLS\nRDY 1\n"),
    # parameters
    Case("SUB without a channel", b"SUB {t}\n"),
    Case("SUB with nothing", b"SUB\n"),
    Case("SUB with a bad topic", b"SUB a$b c\n"),
    Case("SUB with a bad channel", b"SUB {t} c/d\n"),
    Case("SUB with an empty topic", b"SUB  c\n"),
    Case("SUB with a long topic", b"SUB " + b"t" * 65 + b" c\n"),
    Case("SUB with a long channel", b"SUB {t} " + b"c" * 65 + b"\n"),
    Case("SUB with octets that are no text", b"SUB \xff\xfe c\n"),
    Case("SUB with heartbeats off", identify({"heartbeat_interval": -1}) + SUB),
    Case("RDY of letters", SUB + b"RDY abc\n"),
    Case("RDY below zero", SUB + b"RDY -1\n"),
    Case("RDY above the limit", SUB + b"RDY 101\n"),
    Case("RDY at the limit", SUB + b"RDY 100\n"),
    Case("RDY with nothing", SUB + b"RDY\n"),
    Case("RDY of many digits", SUB + b"RDY 99999999999999999999999\n"),
    Case("FIN of what is not in flight", SUB + b"FIN " + ID + b"\n"),
    Case("FIN of a short id", SUB + b"FIN 0123\n"),
    Case("FIN of a long id", SUB + b"FIN " + ID + b"0\n"),
    Case("FIN with nothing", SUB + b"FIN\n"),
    Case("FIN of an id that is no number", SUB + b"FIN ________________\n"),
    Case("FIN of octets", SUB + b"FIN " + b"\xff" * 16 + b"\n"),
    Case("REQ of what is not in flight", SUB + b"REQ " + ID + b" 0\n"),
    Case("REQ without a time", SUB + b"REQ " + ID + b"\n"),
    Case("REQ with letters for a time", SUB + b"REQ " + ID + b" soon\n"),
    Case("REQ with a time below zero", SUB + b"REQ " + ID + b" -1\n"),
    Case("REQ with a time above the limit", SUB + b"REQ " + ID + b" 99999999999\n"),
    Case("TOUCH of what is not in flight", SUB + b"TOUCH " + ID + b"\n"),
    Case("TOUCH of a short id", SUB + b"TOUCH 1\n"),
    # publishing
    Case("PUB without a topic", b"PUB\n" + u32(1) + b"x"),
    Case("PUB to a bad topic", pub("a$b", b"x")),
    Case("PUB of nothing", pub("{t}", b"")),
    Case("PUB below zero", b"PUB {t}\n" + u32(0xFFFFFFFF)),
    Case("PUB of far too much", b"PUB {t}\n" + u32(0x7FFFFFFF)),
    Case("PUB above the limit", pub("{t}", b"x" * 1001)),
    Case("PUB at the limit", pub("{t}", b"x" * 1000)),
    Case("PUB with more parameters", b"PUB {t} more\n" + u32(1) + b"x"),
    Case("DPUB without a time", b"DPUB {t}\n" + u32(1) + b"x"),
    Case("DPUB with letters for a time", b"DPUB {t} soon\n" + u32(1) + b"x"),
    Case("DPUB with a time below zero", dpub("{t}", -1, b"x")),
    Case("DPUB with a time above the limit", dpub("{t}", 3_600_001, b"x")),
    Case("DPUB with a time at the limit", dpub("{t}", 3_600_000, b"x")),
    Case("DPUB of nothing", dpub("{t}", 0, b"")),
    Case("DPUB above the limit", dpub("{t}", 0, b"x" * 1001)),
    Case("DPUB to a bad topic", dpub("a b", 0, b"x")),
    Case("MPUB without a topic", b"MPUB\n" + u32(4) + u32(0)),
    Case("MPUB to a bad topic", mpub("a$b", [b"x"])),
    Case("MPUB of nothing", b"MPUB {t}\n" + u32(0)),
    Case("MPUB below zero", b"MPUB {t}\n" + u32(0x80000000)),
    Case("MPUB of far too much", b"MPUB {t}\n" + u32(0x7FFFFFFF)),
    Case("MPUB above the limit", mpub("{t}", [b"x" * 900] * 6)),
    Case("MPUB of no messages", mpub("{t}", [])),
    Case("MPUB of too few octets for a count", b"MPUB {t}\n" + u32(2) + b"xx"),
    Case("MPUB of a count below zero", b"MPUB {t}\n" + u32(9) + u32(0xFFFFFFFF) + u32(1) + b"x"),
    Case("MPUB of an impossible count", b"MPUB {t}\n" + u32(9) + u32(1000) + u32(1) + b"x"),
    Case("MPUB with an empty message", mpub("{t}", [b"x", b"", b"y"])),
    Case("MPUB of empty messages", mpub("{t}", [b"", b""])),
    Case("MPUB with a message above the limit", mpub("{t}", [b"x", b"x" * 1001])),
    Case("MPUB of messages above the limit", mpub("{t}", [b"x" * 1001] * 2)),
    Case(
        "MPUB whose size is that of its bodies alone",
        b"MPUB {t}\n" + u32(2) + u32(2) + u32(1) + b"a" + u32(1) + b"b" + pub("{t}", b"c"),
    ),
    Case(
        "MPUB whose size is too large",
        b"MPUB {t}\n" + u32(4000) + u32(2) + u32(1) + b"a" + u32(1) + b"b" + pub("{t}", b"c"),
    ),
    Case(
        "MPUB whose size is too small, with an empty message",
        b"MPUB {t}\n" + u32(2) + u32(3) + u32(1) + b"a" + u32(0) + u32(1) + b"b",
    ),
    Case(
        "MPUB whose size is too large, with a message above the limit",
        b"MPUB {t}\n" + u32(4000) + u32(2) + u32(1) + b"a" + u32(1001),
    ),
    Case(
        "MPUB with more behind its messages", b"MPUB {t}\n" + u32(13) + u32(1) + u32(1) + b"aNOP\n"
    ),
    Case("MPUB with a message below zero", b"MPUB {t}\n" + u32(8) + u32(1) + u32(0xFFFFFFFF)),
    # IDENTIFY
    Case("IDENTIFY of nothing", identify(b"")),
    Case("IDENTIFY below zero", b"IDENTIFY\n" + u32(0xFFFFFFFF)),
    Case("IDENTIFY above the limit", identify(b" " * 5001)),
    Case("IDENTIFY of no JSON", identify(b"{")),
    Case("IDENTIFY of octets", identify(b"\xff\xfe\xfd")),
    Case("IDENTIFY of a list", identify([])),
    Case("IDENTIFY of a number", identify(1)),
    Case("IDENTIFY of a deep list", identify(b"[" * 4900)),
    Case("IDENTIFY with a number for a name", identify({"client_id": 1})),
    Case("IDENTIFY with a fraction", identify({"heartbeat_interval": 1000.5})),
    Case("IDENTIFY with a text for a number", identify({"msg_timeout": "1000"})),
    Case("IDENTIFY with a short heartbeat", identify({"heartbeat_interval": 999})),
    Case("IDENTIFY with a long heartbeat", identify({"heartbeat_interval": 60_001})),
    Case("IDENTIFY with a heartbeat below zero", identify({"heartbeat_interval": -2})),
    Case("IDENTIFY with a small buffer", identify({"output_buffer_size": 63})),
    Case("IDENTIFY with a large buffer", identify({"output_buffer_size": 1 << 20})),
    Case("IDENTIFY with a short buffer timeout", identify({"output_buffer_timeout": -2})),
    Case("IDENTIFY with a long buffer timeout", identify({"output_buffer_timeout": 30_001})),
    Case("IDENTIFY with a sample rate above 99", identify({"sample_rate": 100})),
    Case("IDENTIFY with a sample rate below zero", identify({"sample_rate": -1})),
    Case("IDENTIFY with a short message timeout", identify({"msg_timeout": 999})),
    Case("IDENTIFY with a long message timeout", identify({"msg_timeout": 900_001})),
]


def topic_of(number: int) -> bytes:
    return b"topic%d" % number


async def transcript(address: str, case: Case, number: int) -> list[str]:
    """The frames that come, and whether the connection is open at the end."""
    wire = await Wire.open(address, magic=case.magic)
    wire.send(case.data.replace(b"{t}", topic_of(number)))
    lines: list[str] = []
    try:
        while True:
            async with asyncio.timeout(SILENCE_S):
                frame = await wire.frame()
            kind = {ERROR: "error", MESSAGE: "message"}.get(frame.type, "response")
            lines.append(f"{kind} {frame.data.decode(errors='backslashreplace')}")
    except TimeoutError:
        lines.append("open")
    except (asyncio.IncompleteReadError, ConnectionError):
        lines.append("closed")
    finally:
        wire.close()
    return lines


async def transcripts(address: str) -> dict[str, list[str]]:
    """Of all cases, which run side by side."""
    all_lines = await asyncio.gather(
        *(transcript(address, case, number) for number, case in enumerate(CASES))
    )
    return {case.name: lines for case, lines in zip(CASES, all_lines, strict=True)}


def nsqd(folder: Path) -> NsqdProcess:
    return NsqdProcess(folder, *LIMITS)


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder, nsqd(Path(folder)) as process:
        recorded = asyncio.run(transcripts(process.tcp_address))
    lines = [f" {json.dumps(name)}: {json.dumps(frames)}" for name, frames in recorded.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _record()
