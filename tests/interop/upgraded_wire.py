"""A connection that is upgraded after IDENTIFY, byte for byte: TLS by Python's ssl, deflate by
zlib, snappy by python-snappy. Nothing of Martlet's is used here.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import zlib
from types import TracebackType
from typing import Any, Self

import snappy
from tests.crash.wire import ERROR, RESPONSE, Frame, u32

ANSWER_S = 60.0
OK = Frame(RESPONSE, b"OK")


class Plain:
    """No compression."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class Deflated:
    """A raw deflate stream each way."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        return self._decompressor.decompress(data)


class Snapped:
    """Snappy's framing format each way."""

    def __init__(self) -> None:
        self._compressor = snappy.StreamCompressor()
        self._decompressor = snappy.StreamDecompressor()

    def encode(self, data: bytes) -> bytes:
        return bytes(self._compressor.add_chunk(data))

    def decode(self, data: bytes) -> bytes:
        return bytes(self._decompressor.decompress(data))


class UpgradedWire:
    """A connection to a broker's TCP port; each method returns or fails within some seconds."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.codec: Plain | Deflated | Snapped = Plain()
        self._received = b""
        self.send(b"  V2")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def identify(self, **fields: object) -> dict[str, Any]:
        """Negotiate; the answer."""
        self.send(identify(**fields))
        frame = self.frame()
        assert frame.type == RESPONSE, frame
        answer: dict[str, Any] = json.loads(frame.data)
        return answer

    def upgrade(self, answer: dict[str, Any], context: ssl.SSLContext | None = None) -> None:
        """Go on as the answer says, step by step, each of which is answered OK."""
        if answer["tls_v1"]:
            assert context is not None
            self.start_tls(context)
            assert self.frame() == OK
        if answer["snappy"]:
            self.codec = Snapped()
            assert self.frame() == OK
        if answer["deflate"]:
            self.codec = Deflated()
            assert self.frame() == OK

    def start_tls(self, context: ssl.SSLContext) -> None:
        assert not self._received, "something came before the handshake"
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def send(self, data: bytes) -> None:
        self.socket.sendall(self.codec.encode(data))

    def frame(self) -> Frame:
        size, type = struct.unpack(">II", self._read(8))
        return Frame(type, self._read(size - 4))

    def refusal(self) -> str:
        """The error that comes next, behind which the connection must end."""
        frame = self.frame()
        assert frame.type == ERROR, frame
        assert self.ends()
        return frame.data.decode()

    def ends(self) -> bool:
        """Whether the connection ends with nothing more to be read."""
        left = self._received
        try:
            while data := self.socket.recv(1 << 16):
                left += self.codec.decode(data)
        except ConnectionError:
            pass
        return not left

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            # No more plain bytes than needed: encoded ones may come behind them.
            plain = isinstance(self.codec, Plain)
            data = self.socket.recv(size - len(self._received) if plain else 1 << 16)
            if not data:
                raise EOFError(f"the connection ended; received and not read: {self._received!r}")
            self._received += self.codec.decode(data)
        data, self._received = self._received[:size], self._received[size:]
        return data


def identify(**fields: object) -> bytes:
    """IDENTIFY with negotiation."""
    body = json.dumps({"feature_negotiation": True, **fields}).encode()
    return b"IDENTIFY\n" + u32(len(body)) + body
