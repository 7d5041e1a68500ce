"""TLS of a client: the authorities it trusts, its certificate, and the broker's name."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import lru_cache

PathText = str | os.PathLike[str]
_FILES = ("ca_file", "cert_file", "key_file")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tls:
    """The settings of TLS to brokers.

    The files are read when connecting, and again once they have changed, so that renewed
    certificates work without a restart.

    Attributes:
        ca_file: the trusted authorities of the broker's certificate, in PEM; by default the
            system's.
        cert_file: the client's certificate, with intermediate ones, in PEM.
        key_file: its private key, unless it is in ``cert_file``.
        key_password: the password of the private key.
        verify: whether the broker's certificate must be trusted and have its name. Without, an
            attacker in between can read and change everything.
        server_name: the name in the broker's certificate, if it is not the host of its address.
        min_version: the minimum version of TLS.
        context: an SSLContext in place of all others except ``server_name``.
    """

    ca_file: PathText | None = None
    cert_file: PathText | None = None
    key_file: PathText | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: bool = True
    server_name: str | None = None
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("Tls(key_file=...) needs the certificate too: cert_file=...")
        if self.server_name is not None and not self.server_name:
            raise ValueError("Tls(server_name='') is no name; leave it out for the address's host")
        if self.context is not None:
            own = Tls(context=None, server_name=self.server_name)
            for name in (*_FILES, "key_password", "verify", "min_version"):
                if getattr(self, name) != getattr(own, name):
                    raise ValueError(f"Tls(context=..., {name}=...): the context says that already")

    def ssl_context(self) -> ssl.SSLContext:
        """Make the context for Python's ssl.

        Raises:
            OSError: a file cannot be read, or has the wrong content; the text names it.
        """
        if self.context is not None:
            return self.context
        return _load(self, tuple(self._changed_ns(name) for name in _FILES))

    def _changed_ns(self, name: str) -> int:
        """Return the time of a file's last change."""
        path: PathText | None = getattr(self, name)
        if path is None:
            return 0
        try:
            return os.stat(path).st_mtime_ns
        except OSError as error:
            raise OSError(f"Tls({name}={os.fspath(path)!r}): {error.strerror}") from error


@lru_cache(maxsize=16)
def _load(tls: Tls, _changed_ns: tuple[int, ...]) -> ssl.SSLContext:
    """Make a context of the files, in their version of that time."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (OSError, ValueError) as error:
        raise OSError(f"Tls(ca_file={_shown(tls.ca_file)}): {_why(error)}") from error
    context.minimum_version = tls.min_version
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.cert_file is not None:
        try:
            # A password is always given: OpenSSL would ask for one at the terminal.
            context.load_cert_chain(tls.cert_file, tls.key_file, lambda: tls.key_password or "")
        except (OSError, ValueError) as error:
            key = f", key_file={_shown(tls.key_file)}" if tls.key_file is not None else ""
            raise OSError(
                f"Tls(cert_file={_shown(tls.cert_file)}{key}): {_why(error)}; it takes a"
                " certificate in PEM and its private key, and key_password where that is encrypted"
            ) from error
    return context


def _shown(path: PathText | None) -> str:
    return repr(path if path is None else os.fspath(path))


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
