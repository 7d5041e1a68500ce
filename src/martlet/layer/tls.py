"""A layer of TLS, by Python's own ssl: the session works on memory, the layer moves the bytes.

asyncio's ``start_tls`` is no alternative: uvloop's takes 256 KiB for each connection, and neither
of them reports to the client why a handshake failed or lets the server send an error afterwards.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import cast

from martlet.layer.layer import BrokenLayer, Layer, Piece

Done = Callable[[Exception | None], None]


class TlsLayer(Layer):
    """One side of a TLS connection.

    Args:
        loop: the event loop.
        space: see `Layer`.
        context: the certificates, and the requirements on the peer's.
        server_name: of a client, the expected name of the server; None for a server.
        on_done: called once when the handshake ends, with None, or with the error if it failed; the
            transport below is still open then.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        space: memoryview,
        context: ssl.SSLContext,
        server_name: str | None,
        on_done: Done,
    ) -> None:
        super().__init__(loop, space)
        self.context = context
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._on_done: Done | None = on_done
        self._timer: asyncio.TimerHandle | None = None

    @property
    def cipher(self) -> str:
        """The name of the cipher suite, as OpenSSL gives it."""
        suite = self._session.cipher()
        return suite[0] if suite else ""

    @property
    def version(self) -> str:
        """The TLS version, such as ``TLSv1.3``."""
        return self._session.version() or ""

    @property
    def has_certificate(self) -> bool:
        """Whether the peer has sent a certificate, which Python's ssl has verified."""
        return bool(self._session.getpeercert())

    @property
    def common_name(self) -> str:
        """The common name in the peer's verified certificate, if it sent one."""
        certificate = self._session.getpeercert() or {}
        names = dict(pair for entry in certificate.get("subject", ()) for pair in entry)  # type: ignore[misc]
        return str(names.get("commonName", ""))

    def begin(self, timeout_s: float, early: Piece = b"") -> None:
        """Start the handshake; bytes received before the layer was inserted are TLS, too."""
        self._timer = self._loop.call_later(timeout_s, self._time_out, timeout_s)
        if early:
            self._incoming.write(early)
        self._shake()
        self._pump_when_done()

    def _shake(self) -> None:
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            self._send_out()
        except (ssl.SSLError, OSError) as error:
            self._send_out()
            self._done(error)
        else:
            self._send_out()
            self._done(None)

    def _time_out(self, timeout_s: float) -> None:
        self._done(TimeoutError(f"no TLS handshake within {timeout_s:g} s"))

    def _done(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done(error)

    def _pump_when_done(self) -> None:
        if self._on_done is None:
            self._pump()

    def _send_out(self) -> None:
        if self._outgoing.pending:
            self.lower.write(self._outgoing.read())

    # see Layer

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` received bytes."""
        self._incoming.write(self._space[:nbytes])
        if self._on_done is not None:
            self._shake()
        self._pump_when_done()

    def eof_received(self) -> bool:
        """Process the end of the peer's stream."""
        if self._on_done is not None:
            self._done(EOFError("the peer closed the connection during the handshake"))
            return True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_done = None
        super().connection_lost(exc)

    def close(self) -> None:
        """Send TLS's close_notify, and close once everything is sent."""
        self._send_close_notify()
        super().close()

    def write_eof(self) -> None:
        """Send TLS's close_notify, and shut down the sending side once everything is sent."""
        self._send_close_notify()
        super().write_eof()

    def _send_close_notify(self) -> None:
        if self._on_done is None and not self.is_closing():
            # Do not wait for the peer's close_notify: many peers send none.
            with suppress(ssl.SSLError):
                self._session.unwrap()
            self._send_out()

    def _receive(self, data: memoryview) -> None:
        self._incoming.write(data)

    def _fill(self, space: memoryview) -> int:
        filled = 0
        read = self._session.read
        try:
            while filled < len(space):
                rest = space[filled:] if filled else space
                count = cast(int, read(len(rest), rest))
                if not count:
                    self._at_end = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._at_end = True
        except ssl.SSLError as error:
            raise BrokenLayer(reason(error)) from error
        self._send_out()
        return filled

    def _encode(self, pieces: Iterable[Piece]) -> bytes:
        data = memoryview(b"".join(pieces))
        write = self._session.write
        try:
            sent = write(data)
            while sent < len(data):
                sent += write(data[sent:])
        except ssl.SSLError as error:
            self._break(error)
            return b""
        return self._outgoing.read()


def reason(error: Exception) -> str:
    """Return the error in words: OpenSSL's reason without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return "tls: " + error.reason.lower().replace("_", " ")
    return str(error)
