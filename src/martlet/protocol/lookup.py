r"""The protocol of nsqlookupd, V1: how brokers register their topics and channels.

::

    client:  "  V1"  then commands, each a line; IDENTIFY has a body
             IDENTIFY\n  size i32  JSON          its addresses, ports, version
             REGISTER topic [channel]\n           add them
             UNREGISTER topic [channel]\n         remove them
             PING\n                               keep-alive, every 15 s
    server:  size i32  data                       "OK", JSON for IDENTIFY, or an error's text

Each command has one answer, in order.  Every error closes the connection.  Numbers are big-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from martlet.protocol.nsq.v2 import ProtocolError

MAGIC = b"  V1"
OK = b"OK"
MAX_LINE_BYTES = 4096
MAX_BODY_BYTES = 1 << 20
_SIZE = struct.Struct(">i")


class LookupIdentify(NamedTuple):
    """IDENTIFY, with its JSON parsed."""

    fields: dict[str, object]


class Register(NamedTuple):
    """REGISTER; the channel is empty for none."""

    topic: str
    channel: str


class Unregister(NamedTuple):
    """UNREGISTER; the channel is empty for none."""

    topic: str
    channel: str


class Ping(NamedTuple):
    """PING."""


Command = LookupIdentify | Register | Unregister | Ping
_PING = Ping()


class LookupDecoder:
    """Decodes the commands of a broker from received bytes.

    Args:
        is_valid_name: the rule for names of topics and channels.
    """

    def __init__(self, is_valid_name: Callable[[str], bool]) -> None:
        self._is_valid_name = is_valid_name
        self._buffer = bytearray()
        self._greeted = False
        self.identified = False
        """Whether the broker has identified itself; the caller sets it after IDENTIFY."""

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    @property
    def has_begun(self) -> bool:
        """Whether the beginning of a command was received, and not yet its end."""
        return bool(self._buffer)

    def next(self) -> Command | None:
        """Return the next command; None while it is incomplete.

        Raises:
            ProtocolError: with the text to answer before the connection is closed.
        """
        buffer = self._buffer
        if not self._greeted:
            if not MAGIC.startswith(bytes(buffer[: len(MAGIC)])):
                raise ProtocolError("E_BAD_PROTOCOL", "")
            if len(buffer) < len(MAGIC):
                return None
            self._greeted = True
            del buffer[: len(MAGIC)]
        newline = buffer.find(b"\n", 0, MAX_LINE_BYTES)
        if newline < 0:
            if len(buffer) >= MAX_LINE_BYTES:
                raise ProtocolError("E_INVALID", f"no newline in {MAX_LINE_BYTES} bytes")
            return None
        words = bytes(buffer[:newline]).decode("utf-8", "replace").strip().split(" ")
        if words[0] == "IDENTIFY":
            return self._identify(newline + 1)
        del buffer[: newline + 1]
        if words[0] == "PING":
            return _PING
        if words[0] in ("REGISTER", "UNREGISTER"):
            if not self.identified:
                raise ProtocolError("E_INVALID", "client must IDENTIFY")
            topic, channel = self._names(words[0], words[1:])
            made = Register if words[0] == "REGISTER" else Unregister
            return made(topic, channel)
        raise ProtocolError("E_INVALID", f"invalid command {words[0]}")

    def _names(self, verb: str, names: list[str]) -> tuple[str, str]:
        if not names:
            raise ProtocolError("E_INVALID", f"{verb} insufficient number of params")
        topic, channel = names[0], names[1] if len(names) > 1 else ""
        if not self._is_valid_name(topic):
            raise ProtocolError("E_BAD_TOPIC", f"{verb} topic name '{topic}' is not valid")
        if channel and not self._is_valid_name(channel):
            raise ProtocolError("E_BAD_CHANNEL", f"{verb} channel name '{channel}' is not valid")
        return topic, channel

    def _identify(self, body_at: int) -> LookupIdentify | None:
        if self.identified:
            raise ProtocolError("E_INVALID", "cannot IDENTIFY again")
        buffer = self._buffer
        start = body_at + _SIZE.size
        if len(buffer) < start:
            return None
        (size,) = _SIZE.unpack_from(buffer, body_at)
        if not 0 <= size <= MAX_BODY_BYTES:
            text = f"IDENTIFY body size {size} out of range 0-{MAX_BODY_BYTES}"
            raise ProtocolError("E_BAD_BODY", text)
        if len(buffer) < start + size:
            return None
        body = bytes(buffer[start : start + size])
        del buffer[: start + size]
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
        return LookupIdentify(fields)


def answer(data: bytes) -> bytes:
    """Encode an answer."""
    return _SIZE.pack(len(data)) + data


def identify(fields: Mapping[str, object]) -> bytes:
    """Encode IDENTIFY."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    return b"IDENTIFY\n" + answer(body)


def register(topic: str, channel: str = "") -> bytes:
    """Encode REGISTER."""
    return f"REGISTER {topic} {channel}".rstrip().encode() + b"\n"


def unregister(topic: str, channel: str = "") -> bytes:
    """Encode UNREGISTER."""
    return f"UNREGISTER {topic} {channel}".rstrip().encode() + b"\n"


PING = b"PING\n"
