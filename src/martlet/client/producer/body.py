"""Bodies as an application gives them: checked, and cut into what one command takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from martlet.client.errors import BadBody
from martlet.client.producer.limits import Limits
from martlet.protocol.nsq.commands import MPUB_EXTRA_BYTES

PIECE_MESSAGES = 20_000
"""The most messages that ``publish_many`` deals with in one turn of the event loop."""
Body = bytes | bytearray | memoryview


def check_body(body: Body, max_bytes: int) -> bytes:
    """The body, if a broker takes it.

    Raises:
        BadBody: it is empty or too big.
        TypeError: it is none.
    """
    if type(body) is not bytes:
        if not isinstance(body, (bytes, bytearray, memoryview)):
            raise TypeError(f"a body is bytes, not {type(body).__name__}: encode it first")
        body = bytes(body)
    if not 0 < len(body) <= max_bytes:
        if not body:
            raise BadBody("the body is empty, and NSQ has no empty messages")
        raise BadBody(
            f"a body of {len(body)} bytes is above max_message_bytes={max_bytes};"
            " if the broker's --max-msg-size is higher,"
            " say so by limits=Limits(max_message_bytes=...)"
        )
    return body


async def check_bodies(bodies: Sequence[Body], max_bytes: int) -> list[bytes]:
    """Check all of them, without holding up the event loop however many there are."""
    checked: list[bytes] = []
    for start in range(0, len(bodies), PIECE_MESSAGES):
        part: Any = bodies[start : start + PIECE_MESSAGES]
        are_bytes = set(map(type, part)) == {bytes}
        if not (are_bytes and 0 < min(map(len, part)) <= max(map(len, part)) <= max_bytes):
            part = [check_body(body, max_bytes) for body in part]
        checked += part
        await asyncio.sleep(0)
    return checked


def pieces(bodies: Iterable[bytes], limits: Limits) -> Iterator[tuple[list[bytes], int]]:
    """Cut the bodies into what one command takes, each piece with its bytes in an MPUB."""
    piece: list[bytes] = []
    piece_bytes = 0
    max_bytes = limits.command_bytes
    max_count = min(limits.max_in_flight_messages, PIECE_MESSAGES)
    for body in bodies:
        size_bytes = len(body) + MPUB_EXTRA_BYTES
        if piece and (piece_bytes + size_bytes > max_bytes or len(piece) >= max_count):
            yield piece, piece_bytes
            piece, piece_bytes = [], 0
        piece.append(body)
        piece_bytes += size_bytes
    if piece:
        yield piece, piece_bytes
