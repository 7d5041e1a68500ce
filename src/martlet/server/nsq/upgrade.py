"""The upgrade of a connection to TLS or compression, after IDENTIFY.

The answer to IDENTIFY is sent in the old form. Then each step is answered OK in its new form::

    IDENTIFY    ->  answer, plain
                    TLS handshake           -> OK, in TLS
                    snappy or deflate       -> OK, compressed (and in TLS, if that is on)

Bytes that a client sends before it has the answer belong to the first step and are never commands,
so an attacker in between cannot inject a command into a connection that the client believes
encrypted.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from martlet.layer.layer import Codec, CompressionLayer
from martlet.layer.tls import TlsLayer, reason
from martlet.protocol.compression.deflate import Deflate
from martlet.protocol.compression.snappy import Snappy
from martlet.protocol.nsq import v2
from martlet.server.nsq.client_io import ConnectionUpgrade
from martlet.server.tls import HANDSHAKE_S

if TYPE_CHECKING:
    import ssl

    from martlet.protocol.nsq.negotiation import Agreement
    from martlet.server.nsq.connection import ClientConnection


@dataclass(frozen=True, slots=True)
class UpgradeContext:
    """The parts of a broker that upgrades share."""

    tls: ssl.SSLContext | None
    """The certificate and its settings."""
    space: memoryview
    """The buffer in which layers receive encrypted or compressed bytes."""
    log: logging.Logger


class Upgrade(ConnectionUpgrade):
    """The upgrade of one connection."""

    def __init__(
        self, connection: ClientConnection, agreement: Agreement, context: UpgradeContext
    ) -> None:
        self._connection = connection
        self._agreement = agreement
        self._context = context
        self._loop = asyncio.get_running_loop()

    def begin(self, transport: asyncio.Transport, early: bytes) -> None:
        """Start after the answer to IDENTIFY is written."""
        if not self._agreement.tls:
            self._compress(transport, early)
            return
        self._log("upgrading connection to TLS")
        context = self._context
        assert context.tls is not None
        self._tls = TlsLayer(self._loop, context.space, context.tls, None, self._shaken)
        self._tls.insert(transport, self._connection)
        self._tls.begin(HANDSHAKE_S, early)

    def _shaken(self, error: Exception | None) -> None:
        if error is not None:
            self._connection.refuse(
                v2.ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason(error)}")
            )
            return
        self._connection.tls = self._tls
        self._tls.write(v2.OK)
        self._compress(self._tls, b"")

    def _compress(self, transport: asyncio.Transport, early: bytes) -> None:
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
            layer = CompressionLayer(self._loop, self._context.space, codec)
            layer.insert(transport, self._connection)
            layer.write(v2.OK)
        self._connection.upgraded(layer or transport)
        if layer is not None and early:
            layer.feed(early)

    def _log(self, text: str) -> None:
        self._context.log.info("PROTOCOL(V2): [%s] %s", self._connection.remote_address, text)
