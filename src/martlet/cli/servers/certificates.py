"""CA certificates in the start of a broker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_CA_FILE = "SSL_CERT_FILE"
"""Of OpenSSL: the file that a default TLS context reads."""


@contextmanager
def no_certificates() -> Iterator[None]:
    """Read no CA certificates of the machine meanwhile.

    aiohttp makes two default TLS contexts when it is imported. Each reads all certificates, which
    is a quarter of a broker's start. A broker uses neither of them: where it connects by TLS, it
    has a context of its own.
    """
    before = os.environ.get(_CA_FILE)
    os.environ[_CA_FILE] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CA_FILE]
        else:
            os.environ[_CA_FILE] = before
