"""TLS that demands a certificate of each client, and accepts any.

Python's ssl refuses each certificate that it cannot verify, and has no setting for that. OpenSSL
itself asks a callback, which pyOpenSSL lets an application set.  A context of this kind is an
``ssl.SSLContext`` whose sessions are pyOpenSSL's, so all that works on memory (`TlsLayer`, and the
TLS of asyncio and uvloop) takes it as it is::

    socket -> ssl.MemoryBIO -> AnyCertificateSession -> pyOpenSSL -> plain bytes

A client still proves that it has the key of the certificate that it shows.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cryptography.x509.oid import NameOID
from OpenSSL import SSL

_Result = TypeVar("_Result")
_RECORD_BYTES = 1 << 14
"""The maximum size of a TLS record, which is also the maximum that one read returns."""
_OUTGOING_BYTES = 1 << 16
_OPTIONS = SSL.OP_ALL | SSL.OP_NO_COMPRESSION | SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_TICKET


class AnyCertificateContext(ssl.SSLContext):
    """A server's context; only its sessions made by ``wrap_bio`` accept any certificate."""

    _ciphers = b""

    def set_ciphers(self, cipherlist: str, /) -> None:
        """Allow these, as OpenSSL writes them. Must come before the certificate."""
        super().set_ciphers(cipherlist)
        self._ciphers = cipherlist.encode()

    def load_cert_chain(self, certfile: Any, keyfile: Any = None, password: Any = None) -> None:
        """Take the server's certificate. Call it after all other settings. Raises OSError: the
        files do not hold a certificate and its key.
        """
        super().load_cert_chain(certfile, keyfile, password)
        other = SSL.Context(SSL.TLS_SERVER_METHOD)
        other.set_options(_OPTIONS)
        other.set_mode(SSL.MODE_RELEASE_BUFFERS)
        other.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        # Python says -2 for no minimum, and OpenSSL 0.
        other.set_min_proto_version(max(self.minimum_version, 0))
        if self._ciphers:
            other.set_cipher_list(self._ciphers)
        try:
            other.use_certificate_chain_file(os.fspath(certfile))
            other.use_privatekey_file(os.fspath(keyfile or certfile))
        except SSL.Error as error:
            raise _translated(error) from error
        other.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _take_any)
        self._other = other

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a session on memory buffers. Raises ValueError for a client's side."""
        if not server_side:
            raise ValueError("a context that takes any certificate is a server's")
        made = AnyCertificateSession(self, SSL.Connection(self._other), incoming, outgoing)
        return cast(ssl.SSLObject, made)


class AnyCertificateSession:
    """A session of pyOpenSSL with the methods, and the exceptions, of an ``ssl.SSLObject``."""

    def __init__(
        self,
        context: AnyCertificateContext,
        connection: SSL.Connection,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
    ) -> None:
        self.context = context
        self._connection = connection
        self._incoming = incoming
        self._outgoing = outgoing
        self._common_name = ""
        self._undecoded_bytes = 0
        """An upper bound of the bytes that OpenSSL was given and has not decoded yet."""
        connection.set_accept_state()

    def do_handshake(self) -> None:
        """Continue the handshake. Raises ssl.SSLError, as do the methods below."""
        self._run(self._connection.do_handshake)
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        assert certificate is not None, "OpenSSL let a client in that has no certificate"
        try:
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except ValueError as error:
            raise _named("CANNOT_PARSE_CERTIFICATE", str(error)) from error
        if names:
            self._common_name = str(names[-1].value)

    def read(self, size: int = _RECORD_BYTES, buffer: Any = None) -> bytes | int:
        """Return some bytes, or fill a buffer and return how many."""
        size = min(size, _RECORD_BYTES)
        if buffer is None:
            data: bytes = self._run(self._connection.recv, size)
            return data
        count: int = self._run(self._connection.recv_into, buffer, size)
        return count

    def pending(self) -> int:
        """Return how many bytes can be read at once; too many while some are not decoded."""
        count: int = self._connection.pending()
        return count + self._undecoded_bytes

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt, and return how many bytes were taken."""
        count: int = self._run(self._connection.send, data)
        return count

    def unwrap(self) -> None:
        """Say goodbye."""
        if not self._run(self._connection.shutdown):
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "no goodbye from the client yet")

    def getpeercert(self) -> dict[str, object]:
        """Return the common name of the client's certificate, if it has one, unverified."""
        return {"subject": ((("commonName", self._common_name),),)} if self._common_name else {}

    def cipher(self) -> tuple[str, str, int] | None:
        """Return the cipher suite: its name, the version of TLS and the bits of its key."""
        connection = self._connection
        name = connection.get_cipher_name()
        if name is None:
            return None
        return name, connection.get_cipher_version() or "", connection.get_cipher_bits() or 0

    def version(self) -> str | None:
        """Return the version of TLS, once the handshake is complete."""
        connection = self._connection
        return connection.get_protocol_version_name() if connection.get_cipher_name() else None

    def compression(self) -> None:
        """Return None: TLS never compresses here."""

    def _run(self, step: Callable[..., _Result], *arguments: object) -> _Result:
        """Run one step on the bytes received, and pass on the bytes that it sends."""
        if self._incoming.pending:
            self._undecoded_bytes += self._connection.bio_write(self._incoming.read())
        try:
            return step(*arguments)
        except SSL.WantReadError as error:
            self._undecoded_bytes = 0
            raise _translated(error) from error
        except SSL.Error as error:
            raise _translated(error) from error
        finally:
            self._send_out()

    def _send_out(self) -> None:
        try:
            while True:
                self._outgoing.write(self._connection.bio_read(_OUTGOING_BYTES))
        except SSL.WantReadError:
            pass  # there is no more


def _take_any(*_arguments: object) -> bool:
    return True


def _translated(error: SSL.Error) -> ssl.SSLError:
    """Return the exception that Python's ssl raises for the same error."""
    if isinstance(error, SSL.WantReadError):
        return ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "more must come first")
    if isinstance(error, SSL.ZeroReturnError):
        return ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "the client has said goodbye")
    if isinstance(error, SSL.SysCallError) or not error.args or not error.args[0]:
        return _named("UNEXPECTED_EOF_WHILE_READING", str(error))
    reason = str(error.args[0][-1][-1])
    return _named(reason.upper().replace(" ", "_"), reason)


def _named(reason: str, text: str) -> ssl.SSLError:
    error = ssl.SSLError(ssl.SSL_ERROR_SSL, text)
    error.reason = reason
    error.library = "SSL"
    return error
