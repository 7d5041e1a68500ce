"""The handshake of a connection, up to the last feature agreed on.

Each step waits for the answer to the one before, since it changes how bytes are read::

    IDENTIFY  ->  JSON, plain
                  TLS handshake  ->  OK, in TLS
                  (snappy or deflate)  ->  OK, compressed (and in TLS, if that is on)
    AUTH      ->  JSON

So frames are decoded one at a time, and later bytes are left as they are: they belong to the next
step. In particular no bytes from before the TLS handshake are read as if they had come in TLS.
Afterwards another protocol takes over the transport.

A requested feature that the broker lacks ends the handshake: a client never continues without it.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from martlet import unreachable
from martlet.addresses import Address
from martlet.client.errors import AuthRefused, ConnectionLost, ConnectRefused, Refused
from martlet.client.transport.identity import Features, Identity
from martlet.layer.layer import SPACE_BYTES, BrokenLayer
from martlet.protocol.nsq import commands
from martlet.protocol.nsq.frames import BadFrame, ErrorReply, FrameSplitter, Response

if TYPE_CHECKING:
    from martlet.client.transport.tls import Tls
    from martlet.layer.layer import Codec

HEARTBEAT = b"_heartbeat_"
OK = b"OK"
MAX_ANSWER_BYTES = 1 << 20
"""The maximum size of an answer."""
_RECEIVE_BYTES = 16 * 1024
_FRAME_HEAD_BYTES = 8
_VERIFY_HINTS = {
    **dict.fromkeys((62, 64), "its name by Tls(server_name=...)"),
    **dict.fromkeys((2, 18, 19, 20, 21), "the authority of its certificate by Tls(ca_file=...)"),
}
"""By OpenSSL's codes: another host name, another address; an authority that is not trusted."""
_AUTH_ERRORS = {
    "E_AUTH_FAILED": " (the auth server does not know the auth_secret, or could not be asked)",
    "E_UNAUTHORIZED": " (the auth server allows nothing with this auth_secret)",
}


class Handshake(asyncio.BufferedProtocol):
    """The handshake of one connection, as the protocol of its transport.

    Args:
        timeout_s: how long the TLS handshake may take.
    """

    def __init__(self, address: Address, identity: Identity, timeout_s: float) -> None:
        self._address = address
        self._identity = identity
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._space = memoryview(bytearray(_RECEIVE_BYTES))
        self._layer_space: memoryview | None = None
        self._waiting = bytearray()
        self._news: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self._shaken = False
        self._shake_error: Exception | None = None

    async def run(self) -> Features:
        """Run all steps, and return the features agreed on.

        Raises:
            ConnectRefused: the broker lacks a feature, or refuses the client permanently.
            ConnectionLost: the connection is gone. BadFrame: the input is not NSQ's protocol.
            ValueError: an answer is invalid.
        """
        features = await self._identify()
        tls = self._identity.tls_settings
        if tls is not None:
            features = await self._start_tls(tls, features)
        if self._identity.compression is not None:
            await self._compress(self._codec(features))
        if features.auth_required:
            features = await self._authenticate(features)
        return features

    def hand_over(self, protocol: asyncio.BufferedProtocol) -> None:
        """Hand the connection over to this protocol. Raises ConnectionLost."""
        if self._lost is not None:
            raise self._loss()
        transport = self._established
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        rest = memoryview(self._take_waiting())
        while rest:
            space = cast(memoryview, protocol.get_buffer(-1))
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            protocol.buffer_updated(count)
            rest = rest[count:]

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    # The steps.

    async def _identify(self) -> Features:
        request = commands.identify(self._identity.fields())
        try:
            data = await self._ask(commands.MAGIC + request)
        except Refused as error:
            raise ConnectRefused(f"{self._address}: {error}") from error
        features = Features.parse(data)
        if self._identity.tls_settings is not None and not features.tls:
            raise self._missing("TLS", "tls_v1", "--tls-cert and --tls-key", "tls")
        compression = self._identity.compression
        if compression is not None and not getattr(features, compression):
            raise self._missing(compression, compression, f"--{compression}", "compression")
        return features

    def _missing(self, what: str, name: str, flags: str, keyword: str) -> ConnectRefused:
        return ConnectRefused(
            f"{self._address}: the broker does not offer {what} (in its answer {name} is not true):"
            f" start it with {flags}, or leave {keyword}=... out here"
        )

    async def _start_tls(self, tls: Tls, features: Features) -> Features:
        from martlet.layer.tls import TlsLayer

        try:
            context = tls.ssl_context()
        except OSError as error:
            raise ConnectRefused(f"{self._address}: {error}") from error
        name = tls.server_name or self._address.host
        layer = TlsLayer(self._loop, self._wire_space(), context, name, self._on_shaken)
        layer.insert(self._established, self)
        layer.begin(self._timeout_s, self._take_waiting())
        try:
            while not self._shaken:
                await self._more()
            if self._shake_error is not None:
                raise self._shake_error
            self._transport = layer
            await self._expect_ok("TLS")
        except (OSError, EOFError) as error:
            raise self._tls_error(error) from error
        return replace(features, tls_version=layer.version)

    def _on_shaken(self, error: Exception | None) -> None:
        self._shaken = True
        self._shake_error = error
        self._wake()

    def _tls_error(self, error: Exception) -> Exception:
        """Describe an error in the TLS handshake, or the answer instead of its OK."""
        from martlet.layer.tls import reason

        why = self._lost or error if isinstance(error, ConnectionLost) else error
        if not isinstance(why, ssl.SSLError | BrokenLayer):
            return ConnectionLost(
                f"{self._address}: {why} (in the TLS handshake; the broker may want a certificate)"
            )
        text = reason(why)
        if isinstance(why, ssl.SSLCertVerificationError):
            if hint := _VERIFY_HINTS.get(why.verify_code):
                text += f"; if it is the right broker, say {hint}"
        elif "alert" in text and ("certificate" in text or "unknown ca" in text):
            text += "; the broker wants a certificate: Tls(cert_file=..., key_file=...)"
        return ConnectRefused(f"{self._address}: {text}")

    def _codec(self, features: Features) -> Codec:
        """Return both directions of the compression; its package is imported only here."""
        if self._identity.compression == "deflate":
            from martlet.protocol.compression.deflate import Deflate

            level = features.deflate_level
            return Deflate(level if 1 <= level <= 9 else self._identity.deflate_level)
        try:
            from martlet.protocol.compression.snappy import Snappy

            return Snappy()
        except ImportError as error:
            raise ConnectRefused(
                f"compression='snappy' needs the package {error.name}: pip install {error.name}"
            ) from error

    async def _compress(self, codec: Codec) -> None:
        from martlet.layer.layer import CompressionLayer

        layer = CompressionLayer(self._loop, self._wire_space(), codec)
        layer.insert(self._established, self)
        self._transport = layer
        layer.feed(self._take_waiting())
        await self._expect_ok(str(self._identity.compression))

    async def _authenticate(self, features: Features) -> Features:
        secret = self._identity.secret
        if secret is None:
            raise AuthRefused(
                "E_AUTH_FIRST",
                f"{self._address}: the broker wants AUTH, and there is no auth_secret",
            )
        try:
            data = await self._ask(commands.auth(secret))
        except Refused as error:
            raise AuthRefused(
                error.code, f"{self._address}: {error}{_AUTH_ERRORS.get(error.code, '')}"
            ) from error
        return features.authorized(data)

    # Requests and answers.

    async def _ask(self, data: bytes) -> bytes:
        self._established.write(data)
        return await self._answer()

    async def _expect_ok(self, what: str) -> None:
        try:
            data = await self._answer()
        except Refused as error:
            raise ConnectRefused(f"{self._address}: {error}") from error
        if data != OK:
            raise BadFrame(f"{what} was answered {data[:80]!r}, not OK")

    async def _answer(self) -> bytes:
        """Return the next response. Raises Refused, ConnectionLost, BadFrame."""
        while True:
            piece = self._cut()
            if piece is None:
                await self._more()
            elif isinstance(piece, ErrorReply):
                raise Refused(piece.code, piece.text)
            elif piece.data == HEARTBEAT:
                self._established.write(commands.NOP)
            else:
                return piece.data

    def _cut(self) -> Response | ErrorReply | None:
        """Return the first buffered frame, if it is complete."""
        waiting = self._waiting
        if len(waiting) < _FRAME_HEAD_BYTES:
            return None
        length = 4 + int.from_bytes(waiting[:4], "big")
        is_complete = len(waiting) >= length
        # The head is enough to see that this is no frame.
        splitter = FrameSplitter(space_bytes=0, max_frame_bytes=MAX_ANSWER_BYTES)
        pieces = splitter.feed(bytes(waiting[: length if is_complete else _FRAME_HEAD_BYTES]))
        if not is_complete:
            return None
        del waiting[:length]
        (piece,) = pieces
        if not isinstance(piece, Response | ErrorReply):
            raise BadFrame("a message, before any was asked for")
        return piece

    async def _more(self) -> None:
        """Wait for input or the loss of the connection."""
        if self._lost is not None:
            raise self._loss()
        self._news = self._loop.create_future()
        await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _loss(self) -> ConnectionLost:
        return ConnectionLost(f"{self._address}: {unreachable.loss(self._lost)}")

    def _take_waiting(self) -> bytes:
        waiting = bytes(self._waiting)
        self._waiting.clear()
        return waiting

    @property
    def _established(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _wire_space(self) -> memoryview:
        """The layers' receive buffer: both may use it, one after the other."""
        if self._layer_space is None:
            self._layer_space = memoryview(bytearray(SPACE_BYTES))
        return self._layer_space

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the receive buffer."""
        return self._space

    def buffer_updated(self, nbytes: int) -> None:
        """Note received bytes."""
        self._waiting += self._space[:nbytes]
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is lost."""
        self._lost = exc or ConnectionResetError("the connection was closed")
        self._wake()
