"""A broker's start reads no CA certificates, and leaves the environment as it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.certificates import Certificates

PROGRAM = """
import os, signal, ssl, sys
from martlet.cli.servers import broker, service

def count(context):
    return context.cert_store_stats()["x509_ca"]

def notify(state):
    if state == service.READY:
        from aiohttp import connector
        assert count(connector._SSL_CONTEXT_VERIFIED) == 0
        assert count(connector._SSL_CONTEXT_UNVERIFIED) == 0
        assert BEFORE is None or count(ssl.create_default_context()) == 1
        assert os.environ.get("SSL_CERT_FILE") == BEFORE
        print("checked")
        os.kill(os.getpid(), signal.SIGTERM)

service.notify = notify
listen = ["--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
sys.exit(broker.main([f"--data-path={DATA_PATH}", *listen]))
"""


@pytest.mark.parametrize("is_set", [True, False])
def test_a_broker_starts_without_the_machines_certificates(tmp_path: Path, is_set: bool) -> None:
    before = str(Certificates(tmp_path).authority) if is_set else None
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    if before is not None:
        environment["SSL_CERT_FILE"] = before
    program = f"BEFORE, DATA_PATH = {before!r}, {str(tmp_path / 'data')!r}\n{PROGRAM}"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "checked\n"), done.stderr
