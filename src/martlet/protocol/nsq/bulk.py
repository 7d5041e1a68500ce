r"""Runs: many commands of one shape, recognised at once in the receive buffer.

The same shape repeats, so a run is a matrix over the buffer, one row a command::

    FIN, 21 bytes a row             PUB, head + size bytes a row
    | FIN_ | 16 hex digits | \n |   | PUB topic\n | size u32 | body |
    | FIN_ | 16 hex digits | \n |   | PUB topic\n | size u32 | body |

A comparison of the constant columns says how far the run goes. Other commands are left to the
decoder of single commands.
"""

from __future__ import annotations

import binascii
import struct
from binascii import unhexlify
from itertools import repeat

import numpy as np
import numpy.typing as npt

from martlet.native.raw_bodies import Bodies, raw_bodies

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint64]

FINISH_BYTES = 21
MAX_FINISHES = 4096
MAX_PUBLISHES = 256
"""The maximum search length of a run: searching a buffer full of short runs would cost as much as
decoding it, and delay other connections.
"""
_FIRST_ROWS = 16
_FINISH_WORD = np.uint32(int.from_bytes(b"FIN ", "little"))
_NEWLINE = 10
_SIZE = struct.Struct(">I")


def finish_run(buffer: bytearray, at: int, end: int) -> Ids | None:
    """Return the ids of the FIN lines with hexadecimal ids that follow each other from `at` on.

    None where there are fewer than two: a single one is not worth the search for others.
    """
    second = at + FINISH_BYTES
    if buffer[second : second + 4] != b"FIN ":
        return None
    try:
        unhexlify(buffer[at + 4 : at + 20] + buffer[second + 4 : second + 20])
    except binascii.Error:
        return None  # Or each line of a long row of wrong ones would pay for all behind it.
    rows = min((end - at) // FINISH_BYTES, MAX_FINISHES)
    heads: npt.NDArray[np.uint32] = np.ndarray((rows,), "<u4", buffer, at, (FINISH_BYTES,))
    tails: Bytes = np.ndarray((rows,), np.uint8, buffer, at + FINISH_BYTES - 1, (FINISH_BYTES,))
    good = (heads == _FINISH_WORD) & (tails == _NEWLINE)
    count = rows if good.all() else int(good.argmin())
    if count < 2:
        return None
    digits: Bytes = np.ndarray((count, 16), np.uint8, buffer, at + 4, (FINISH_BYTES, 1))
    try:
        ids = unhexlify(digits.tobytes())
    except binascii.Error:
        count = _hexadecimal_rows(digits)
        if count < 2:
            return None
        ids = unhexlify(digits[:count].tobytes())
    return np.frombuffer(ids, ">u8").astype(np.uint64)


def _hexadecimal_rows(digits: Bytes) -> int:
    """Count the rows, from the first on, that consist of hexadecimal digits."""
    count, step = 0, _FIRST_ROWS
    while count < len(digits):
        piece = digits[count : count + step]
        letters = piece | 0x20
        good = ((piece >= 0x30) & (piece <= 0x39)) | ((letters >= 0x61) & (letters <= 0x66))
        rows = good.all(axis=1)
        if not rows.all():
            return count + int(rows.argmin())
        count += len(piece)
        step *= 4
    return count


def publish_run(
    buffer: bytearray, at: int, end: int, line_bytes: int, size: int, max_size: int
) -> tuple[Bodies, int]:
    """Return the bodies of consecutive publishes from `at` on that share the line of the first, and
    the byte behind the last.

    The first one has a body of `size` bytes. Without the compiled hot path all have that size.
    """
    raw = raw_bodies(buffer, at, end, MAX_PUBLISHES, line_bytes, max_size)
    if raw is not None:
        return raw, raw.end
    matrix = _uniform_run(buffer, at, end, line_bytes + 4, size)
    return matrix, at + len(matrix) * (line_bytes + 4 + size)


def _uniform_run(buffer: bytearray, at: int, end: int, head_bytes: int, size: int) -> Bytes:
    """Return the bodies of consecutive publishes from `at` on that share the head (the line and the
    size) of the first: ``uint8[count, size]``, a view of the buffer.
    """
    stride = head_bytes + size
    rows = min((end - at) // stride, MAX_PUBLISHES)
    if buffer[at + stride : at + stride + head_bytes] != buffer[at : at + head_bytes]:
        rows = 1
    heads: Bytes = np.ndarray((rows, head_bytes), np.uint8, buffer, at, (stride, 1))
    head = bytes(buffer[at : at + head_bytes])
    count = rows
    if heads.tobytes() != head * rows:
        same = (heads == np.frombuffer(head, np.uint8)).all(axis=1)
        count = int(same.argmin())
    return np.ndarray((count, size), np.uint8, buffer, at + head_bytes, (stride, 1))


def _uniform_bodies(buffer: bytearray, at: int, end: int, count: int) -> Bytes | None:
    """Return the bodies of an MPUB if all have one size: ``uint8[count, size]``, a view of the
    buffer.

    `at` is the offset of the first size.
    """
    size = (end - at) // count - 4
    if size < 1 or at + count * (size + 4) != end:
        return None
    sizes: Bytes = np.ndarray((count, 4), np.uint8, buffer, at, (size + 4, 1))
    if sizes.tobytes() != _SIZE.pack(size) * count:
        return None
    return np.ndarray((count, size), np.uint8, buffer, at + 4, (size + 4, 1))


def split_bodies(buffer: bytearray, at: int, end: int, count: int, max_size: int) -> Bodies | None:
    """Return the bodies of an MPUB; None where one is empty or larger than `max_size`, or the sizes
    do not add up to its end.

    `at` is the offset of the first size.
    """
    raw = raw_bodies(buffer, at, end, count, 0, max_size)
    if raw is not None:
        return raw if len(raw) == count and raw.end == end else None
    matrix = _uniform_bodies(buffer, at, end, count)
    if matrix is not None:
        return matrix if matrix.shape[1] <= max_size else None
    bodies = _listed_bodies(buffer, at, end, count)
    if bodies is None or not all(bodies):
        return None
    if end - at - 4 * count > max_size and max(map(len, bodies)) > max_size:
        return None
    return bodies


def whole_bodies(
    buffer: bytearray, at: int, end: int, max_count: int, max_size: int
) -> tuple[int, int]:
    """Return how many whole bodies of an MPUB follow each other from `at` on, and the byte behind
    them. They end before one that is not whole at `end`, is empty or larger than `max_size`.
    """
    raw = raw_bodies(buffer, at, end, max_count, 0, max_size)
    if raw is not None:
        return len(raw), raw.end
    count = 0
    unpack = _SIZE.unpack_from
    while count < max_count and at + 4 <= end:
        size = unpack(buffer, at)[0]
        if not 0 < size <= max_size or at + 4 + size > end:
            break
        at += 4 + size
        count += 1
    return count, at


def _listed_bodies(buffer: bytearray, at: int, end: int, count: int) -> list[bytes] | None:
    """Return the bodies of an MPUB; None where the sizes do not add up to its end."""
    data = bytes(memoryview(buffer)[at:end])
    bodies: list[bytes] = []
    add = bodies.append
    unpack = _SIZE.unpack_from
    stop = 0
    try:
        for _ in repeat(None, count):
            start = stop + 4
            stop = start + unpack(data, stop)[0]
            add(data[start:stop])
    except struct.error:
        return None
    return bodies if stop == len(data) else None
