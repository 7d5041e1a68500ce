r"""NSQ's TCP protocol V2: commands, frames and errors, without I/O.

A command is a line of words divided by single spaces; some have a body behind its size,
big-endian::

    "  V2"                     once, before all else
    IDENTIFY\n | size u32 | JSON
    SUB topic channel\n        RDY count\n     CLS\n     NOP\n
    FIN id\n                   REQ id delay_ms\n         TOUCH id\n
    PUB topic\n | size u32 | body
    DPUB topic delay_ms\n | size u32 | body
    MPUB topic\n | size u32 | count u32 | count x (size u32 | body)
    AUTH\n | size u32 | secret

A client that has sent ``"martlet": true`` in IDENTIFY may also send::

    SEND topic\n | size u32 | options size u32 | JSON | properties size u32 | properties |
        count u32 | count x (size u32 | body)
    CALL number method\n | size u32 | JSON
    STARTED id\n

and gets frames of two more types: properties (see `martlet.properties.block`) before the messages
that have them, and the answers to its calls.

A client that has also sent ``"martlet_started": true`` gets a frame of the type CHANNEL that says
whether its channel counts failures (``{"max_attempts": n}``, -1 for no limit, 0 where it does not):
behind the answer to SUB where it does, and whenever that changes. As long as the channel does, the
client sends STARTED before it begins to handle a message: this one and all delivered before it
count as started. If the client is lost, or messages time out, only started ones have failed. A
message that failed before is delivered with the broker's properties ``failures`` and ``suspect``.

A client that has sent ``"martlet_in_order": true`` too handles the messages of each queue one after
the other, and its STARTED is of one message. Behind the answer to SUB, a CHANNEL frame
``{"id_base": n}`` says which queue a message is of: ``(id - n mod 2^64) >> 54``. A channel ordered
by queue sends it several messages of a queue at a time. When the client answers one by anything but
FIN, it drops all others that it has of the queue, and those that come until the frame
``{"recalled": queue}``; the broker redelivers them. The broker sends that frame also when a message
times out. The timeout of a message begins when the one before it is finished.

The broker sends frames, big-endian; the size counts the type and the data::

     0 size u32 | 4 type u32 | 8 data

    type  0 response    OK, _heartbeat_, CLOSE_WAIT or JSON
          1 error       code, a space, text
          2 message     timestamp i64 ns | attempts u16 | id 16 | body
         16 properties  a block, of the messages right behind it
         17 answer      number u32 | JSON size u32 | JSON | data
         18 channel     JSON

The table `ALLOWED` says which commands a connection may send in which state. Errors have nsqd's
codes and texts; after a fatal one the connection is closed.
Source: https://nsq.io/clients/tcp_protocol_spec.html and nsqd's behaviour.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from martlet.native.raw_bodies import Bodies
from martlet.protocol.nsq.bulk import Ids

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
NSQD_VERSION = "1.3.0"
"""The version of nsqd whose behaviour this is; clients and dashboards compare it."""
MAX_LINE_BYTES = 16 * 1024
"""Including the newline."""

_FRAME = struct.Struct(">II")


class FrameType(IntEnum):
    """The type of a frame."""

    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2
    PROPERTIES = 16
    """The properties of the messages right behind."""
    ANSWER = 17
    """The answer to a call."""
    CHANNEL = 18
    """Settings of the consumer's channel."""


def frame(type: FrameType, data: bytes) -> bytes:
    """Encode a frame."""
    return _FRAME.pack(len(data) + 4, type) + data


def channel_frame(**fields: int) -> bytes:
    """Encode a CHANNEL frame with these fields."""
    return frame(FrameType.CHANNEL, json.dumps(fields, separators=(",", ":")).encode())


OK = frame(FrameType.RESPONSE, b"OK")
CLOSE_WAIT = frame(FrameType.RESPONSE, b"CLOSE_WAIT")
HEARTBEAT_FRAME = frame(FrameType.RESPONSE, HEARTBEAT)


class ParserState(IntEnum):
    """The state of a connection, by nsqd's numbers."""

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
EXTENSION_VERSION = 4
"""2: STARTED. 3: ``claim_ms`` of SEND. 4: ``commit`` of SEND."""


class ProtocolError(Exception):
    """A client's mistake, by nsqd's code, such as ``E_INVALID``; a fatal one disconnects it."""

    def __init__(self, code: str, text: str, *, fatal: bool = True) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.fatal = fatal

    def frame(self) -> bytes:
        """Encode the error as a frame."""
        return frame(FrameType.ERROR, str(self).encode("utf-8", "surrogateescape"))


class LineTooLong(Exception):
    """A command line without an end. The connection is closed without an answer, as in nsqd."""


class IdentifyCommand(NamedTuple):
    """IDENTIFY, with its JSON parsed."""

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
    """PUB, MPUB or DPUB, or a run of PUBs, to a topic of a valid name."""

    verb: str
    topic: str
    bodies: Bodies
    """Unless in a list, views of the receive buffer."""
    commands: int
    """Their number; each gets an answer."""
    delay_ms: int | None
    """Of a DPUB."""


class SendCommand(NamedTuple):
    """SEND to a topic of a valid name; its options are not checked yet."""

    topic: str
    options: dict[str, object]
    bodies: Bodies
    properties: Sequence[tuple[int, bytes]]
    """Packed, by number, of the messages that have any."""


class Call(NamedTuple):
    """CALL of a method by its name, which is not checked yet."""

    number: int
    """Repeated in the answer."""
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
    """The limits of what a client may send."""

    max_rdy_count: int
    max_msg_size: int
    max_body_size: int
    max_req_timeout_ms: int


_ANSWER = struct.Struct(">IIII")


def answer(number: int, fields: bytes, data: bytes = b"") -> bytes:
    """Encode the frame that answers a call: JSON, and bytes that belong to it."""
    size = 12 + len(fields) + len(data)
    return _ANSWER.pack(size, FrameType.ANSWER, number, len(fields)) + fields + data


_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def quoted(word: bytes) -> str:
    """Quote a word as Go does, since nsqd's errors show names that way."""
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
