"""The upgrade: what a connection goes on as after IDENTIFY.

The answer to IDENTIFY is sent as the connection was.  Then, each step answered OK in its new form::

    IDENTIFY    ->  answer, plain
                    TLS handshake           -> OK, in TLS
                    snappy or deflate       -> OK, compressed (and in TLS, if that is on)

What a client sends before it has the answer is taken as the bytes of the first step, never as
commands: nobody on the way can slip a command into a connection that its owner believes encrypted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from martlet.layer.compression import Codec, CompressionLayer
from martlet.layer.tls import TlsLayer, reason
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy
from martlet.protocol.nsq import v2
from martlet.protocol.nsq.negotiation import Agreement
from martlet.server.tls import HANDSHAKE_S

if TYPE_CHECKING:
    from martlet.server.nsq.connection import ClientConnection
    from martlet.server.server import Server


class Agreed(Exception):
    """No error: what was agreed on changes how the bytes behind it are to be read."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__()
        self.agreement = agreement


class Upgrade:
    """The upgrade of one connection.

    Args:
        connection: which.
        agreement: what it has agreed on.
        early: the bytes that came behind IDENTIFY.
    """

    def __init__(self, connection: ClientConnection, agreement: Agreement, early: bytes) -> None:
        self._connection = connection
        self._agreement = agreement
        self._early = early

    def begin(self, server: Server, transport: asyncio.Transport) -> None:
        """Start, once the answer to IDENTIFY has been written."""
        self._server = server
        self._transport = transport
        if not self._agreement.tls:
            self._compress()
            return
        self._log("upgrading connection to TLS")
        assert server.tls is not None
        self._tls = TlsLayer(server.loop, server.wire_view, server.tls, None, self._shaken)
        self._tls.insert(transport, self._connection)
        early, self._early = self._early, b""
        self._tls.begin(HANDSHAKE_S, early)

    def _shaken(self, error: Exception | None) -> None:
        if error is not None:
            self._connection.refuse(
                v2.ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason(error)}")
            )
            return
        self._transport = self._tls
        self._connection.tls = self._tls
        self._transport.write(v2.OK)
        self._compress()

    def _compress(self) -> None:
        codec: Codec | None = None
        if self._agreement.snappy:
            self._log("upgrading connection to snappy")
            codec = Snappy()
            self._connection.snappy = True
        elif self._agreement.deflate_level:
            level = self._agreement.deflate_level
            self._log(f"upgrading connection to deflate (level {level})")
            codec = Deflate(level)
            self._connection.deflate = True
        layer = None
        if codec is not None:
            layer = CompressionLayer(self._server.loop, self._server.wire_view, codec)
            layer.insert(self._transport, self._connection)
            self._transport = layer
            layer.write(v2.OK)
        self._connection.upgraded(self._transport)
        if layer is not None and self._early:
            layer.feed(self._early)

    def _log(self, text: str) -> None:
        self._server.log.info("PROTOCOL(V2): [%s] %s", self._connection.remote_address, text)
