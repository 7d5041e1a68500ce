"""Messages of random letters, and how a broker gets them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np

TOPIC = "letters"
BATCH = 200
"""Messages an MPUB."""
IN_FLIGHT = 8
"""MPUBs that wait for their OK."""
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"


def commands(messages: int, size: int) -> Iterator[bytes]:
    """MPUBs of random letters, no two messages alike."""
    random = np.random.default_rng(1)
    for first in range(0, messages, BATCH):
        count = min(BATCH, messages - first)
        framed = np.empty((count, 4 + size), np.uint8)
        framed[:, :4] = np.frombuffer(size.to_bytes(4, "big"), np.uint8)
        framed[:, 4:] = random.integers(97, 123, (count, size), dtype=np.uint8)
        body = count.to_bytes(4, "big") + framed.tobytes()
        yield b"MPUB %s\n" % TOPIC.encode() + len(body).to_bytes(4, "big") + body


def fill(address: str, messages: int, size: int) -> None:
    """Publish them over one connection; each is answered OK."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        answers = connection.makefile("rb")
        without_heartbeats = b'{"heartbeat_interval": -1}'
        size_field = len(without_heartbeats).to_bytes(4, "big")
        connection.sendall(b"  V2IDENTIFY\n" + size_field + without_heartbeats)
        waiting = 1
        for command in commands(messages, size):
            connection.sendall(command)
            waiting += 1
            while waiting >= IN_FLIGHT:
                waiting -= expect_ok(answers.read(len(OK)))
        while waiting:
            waiting -= expect_ok(answers.read(len(OK)))


def expect_ok(answer: bytes) -> int:
    """1 for an OK."""
    if answer != OK:
        raise SystemExit(f"the broker answered {answer!r}")
    return 1
