r"""NSQ's TCP protocol V2, the broker's side, without I/O.

Bytes in, commands out.  A command is a line, of words divided by single spaces, and for some a
body behind its size::

    "  V2"                     once, before all else
    IDENTIFY\n | size u32 | JSON
    SUB topic channel\n        RDY count\n     CLS\n     NOP\n
    FIN id\n                   REQ id delay_ms\n         TOUCH id\n
    PUB topic\n | size u32 | body
    DPUB topic delay_ms\n | size u32 | body
    MPUB topic\n | size u32 | count u32 | count x (size u32 | body)
    AUTH\n | size u32 | secret

A client that has said ``"martlet": true`` in IDENTIFY may also say::

    SEND topic\n | size u32 | options size u32 | JSON | properties size u32 | properties |
        count u32 | count x (size u32 | body)
    CALL number method\n | size u32 | JSON
    STARTED id\n

and gets frames of two more types: properties (see `martlet.properties.model`) before the messages
that have them, and the answers to its calls, ``number u32 | JSON size u32 | JSON | data``.

One that has said ``"martlet_started": true`` too learns, by a frame of the type CHANNEL, whether
its channel counts failures (``{"max_attempts": n}``, -1 for no limit, 0 where it does not), behind
the answer to SUB where it does and whenever that changes.  As long as it does, the client says
STARTED before it begins to handle messages: that one and all that were delivered to it before are
started.  Should it be lost, or their time run out, those have failed, and no others; what has
failed before comes with properties of the broker's, ``failures`` and ``suspect``.

What is sent back is a frame, ``size u32 | type u32 | data``, size counting the type too.
What a connection may say, and when, is the table `ALLOWED`.
Errors carry nsqd's codes and texts; after a fatal one the connection is closed.
Source: https://nsq.io/clients/tcp_protocol_spec.html and nsqd's behaviour.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from martlet.protocol.nsq.bulk import Bytes, Ids

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
NSQD_VERSION = "1.3.0"
"""The version of nsqd whose behaviour this is; clients and dashboards compare it."""
MAX_LINE_BYTES = 16 * 1024
"""Including the newline."""

_FRAME = struct.Struct(">II")


class FrameType(IntEnum):
    """What a frame is."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2
    PROPERTIES = 16
    """What the messages right behind it carry."""
    ANSWER = 17
    """To a call."""
    CHANNEL = 18
    """What a consumer has to know of its channel."""


def frame(type: FrameType, data: bytes) -> bytes:
    """A frame, ready to be sent."""
    return _FRAME.pack(len(data) + 4, type) + data


OK = frame(FrameType.RESPONSE, b"OK")
CLOSE_WAIT = frame(FrameType.RESPONSE, b"CLOSE_WAIT")
HEARTBEAT_FRAME = frame(FrameType.RESPONSE, HEARTBEAT)


class ParserState(IntEnum):
    """Where a connection is in its life, by nsqd's numbers."""

    INIT = 0
    SUBSCRIBED = 3
    CLOSING = 4


ALLOWED: dict[bytes, frozenset[ParserState]] = {
    b"IDENTIFY": frozenset({ParserState.INIT}),
    b"AUTH": frozenset({ParserState.INIT}),
    b"SUB": frozenset({ParserState.INIT}),
    b"RDY": frozenset({ParserState.SUBSCRIBED, ParserState.CLOSING}),
    b"FIN": frozenset({ParserState.SUBSCRIBED, ParserState.CLOSING}),
    b"REQ": frozenset({ParserState.SUBSCRIBED, ParserState.CLOSING}),
    b"TOUCH": frozenset({ParserState.SUBSCRIBED, ParserState.CLOSING}),
    b"CLS": frozenset({ParserState.SUBSCRIBED}),
    b"NOP": frozenset(ParserState),
    b"PUB": frozenset(ParserState),
    b"MPUB": frozenset(ParserState),
    b"DPUB": frozenset(ParserState),
    b"SEND": frozenset(ParserState),
    b"CALL": frozenset(ParserState),
    b"STARTED": frozenset({ParserState.SUBSCRIBED, ParserState.CLOSING}),
}
EXTENSIONS = frozenset({b"SEND", b"CALL", b"STARTED"})
"""Commands of Martlet's own clients."""
EXTENSION_VERSION = 2
"""2: STARTED."""


class ProtocolError(Exception):
    """A client's mistake.

    Attributes:
        code: nsqd's code, such as ``E_INVALID``.
        fatal: whether the connection is to be closed.
    """

    def __init__(self, code: str, text: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.fatal = fatal

    def frame(self) -> bytes:
        """The error as a frame."""
        return frame(FrameType.ERROR, str(self).encode("utf-8", "surrogateescape"))


class LineTooLong(Exception):
    """A command line without an end. As nsqd does, the connection is closed without a word."""


class IdentifyCommand(NamedTuple):
    """IDENTIFY, its JSON read."""

    fields: dict[str, object]


class Auth(NamedTuple):
    """AUTH with its secret."""

    secret: bytes


class Subscribe(NamedTuple):
    """SUB; the names are not checked yet."""

    topic: str
    channel: str


class Ready(NamedTuple):
    """RDY."""

    count: int  # type: ignore[assignment]  # a tuple has a method of that name


class Finish(NamedTuple):
    """FIN of one message."""

    id: bytes


class FinishRun(NamedTuple):
    """FINs of many messages: ``uint64[n]``, the ids' numbers."""

    ids: Ids


class RequeueCommand(NamedTuple):
    """REQ."""

    id: bytes
    delay_ms: int


class Touch(NamedTuple):
    """TOUCH."""

    id: bytes


class StartedCommand(NamedTuple):
    """STARTED."""

    id: bytes


class PublishCommand(NamedTuple):
    """PUB, MPUB or DPUB, or a run of PUBs.

    Attributes:
        verb: which.
        topic: whose name is valid.
        bodies: a list, or a matrix of bodies of one size; views of the receive buffer.
        commands: how many commands it was, each of which wants its answer.
        delay_ms: of a DPUB, None else.
    """

    verb: str
    topic: str
    bodies: list[bytes] | Bytes
    commands: int
    delay_ms: int | None


class SendCommand(NamedTuple):
    """SEND.

    Attributes:
        topic: whose name is valid.
        options: how it is to be sent; not checked yet.
        bodies: as of `PublishCommand`.
        properties: of the messages that have any, by their numbers, packed.
    """

    topic: str
    options: dict[str, object]
    bodies: list[bytes] | Bytes
    properties: Sequence[tuple[int, bytes]]


class Call(NamedTuple):
    """CALL.

    Attributes:
        number: by which the client knows the answer.
        method: what is to be done; not checked yet.
        fields: with what.
    """

    number: int
    method: str
    fields: dict[str, object]


class Close(NamedTuple):
    """CLS."""


class Nop(NamedTuple):
    """NOP."""


Answer = Finish | FinishRun | RequeueCommand | Touch | StartedCommand
Command = (
    IdentifyCommand
    | Auth
    | Subscribe
    | Ready
    | Answer
    | PublishCommand
    | SendCommand
    | Call
    | Close
    | Nop
)


class ProtocolLimits(NamedTuple):
    """What a client may send at most."""

    max_rdy_count: int
    max_msg_size: int
    max_body_size: int
    max_req_timeout_ms: int


_ANSWER = struct.Struct(">IIII")


def answer(number: int, fields: bytes, data: bytes = b"") -> bytes:
    """The frame that answers a call: JSON, and whatever bytes belong to it."""
    size = 12 + len(fields) + len(data)
    return _ANSWER.pack(size, FrameType.ANSWER, number, len(fields)) + fields + data


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def quoted(word: bytes) -> str:
    """A word as Go quotes it, in whose errors nsqd shows names."""
    shown = []
    for letter in word.decode("utf-8", "surrogateescape"):
        code = ord(letter)
        if code in _ESCAPES:
            shown.append("\\" + _ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            shown.append(f"\\x{code - 0xDC00:02x}")
        elif letter.isprintable():
            shown.append(letter)
        elif code < 0x7F:
            shown.append(f"\\x{code:02x}")
        else:
            shown.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return '"' + "".join(shown) + '"'
