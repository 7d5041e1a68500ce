"""Frames as a client receives them: bytes in, replies and runs of messages out; no sockets.

Everything that an NSQ broker sends is a frame, big-endian::

     0 size u32 | 4 type u32 | 8 data      the size counts the type and the data

    type 0 response, 1 error, 2 message; if the client has asked a Martlet broker for them:
         16 properties of the messages behind it, 17 answer to a call, 18 settings of the channel

Messages (see `martlet.protocol.nsq.message_run`) arrive in runs: a broker answers a ready count
with as many frames as it has. So a run is kept as the received bytes with the ends of its frames,
and no message object is made before the consumer reads it. If all frames of a run have one size,
the run is a 2-D array, and its ends are not searched one by one: if the sixteenth frame has the
header of the first, a single numpy comparison of the headers at that stride counts the frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Self

import numpy as np

from martlet.protocol.nsq.message_run import FRAME_HEADER_BYTES, FRAME_SIZE_EXTRA, MessageRun

RESPONSE, ERROR, MESSAGE = range(3)
PROPERTIES, ANSWER, CHANNEL = 16, 17, 18
_KNOWN = frozenset({RESPONSE, ERROR, MESSAGE, PROPERTIES, ANSWER, CHANNEL})
TCP_PORTS = {"broker": 4150, "lookup daemon": 4160}
"""The default port of each kind of server for NSQ's protocol."""
HEADER_BYTES = 8
"""The bytes of a frame's size and type."""
SPACE_BYTES = 256 * 1024
"""The size of a splitter's receive buffer, unless a frame needs more."""
MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The default limit of a frame, in bytes: far above a broker's default of 1 MiB a message, and far
below the size that garbage in the size field would request.
"""

_LEAP = 16
_REPROBE = 64
_unpack_header = Struct(">II").unpack_from


_HTTP = int.from_bytes(b"HTTP")
"""The size that an HTTP server's answer seems to have, read as a frame."""


def http_answered(server: str = "broker") -> str:
    """Return the error text for HTTP answered to NSQ's protocol, with the remedy."""
    port = f"whose port is usually {TCP_PORTS[server]}"
    return f"that is an HTTP port; give the {server}'s TCP address, {port}"


class BadFrame(Exception):
    """The received bytes are not a frame; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Response:
    """A reply: ``OK``, ``_heartbeat_``, ``CLOSE_WAIT`` or JSON."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error: a code, and after a space the text."""

    data: bytes

    @property
    def code(self) -> str:
        """The code, such as ``E_BAD_TOPIC``."""
        return self.data.split(b" ", 1)[0].decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """The text behind the code."""
        return self.data.partition(b" ")[2].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Carried:
    """The properties of the messages right behind: a `martlet.properties.block`."""

    data: bytes


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer to a call: ``number u32 | JSON size u32 | JSON | bytes``."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ChannelNews:
    """Settings of the consumer's channel: JSON."""

    data: bytes


Piece = Response | ErrorReply | MessageRun | Carried | CallAnswer | ChannelNews
_PIECES: dict[int, type[Response | ErrorReply | Carried | CallAnswer | ChannelNews]] = {
    RESPONSE: Response,
    ERROR: ErrorReply,
    PROPERTIES: Carried,
    ANSWER: CallAnswer,
    CHANNEL: ChannelNews,
}


class FrameSplitter:
    """Splits received bytes into frames.

    Receive into ``space()``, then pass the number of bytes to ``received``, which returns the
    pieces that are now complete, in order. Or pass bytes to ``feed``, or all of them to ``over``.
    """

    def __init__(
        self, *, space_bytes: int = SPACE_BYTES, max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._space_bytes = max(space_bytes, 2 * HEADER_BYTES)
        self._max_frame_bytes = max_frame_bytes
        self._buffer: bytearray | memoryview = bytearray(self._space_bytes)
        self._view = memoryview(self._buffer)
        self._filled = 0

    @classmethod
    def over(cls, data: bytes | memoryview) -> Self:
        """Make one of bytes as if received, not copied; pass their number to ``received``."""
        splitter = cls(space_bytes=0)
        splitter._buffer = splitter._view = memoryview(data).toreadonly()
        return splitter

    @property
    def pending_bytes(self) -> int:
        """Received bytes that are no complete frame yet."""
        return self._filled

    def space(self) -> memoryview:
        """Return the receive buffer; never empty. Valid until the next call of ``received``."""
        return self._view[self._filled :]

    def feed(self, data: bytes | memoryview) -> list[Piece]:
        """Append data and return the pieces that are complete now.

        Raises:
            BadFrame: the bytes are not a frame.
        """
        pieces: list[Piece] = []
        rest = memoryview(data)
        while rest.nbytes:
            space = self.space()
            piece = rest[: space.nbytes]
            space[: piece.nbytes] = piece
            space.release()
            rest = rest[piece.nbytes :]
            pieces += self.received(piece.nbytes)
        return pieces

    def received(self, nbytes: int) -> list[Piece]:
        """Return the pieces that are complete now that `nbytes` of ``space()`` were filled.

        Raises:
            BadFrame: the bytes are not a frame; the connection is unusable.
        """
        pieces: list[Piece] = []
        buffer = self._buffer
        end = self._filled + nbytes
        position = 0
        needed = 0
        while end - position >= HEADER_BYTES:
            size, kind = _unpack_header(buffer, position)
            if (kind > MESSAGE and kind not in _KNOWN) or not 4 <= size <= self._max_frame_bytes:
                raise BadFrame(self._what_is_wrong(size, kind))
            if kind == MESSAGE and size < FRAME_SIZE_EXTRA:
                raise BadFrame(f"a message frame of size {size}: the minimum is {FRAME_SIZE_EXTRA}")
            stop = position + 4 + size
            if stop > end:
                needed = stop - position
                break
            if kind == MESSAGE:
                position = self._cut_messages(pieces, position, end)
            else:
                data = bytes(self._view[position + HEADER_BYTES : stop])
                pieces.append(_PIECES[kind](data))
                position = stop
        self._keep(position, end, needed)
        return pieces

    def _what_is_wrong(self, size: int, kind: int) -> str:
        if size == _HTTP:
            return http_answered()
        if kind not in _KNOWN:
            return (
                f"a frame of unknown type {kind} (size {size}): is this an NSQ broker's TCP port?"
            )
        if size < 4:
            return f"a frame of size {size}: the minimum is 4"
        return f"a frame of {size} bytes, above the limit max_frame_bytes={self._max_frame_bytes}"

    def _keep(self, position: int, end: int, needed: int) -> None:
        """Move the incomplete frame to the front, with space for the rest of it."""
        left = end - position
        capacity = max(needed, self._space_bytes)
        if capacity != len(self._buffer) or self._view.readonly:
            grown = bytearray(capacity)
            grown[:left] = self._view[position:end]
            self._buffer = grown
            self._view = memoryview(grown)
        elif position and left:
            self._view[:left] = self._view[position:end]
        self._filled = left

    def _cut_messages(self, pieces: list[Piece], position: int, end: int) -> int:
        """Append the run of message frames that starts here, and return where it ends.

        The first frame is known to be a complete message.
        """
        length = 4 + int.from_bytes(self._buffer[position : position + 4], "big")
        count = self._leap(position, end, length)
        if count:
            stop = position + count * length
            pieces.append(MessageRun.uniform(bytes(self._view[position:stop]), length))
            return stop
        ends, uniform = self._walk(position, end)
        stop = position + ends[-1]
        raw = bytes(self._view[position:stop])
        pieces.append(MessageRun.uniform(raw, length) if uniform else MessageRun(raw, ends))
        return stop

    def _leap(self, position: int, end: int, length: int) -> int:
        """Return how many frames of this length start here: 0 or at least ``_LEAP``."""
        max_count = (end - position) // length
        far = position + (_LEAP - 1) * length
        buffer = self._buffer
        if (
            max_count < _LEAP
            or buffer[far : far + HEADER_BYTES] != buffer[position : position + HEADER_BYTES]
        ):
            return 0
        headers = np.ndarray((max_count,), "=u8", buffer, offset=position, strides=(length,))
        same = headers == headers[0]
        count = max_count if same.all() else int(same.argmin())
        return count if count >= _LEAP else 0

    def _walk(self, position: int, end: int) -> tuple[Sequence[int], bool]:
        """Return the ends of the message frames from here, and whether they have one size.

        Stops behind the last complete one, before a frame of another type or a bad one, and where a
        long run of one size begins.
        """
        buffer = self._buffer
        limit = end - HEADER_BYTES
        start = position
        ends: list[int] = []
        max_count = self._max_frame_bytes
        size, kind = _unpack_header(buffer, position)
        first = size
        uniform = True
        while kind == MESSAGE and FRAME_SIZE_EXTRA <= size <= max_count:
            stop = position + 4 + size
            if stop > end:
                break
            ends.append(stop - start)
            uniform = uniform and size == first
            position = stop
            if position > limit:
                break
            size, kind = _unpack_header(buffer, position)
            if len(ends) % _REPROBE == 0 and self._leap(position, end, 4 + size):
                break
        return ends, uniform


assert FRAME_HEADER_BYTES == HEADER_BYTES + 26
