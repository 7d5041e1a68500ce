"""Messages of random letters, published to a broker."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

TOPIC = "letters"
BATCH = 200
"""Messages an MPUB."""
IN_FLIGHT = 8
"""MPUBs that wait for their OK."""
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
Bodies = npt.NDArray[np.uint8]
"""Bodies of one size, a row each."""


def bodies(messages: int, size: int) -> Iterator[Bodies]:
    """Batches of random letters, no two messages alike."""
    random = np.random.default_rng(1)
    for first in range(0, messages, BATCH):
        count = min(BATCH, messages - first)
        yield random.integers(97, 123, (count, size), dtype=np.uint8)


def commands(messages: int, size: int) -> Iterator[bytes]:
    """MPUBs of these."""
    return map(command, bodies(messages, size))


def command(batch: Bodies) -> bytes:
    """The MPUB of a batch."""
    count, size = batch.shape
    framed = np.empty((count, 4 + size), np.uint8)
    framed[:, :4] = np.frombuffer(size.to_bytes(4, "big"), np.uint8)
    framed[:, 4:] = batch
    body: bytes = count.to_bytes(4, "big") + framed.tobytes()
    return b"MPUB %s\n" % TOPIC.encode() + len(body).to_bytes(4, "big") + body


@contextmanager
def connected(address: str) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection without heartbeats, and its answers."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        settings = b'{"heartbeat_interval": -1}'
        connection.sendall(b"  V2IDENTIFY\n" + len(settings).to_bytes(4, "big") + settings)
        expect_ok(answers)
        yield connection, answers


def fill(address: str, messages: int, size: int) -> None:
    """Publish messages over one connection; each MPUB is answered OK."""
    send(address, commands(messages, size))


def send(address: str, some: Iterable[bytes]) -> None:
    """Send MPUBs over one connection; each is answered OK."""
    with connected(address) as (connection, answers):
        waiting = 0
        for each in some:
            connection.sendall(each)
            waiting += 1
            if waiting >= IN_FLIGHT:
                expect_ok(answers)
                waiting -= 1
        for _ in range(waiting):
            expect_ok(answers)


def expect_ok(answers: BinaryIO, *, may_end: bool = False) -> bool:
    """Read an OK; False at the end of all answers."""
    answer = answers.read(len(OK))
    if answer != OK and not (may_end and not answer):
        raise SystemExit(f"the broker answered {answer!r}")
    return bool(answer)
