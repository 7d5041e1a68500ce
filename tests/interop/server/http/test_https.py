"""HTTPS as beside nsqd's: its port, its answers, and the answers of HTTP where TLS is required."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.interop.certificates import Certificates
from tests.interop.nsqd_process import NSQD
from tests.interop.server.conftest import Brokers, trusting

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop
START_S = 60.0


def port_of(start: Brokers, process: BrokerProcess) -> int:
    return int(start.https[process].rpartition(":")[2])


async def ask(url: str, context: ssl.SSLContext | None = None, **more: Any) -> tuple[int, bytes]:
    method = "POST" if "data" in more else "GET"
    tls: dict[str, Any] = {"ssl": context} if context is not None else {}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **tls, **more) as response,
    ):
        return response.status, await response.read()


async def test_everything_is_served_there_too(
    start: Brokers, certificates: Certificates, topic: str
) -> None:
    process = start(*certificates.flags)
    base_url = f"https://{start.https[process]}"
    context = trusting(certificates)
    assert await ask(f"{base_url}/ping", context) == (200, b"OK")
    body = b"x" * 1_000_000
    assert await ask(f"{base_url}/pub?topic={topic}", context, data=body) == (200, b"OK")
    status, stats = await ask(f"http://{process.http_address}/stats?format=json&topic={topic}")
    assert status == 200
    assert json.loads(stats)["topics"][0]["message_bytes"] == len(body)


@pytest.mark.parametrize("flag", ["--tls-required", "--tls-client-auth-policy=whatever"])
async def test_http_names_the_https_port_where_tls_is_required(
    start: Brokers, certificates: Certificates, flag: str
) -> None:
    process = start(*certificates.flags, flag)
    port = port_of(start, process)
    for path in ("ping", "stats", "nope"):
        status, body = await ask(f"http://{process.http_address}/{path}")
        assert status == 403
        assert json.loads(body) == {"message": "TLS_REQUIRED", "https_port": port}
    status, body = await ask(f"http://{process.http_address}/pub?topic=t", data=b"x" * 500_000)
    assert status == 403
    context = trusting(certificates)
    assert await ask(f"https://127.0.0.1:{port}/ping", context) == (200, b"OK")


async def test_a_policy_for_certificates_holds_there_too(
    start: Brokers, certificates: Certificates
) -> None:
    authority = f"--tls-root-ca-file={certificates.authority}"
    process = start(*certificates.flags, "--tls-client-auth-policy=require-verify", authority)
    base_url = f"https://{start.https[process]}"
    url = f"{base_url}/ping"
    context = trusting(certificates, "client")
    assert await ask(url, context) == (200, b"OK")
    assert await ask(f"{base_url}/config/tls_required", context) == (200, b"2")
    for shows in ("", "stranger"):
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await ask(url, trusting(certificates, shows))


async def test_the_policy_require_takes_any_certificate_but_wants_one(
    start: Brokers, certificates: Certificates, topic: str
) -> None:
    pytest.importorskip("OpenSSL")
    process = start(*certificates.flags, "--tls-client-auth-policy=require")
    base_url = f"https://{start.https[process]}"
    body = b"x" * 900_000
    for shows in ("client", "stranger"):
        context = trusting(certificates, shows)
        assert await ask(f"{base_url}/ping", context) == (200, b"OK")
        assert await ask(f"{base_url}/pub?topic={topic}", context, data=body) == (200, b"OK")
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await ask(f"{base_url}/ping", trusting(certificates))
    context = trusting(certificates, "stranger")
    _, answer = await ask(f"{base_url}/stats?format=json&topic={topic}", context)
    assert json.loads(answer)["topics"][0]["message_count"] == 2


async def test_input_that_is_no_tls_harms_no_other_client(
    start: Brokers, certificates: Certificates
) -> None:
    port = port_of(start, start(*certificates.flags))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(START_S):
        assert b"200 OK" not in await reader.read()
    writer.close()
    context = trusting(certificates)
    assert await ask(f"https://127.0.0.1:{port}/ping", context) == (200, b"OK")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=require"], "cannot require TLS client connections"),
        (["--tls-cert=/no/such/cert", "--tls-key=/no/such/key"], "--tls-cert=/no/such/cert"),
        (["--tls-cert=/no/such/cert", "--tls-key=KEY"], "--tls-cert=/no/such/cert: No such file"),
        (["--tls-cert=CERTIFICATE"], "--tls-cert needs --tls-key too"),
        (["--tls-key=KEY"], "--tls-key needs --tls-cert too"),
        (["--tls-cert=CERTIFICATE", "--tls-key=STRANGER"], "do not make a pair"),
        (["--tls-root-ca-file=KEY"], "holds no certificate in PEM"),
        (["--tls-cert=KEY", "--tls-key=KEY"], "--tls-cert"),
        (["--tls-cert=CERTIFICATE", "--tls-key=KEY", "--https-address=1.2.3.4:0"], "1.2.3.4:0"),
        (["--tls-root-ca-file=/no/such/file"], "--tls-root-ca-file=/no/such/file"),
    ],
)
def test_impossible_flags_are_refused_at_the_start(
    flags: list[str], says: str, certificates: Certificates, tmp_path: Path
) -> None:
    paths = {
        "CERTIFICATE": certificates.certificate,
        "STRANGER": certificates.stranger_key,
        "KEY": certificates.key,
    }
    names = []
    for flag in flags:
        name, _, value = flag.partition("=")
        names.append(f"{name}={paths.get(value, value)}" if value else name)
    common = [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"]
    ours = [sys.executable, "-m", "martlet", "broker"]
    for command in (ours, [NSQD]) if NSQD else (ours,):
        done = subprocess.run(
            [*command, *common, *names],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        by_options = "cannot require" in says
        assert done.returncode == (2 if by_options and command is ours else 1), done.stderr
        if command is ours:
            assert says in done.stderr.splitlines()[-1]


def test_without_pyopenssl_the_policy_require_is_refused_at_the_start(
    certificates: Certificates, tmp_path: Path
) -> None:
    flags = [
        "--tls-client-auth-policy=require",
        f"--data-path={tmp_path}",
        "--tcp-address=127.0.0.1:0",
    ]
    run = (
        "import sys; sys.modules['OpenSSL'] = None;"
        " from martlet.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", run, "broker", *flags, *certificates.flags],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 1
    assert "--tls-client-auth-policy=require needs the package pyOpenSSL" in done.stderr
    assert "pip install '.[pyopenssl]' in a clone" in done.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_routes_of_operators_want_tls_1_2(
    start_martlet: Brokers, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """nsqd's own routes answer what --tls-min-version allows, as there."""
    old = trusting(certificates)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    port = port_of(start_martlet, start_martlet(*certificates.flags))
    for context, path, status in (
        (old, "/ping", 200),
        (old, "/log/topics", 403),
        (trusting(certificates), "/log/topics", 200),
    ):
        answered, text = await ask(f"https://localhost:{port}{path}", context)
        assert answered == status, text
        assert (status == 403) == (b"TLS_TOO_OLD" in text)


async def test_https_may_listen_at_a_unix_socket(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "https"
    with BrokerProcess(None, f"--https-address={path}", *certificates.flags) as process:
        assert f"HTTPS: listening on {path}\n" in process.log()
        context = trusting(certificates)
        reader, writer = await asyncio.open_unix_connection(
            path, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(START_S):
            assert (await reader.read()).endswith(b"\r\n\r\nOK")
        writer.close()
        assert process.stop() == 0
        assert not path.exists()
