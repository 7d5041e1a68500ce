"""The frames between replicas.

A standby connects to the primary; all frames of a connection are of one epoch::

     0 magic "MTLR" | 4 crc32c of bytes 8..40, and of the body but DATA's | 8 body length u32
    12 kind u8 | 13 flags u8 | 14 version u16
    16 epoch u64 | 24 position u64 | 32 second position u64 | 40 body

    standby -> primary                          primary -> standby
    HELLO   its epochs, its segments            WELCOME  the primary's epochs and segments
    FETCH   from position on, in segment        SEGMENT  at position, of this capacity
    ACK     written up to, durable up to        DATA     bytes at position; confirmed up to
    REPAIR  bytes from position up to           DAMAGED  the same, but no replica has them good
                                                BEAT     end of the log; confirmed up to
                                                PIECE    the bytes that REPAIR asked for
                          FENCED: the epoch is over, or another one
    SPLICE  the address of a client         SPLICED  what follows are that client's bytes

A candidate asks with FETCH, too: the standby with the longest log sends it SEGMENT and DATA.
DATA has no checksum, since each record has its own. All numbers are little-endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from crc32c import crc32c

from martlet.log.epochs import EpochRange

VERSION = 1
MAGIC = 0x524C544D
HEADER = struct.Struct("<III BBH QQQ")
MAX_GREETING_BYTES = 4 << 20
"""The maximum of the body of HELLO and WELCOME, in bytes: some 100,000 segments."""
MAX_BODY_BYTES = 64 << 20
"""The maximum of one frame's body, in bytes."""
_FENCED_BYTES = slice(8, HEADER.size)
"""What the checksum covers of the header."""


class FrameRefused(Exception):
    """Bytes that are no frame; the connection is closed. The text says what is wrong."""


class FrameKind(IntEnum):
    """What a frame is for."""

    HELLO = 1
    WELCOME = 2
    FETCH = 3
    SEGMENT = 4
    DATA = 5
    DAMAGED = 6
    ACK = 7
    BEAT = 8
    REPAIR = 9
    PIECE = 10
    FENCED = 11
    SPLICE = 12
    SPLICED = 13


CLIENT_SPEAKS_HTTP = 1
CLIENT_IS_OPERATOR = 2
"""The first position of a SPLICE for a request over HTTP, and for one of which the standby has
checked that its client is an operator; 0 is NSQ's protocol. There the second position says whether
its client is an operator by its connection to the standby: earlier versions took any other first
position for HTTP.
"""


class Frame(NamedTuple):
    """A frame; what its positions mean depends on the kind."""

    kind: FrameKind
    epoch: int
    position: int = 0
    """Of the data or the segment, or behind what is written."""
    second: int = 0
    """The second position: confirmed, durable, the end of a range, or the capacity."""
    body: bytes | memoryview = b""
    is_whole: bool = True
    """Of an ACK: the replica may be counted. Of a WELCOME: it lacks nothing that it acknowledged in
    this epoch.
    """

    def pack_header(self) -> bytes:
        """Return the header, which the body follows."""
        header = bytearray(HEADER.size)
        HEADER.pack_into(
            header, 0, MAGIC, 0, len(self.body), self.kind, self.is_whole, VERSION,
            self.epoch, self.position, self.second,
        )  # fmt: skip
        checksum = crc32c(header[_FENCED_BYTES])
        if self.kind != FrameKind.DATA:
            checksum = crc32c(self.body, checksum)
        struct.pack_into("<I", header, 4, checksum)
        return bytes(header)


class FrameReader:
    """Splits the bytes of a connection into frames.

    A DATA frame comes out in pieces, so that its bytes need not be gathered first: as DATA frames,
    each with the position of its own bytes. All others come out whole.

    Args:
        max_body_bytes: the maximum of one frame's body; it may be changed between frames.
    """

    def __init__(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self.max_body_bytes = max_body_bytes
        self._begun = bytearray()
        """The beginning of a frame."""
        self._needed = HEADER.size
        """The number of bytes without which there is no frame."""
        self._data: Frame | None = None
        """What comes next of a DATA frame, without its bytes."""
        self._left = 0
        """The number of those bytes."""

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Take in the next bytes, of any length. Returns the complete frames, and the pieces of a
        DATA frame; their bodies may be views of `data`. Raises FrameRefused; the frames before the
        bad one are lost with it.
        """
        received = memoryview(data)
        frames: list[Frame] = []
        while received:
            if self._data is not None:
                used = self._take_data(self._data, received, frames)
            elif self._begun:
                used = min(len(received), self._needed - len(self._begun))
                self._begun += received[:used]
                self._end_begun(frames)
            else:
                used = self._take_frame(received, frames)
                if not used:
                    self._begun += received
                    break
            received = received[used:]
        assert not self._begun or len(self._begun) < self._needed
        return frames

    def _take_data(self, data: Frame, received: memoryview, frames: list[Frame]) -> int:
        body = received[: self._left]
        frames.append(data._replace(body=body))
        self._left -= len(body)
        self._data = data._replace(position=data.position + len(body)) if self._left else None
        return len(body)

    def _end_begun(self, frames: list[Frame]) -> None:
        if len(self._begun) < self._needed:
            return
        begun, self._begun = self._begun, bytearray()
        if not self._take_frame(memoryview(begun), frames):
            self._begun = begun  # Its header is whole, and its body is not.

    def _take_frame(self, received: memoryview, frames: list[Frame]) -> int:
        """Take in one frame, or the header of a DATA frame. Returns its length; 0 where it is not
        whole.
        """
        self._needed = HEADER.size
        if len(received) < HEADER.size:
            return 0
        length: int
        magic, checksum, length, kind, flags, version, epoch, position, second = HEADER.unpack_from(
            received
        )
        if magic != MAGIC:
            raise FrameRefused("what was received is no frame of a Martlet replica")
        if version != VERSION:
            raise FrameRefused(f"a frame of version {version}, where this replica speaks {VERSION}")
        if length > self.max_body_bytes:
            raise FrameRefused(f"a body of {length} bytes; the maximum is {self.max_body_bytes}")
        computed = crc32c(received[_FENCED_BYTES])
        is_piecewise = kind == FrameKind.DATA and length > 0
        if kind != FrameKind.DATA:
            if len(received) < HEADER.size + length:
                self._needed = HEADER.size + length
                return 0
            computed = crc32c(received[HEADER.size : HEADER.size + length], computed)
        if computed != checksum:
            raise FrameRefused(f"a frame of kind {kind} with a wrong checksum")
        try:
            frame = Frame(FrameKind(kind), epoch, position, second, is_whole=bool(flags & 1))
        except ValueError:
            raise FrameRefused(f"a frame of an unknown kind, {kind}") from None
        if is_piecewise:
            self._data, self._left = frame, length
            return HEADER.size
        frames.append(frame._replace(body=received[HEADER.size : HEADER.size + length]))
        return HEADER.size + length


@dataclass(frozen=True)
class ReplicaGreeting:
    """What a replica says of its log in HELLO and WELCOME."""

    broker: str
    replica: str
    epochs: Sequence[EpochRange]
    """Oldest first."""
    segments: Sequence[tuple[int, int]]
    """(base, capacity) of each segment."""
    is_whole: bool = True
    """It has all that it ever acknowledged."""
    damaged: Sequence[tuple[int, int]] = ()
    """(start, end) of each damaged range."""
    instance: str = ""
    """Its process; empty where it is of an earlier version."""

    @property
    def rank(self) -> tuple[int, int]:
        """The epoch and the end of the last record: the greatest log wins an election."""
        if not self.epochs:
            return 0, 0
        return self.epochs[-1].epoch, self.epochs[-1].end

    def pack(self) -> bytes:
        """Return the body of a frame."""
        return json.dumps(
            {
                "broker": self.broker,
                "replica": self.replica,
                "epochs": [(epoch.epoch, epoch.start, epoch.end) for epoch in self.epochs],
                "segments": list(self.segments),
                "is_whole": self.is_whole,
                "damaged": list(self.damaged),
                "instance": self.instance,
            }
        ).encode()

    @classmethod
    def unpack(cls, body: bytes | memoryview) -> ReplicaGreeting:
        """Read the body of a frame. Raises FrameRefused."""
        if len(body) > MAX_GREETING_BYTES:
            raise FrameRefused(
                f"a greeting of {len(body)} bytes; the maximum is {MAX_GREETING_BYTES}"
            )
        try:
            fields: dict[str, Any] = json.loads(bytes(body))
            return cls(
                str(fields["broker"]),
                str(fields["replica"]),
                [EpochRange(*_numbers(epoch, 3)) for epoch in fields["epochs"]],
                [(base, capacity) for base, capacity in map(_pair, fields["segments"])],
                fields["is_whole"] is True,
                [(start, end) for start, end in map(_pair, fields["damaged"])],
                str(fields.get("instance", "")),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FrameRefused(f"a greeting that cannot be read: {error!r}") from error


def _numbers(values: Sequence[Any], count: int) -> list[int]:
    if len(values) != count or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values!r} where {count} numbers belong")
    return list(values)


def _pair(values: Sequence[Any]) -> tuple[int, int]:
    first, second = _numbers(values, 2)
    return first, second
