"""CA certificates in the start of a broker."""

from __future__ import annotations

import os

_CA_FILE = "SSL_CERT_FILE"
"""Of OpenSSL: the file that a default TLS context reads."""


def import_aiohttp() -> None:
    """Import aiohttp, and have it read no CA certificates of the machine.

    It makes two default TLS contexts when it is imported, and each would read all certificates:
    together a fifth of a broker's start. A broker uses neither of them: where it connects by TLS,
    it has a context of its own, and elsewhere it follows no redirects.

    Not for a process of which a broker is only a part: it sets the environment meanwhile, and
    others may use these contexts.
    """
    before = os.environ.get(_CA_FILE)
    os.environ[_CA_FILE] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        if before is None:
            del os.environ[_CA_FILE]
        else:
            os.environ[_CA_FILE] = before
