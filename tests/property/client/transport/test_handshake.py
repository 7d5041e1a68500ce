"""The handshake hears the same, in whatever pieces the broker's bytes come."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any, Literal, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.client.scripted_broker import frame

from martlet.addresses import Address
from martlet.client import Identity
from martlet.client.transport.handshake import Handshake
from martlet.client.transport.identity import Features
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy

HEARTBEAT = frame(0, b"_heartbeat_")


class Wire(asyncio.Transport):
    """A transport whose other end is the test."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast(asyncio.BufferedProtocol, protocol)

    def is_closing(self) -> bool:
        return False

    def receive(self, data: bytes) -> None:
        while data:
            space = cast(memoryview, self.protocol.get_buffer(-1))
            count = min(len(space), len(data))
            space[:count] = data[:count]
            self.protocol.buffer_updated(count)
            data = data[count:]


class Heir(asyncio.BufferedProtocol):
    """The protocol that takes over: keeps the bytes that it gets."""

    def __init__(self) -> None:
        self._space = bytearray(7)
        self.received = b""

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._space)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._space[:nbytes]


def broker_bytes(compression: str | None, with_auth: bool, after: bytes) -> bytes:
    """All that a broker says."""
    features: dict[str, Any] = {"max_rdy_count": 7, "auth_required": with_auth}
    if compression is not None:
        features[compression] = True
    plain = frame(0, json.dumps(features).encode())
    inner = frame(0, b"OK") if compression is not None else b""
    inner += HEARTBEAT
    if with_auth:
        inner += frame(0, b'{"identity": "anna"}')
    inner += after
    if compression == "snappy":
        return plain + Snappy().encode([inner])
    return plain + (Deflate(6).encode([inner]) if compression == "deflate" else inner)


@settings(max_examples=60)
@given(
    compression=st.sampled_from([None, "snappy", "deflate"]),
    with_auth=st.booleans(),
    cuts=st.lists(st.integers(0, 400), max_size=30).map(sorted),
    pause=st.integers(0, 3),
)
def test_the_pieces_do_not_matter(
    compression: Literal["snappy", "deflate"] | None, with_auth: bool, cuts: list[int], pause: int
) -> None:
    after = frame(0, b"_heartbeat_") + frame(2, bytes(26) + b"one" * 30)
    data = broker_bytes(compression, with_auth, after)
    edges = [0, *(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(edges)]

    async def run() -> tuple[Features, bytes]:
        identity = Identity(compression=compression, auth_secret="x")
        handshake = Handshake(Address("a", 1), identity, 5)
        wire = Wire(handshake)
        handshake.connection_made(wire)
        running = asyncio.create_task(handshake.run())
        for piece in pieces:
            wire.receive(piece)
            for _ in range(pause):
                await asyncio.sleep(0)
        async with asyncio.timeout(5):
            features = await running
        heir = Heir()
        handshake.hand_over(heir)
        return features, heir.received

    features, received = asyncio.run(run())
    assert features.max_ready_count == 7
    assert features.auth_identity == ("anna" if with_auth else "")
    assert received.endswith(after)
    assert received[: -len(after)] in (b"", HEARTBEAT), (
        "without AUTH nobody asks behind the last step"
    )
