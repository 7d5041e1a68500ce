"""How replicas know each other: by certificates, by a shared secret, or by being on one machine.

With a secret, a connection begins with a handshake in which each end proves that it knows it::

    acceptor  -> connector   "MTLRAUTH" nonce of the acceptor (32)
    connector -> acceptor    "MTLRAUTH" nonce of the connector (32), proof of the connector (32)
    acceptor  -> connector   "MTLRAUTH" proof of the acceptor (32)

A proof is the HMAC-SHA256 of the role and both nonces. It keeps strangers out; what follows is
neither encrypted nor signed. Where others can read or change the traffic, use certificates.
"""

from __future__ import annotations

import hmac
import os
import secrets
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from martlet.options import BrokerOptions
from martlet.private_files import private_opener

MAGIC = b"MTLRAUTH"
_NONCE_BYTES = 32
_CHALLENGE_BYTES = len(MAGIC) + _NONCE_BYTES
_PROOF_BYTES = 32
_MIN_SECRET_BYTES = 16


class NotTrusted(OSError):
    """The other end does not know the secret, or has none; the text says which."""


@dataclass(frozen=True)
class LinkTrust:
    """The secrets and certificates of connections between replicas."""

    secret: bytes = b""
    """The shared one; empty for none."""
    server_tls: ssl.SSLContext | None = None
    """Of the accepting end; None for plain TCP."""
    client_tls: ssl.SSLContext | None = None
    """Of the connecting end."""

    @classmethod
    def load(cls, options: BrokerOptions) -> LinkTrust:
        """Read the files that the options name. Raises OSError; the text names the flag."""
        secret = b""
        if options.replica_secret_file:
            secret = _read_secret(options.replica_secret_file)
        if not options.replica_tls_cert:
            return cls(secret)
        server_tls = _context(options, ssl.Purpose.CLIENT_AUTH)
        client_tls = _context(options, ssl.Purpose.SERVER_AUTH)
        _require_accepted(options, server_tls, client_tls)
        return cls(secret, server_tls, client_tls)


def make_secret(path: Path) -> None:
    """Make a secret in a file that its owner alone may read, unless there is one. Raises OSError.

    Processes that do so at once get the same one.
    """
    if path.exists():
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(beside, "x", encoding="ascii", opener=private_opener) as file:
            file.write(f"{secrets.token_hex(_NONCE_BYTES)}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _read_secret(path: str) -> bytes:
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise OSError(f"--replica-secret-file={path} cannot be read: {error.strerror}") from error
    if len(secret) < _MIN_SECRET_BYTES:
        raise OSError(
            f"--replica-secret-file={path} has {len(secret)} bytes, and the minimum is"
            f" {_MIN_SECRET_BYTES}: make one with `openssl rand -hex 32`"
        )
    return secret


def _context(options: BrokerOptions, purpose: ssl.Purpose) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=options.replica_tls_ca_file)
        context.load_cert_chain(options.replica_tls_cert, options.replica_tls_key)
    except OSError as error:
        raise OSError(
            f"--replica-tls-cert={options.replica_tls_cert},"
            f" --replica-tls-key={options.replica_tls_key} and"
            f" --replica-tls-ca-file={options.replica_tls_ca_file} cannot be used: {error}"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _require_accepted(
    options: BrokerOptions, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext
) -> None:
    """Shake hands with itself, as another replica would. Otherwise a wrong name would be noticed at
    a failover only, since standbys connect to the primary. Raises OSError.
    """
    host = options.replica_address.rpartition(":")[0].strip("[]")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_tls.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_tls.wrap_bio(to_server, to_client, server_side=True)
    ends = [client, server]
    try:
        while ends:
            try:
                ends[0].do_handshake()
                ends.pop(0)
            except ssl.SSLWantReadError:
                ends.reverse()
    except ssl.SSLError as error:
        reason = str(getattr(error, "verify_message", "") or error).rstrip(".")
        raise OSError(
            f"--replica-tls-cert={options.replica_tls_cert}: other replicas would refuse it:"
            f" {reason}. It must name {host}, the host of --replica-address, as a subject"
            f" alternative name, and be signed by --replica-tls-ca-file="
            f"{options.replica_tls_ca_file}"
        ) from error


class SecretHandshake:
    """One end of the handshake.

    Args:
        is_acceptor: whether the other end has connected.
    """

    def __init__(self, secret: bytes, *, is_acceptor: bool) -> None:
        assert secret
        self._secret = secret
        self._is_acceptor = is_acceptor
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._expected = b""
        self._received = bytearray()
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is to be sent at once."""
        return MAGIC + self._nonce if self._is_acceptor else b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Take in what arrived, until `is_done`.

        Returns what is to be sent, and what the other end sent behind its handshake.

        Raises NotTrusted.
        """
        assert not self.is_done
        self._received += data
        if not self._received.startswith(MAGIC[: len(self._received)]):
            raise NotTrusted(
                "it does not begin with the proof of a secret: give --replica-secret-file at all"
                " replicas"
            )
        if self._is_acceptor:
            return self._accept()
        reply = b""
        if not self._expected:
            nonce = self._take(_CHALLENGE_BYTES)
            if nonce is None:
                return b"", b""
            reply = MAGIC + self._nonce + self._proof(b"connector", nonce, self._nonce)
            self._expected = self._proof(b"acceptor", nonce, self._nonce)
        proof = self._take(len(MAGIC) + _PROOF_BYTES)
        if proof is None:
            return reply, b""
        self._check(proof, self._expected)
        return reply, bytes(self._received)

    def _accept(self) -> tuple[bytes, bytes]:
        answer = self._take(_CHALLENGE_BYTES + _PROOF_BYTES)
        if answer is None:
            return b"", b""
        nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        self._check(proof, self._proof(b"connector", self._nonce, nonce))
        return MAGIC + self._proof(b"acceptor", self._nonce, nonce), bytes(self._received)

    def _take(self, length: int) -> bytes | None:
        """Take the next bytes of the handshake, without their magic; None until all have come."""
        if len(self._received) < length:
            return None
        taken = bytes(self._received[len(MAGIC) : length])
        del self._received[:length]
        return taken

    def _check(self, proof: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(proof, expected):
            raise NotTrusted("it has another secret than --replica-secret-file")
        self.is_done = True

    def _proof(self, role: bytes, acceptor_nonce: bytes, connector_nonce: bytes) -> bytes:
        return hmac.digest(self._secret, role + acceptor_nonce + connector_nonce, "sha256")
