"""A broker's start reads no CA certificates, and leaves the environment as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.certificates import Certificates

from martlet.cli.servers.certificates import no_certificates

PROGRAM = """
import ssl
from martlet.cli.servers.certificates import no_certificates

def count(context):
    return context.cert_store_stats()["x509_ca"]

assert count(ssl.create_default_context()) == 1
with no_certificates():
    from aiohttp import connector
assert count(connector._SSL_CONTEXT_VERIFIED) == 0
assert count(connector._SSL_CONTEXT_UNVERIFIED) == 0
assert count(ssl.create_default_context()) == 1
"""


def test_aiohttp_reads_no_certificates(tmp_path: Path) -> None:
    environment = {**os.environ, "SSL_CERT_FILE": str(Certificates(tmp_path).authority)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("before", ["/etc/own.pem", None])
def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if before is not None:
        monkeypatch.setenv("SSL_CERT_FILE", before)
    with no_certificates():
        assert os.environ["SSL_CERT_FILE"] == os.devnull
    assert os.environ.get("SSL_CERT_FILE") == before
