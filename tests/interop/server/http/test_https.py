"""HTTPS as beside nsqd's: its port, its answers, and the answers of HTTP where TLS is required."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.interop.certificates import Certificates
from tests.interop.nsqd_process import NEEDS_NSQD, NSQD, NsqdProcess

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop
KINDS = [
    BrokerProcess,
    pytest.param(NsqdProcess, marks=NEEDS_NSQD),
]
START_S = 60.0
Make = Callable[..., BrokerProcess]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Make]:
    """Starts Martlet, and in the other run nsqd, with a certificate and these flags."""
    running: list[BrokerProcess] = []

    def make(*flags: str) -> BrokerProcess:
        address = "--https-address=127.0.0.1:0"
        process: BrokerProcess = request.param(None, address, *certificates.flags, *flags)
        running.append(process)
        process.start()
        return process

    yield make
    for process in running:
        process.close()


async def https_address(process: BrokerProcess) -> str:
    """Return the HTTPS port, which is logged a moment after the others listen."""
    async with asyncio.timeout(START_S):
        while True:
            match = re.search(r"HTTPS: listening on (\S+)\n", process.log())
            if match:
                return match[1]
            await asyncio.sleep(0.01)


async def https_port(process: BrokerProcess) -> int:
    return int((await https_address(process)).rpartition(":")[2])


def client_context(certificates: Certificates, *, shows: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if shows == "client":
        context.load_cert_chain(certificates.client, certificates.client_key)
    elif shows == "stranger":
        context.load_cert_chain(certificates.stranger, certificates.stranger_key)
    return context


async def ask(url: str, context: ssl.SSLContext | None = None, **more: Any) -> tuple[int, bytes]:
    method = "POST" if "data" in more else "GET"
    tls: dict[str, Any] = {"ssl": context} if context is not None else {}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, **tls, **more) as response,
    ):
        return response.status, await response.read()


async def test_everything_is_served_there_too(make: Make, certificates: Certificates) -> None:
    process = make()
    base_url = f"https://127.0.0.1:{await https_port(process)}"
    context = client_context(certificates)
    assert await ask(f"{base_url}/ping", context) == (200, b"OK")
    body = b"x" * 1_000_000
    assert await ask(f"{base_url}/pub?topic=t", context, data=body) == (200, b"OK")
    status, stats = await ask(f"http://{process.http_address}/stats?format=json")
    assert status == 200
    (topic,) = json.loads(stats)["topics"]
    assert topic["message_bytes"] == len(body)


async def test_http_goes_on_where_only_tcp_must_use_tls(
    make: Make, certificates: Certificates
) -> None:
    process = make("--tls-required=tcp-https")
    assert await ask(f"http://{process.http_address}/ping") == (200, b"OK")


async def test_http_names_the_https_port_where_tls_is_required(
    make: Make, certificates: Certificates
) -> None:
    process = make("--tls-required")
    port = await https_port(process)
    for path in ("ping", "stats", "nope"):
        status, body = await ask(f"http://{process.http_address}/{path}")
        assert status == 403
        assert json.loads(body) == {"message": "TLS_REQUIRED", "https_port": port}
    status, body = await ask(f"http://{process.http_address}/pub?topic=t", data=b"x" * 500_000)
    assert status == 403
    context = client_context(certificates)
    assert await ask(f"https://127.0.0.1:{port}/ping", context) == (200, b"OK")


async def test_a_policy_for_certificates_holds_there_too(
    make: Make, certificates: Certificates
) -> None:
    process = make(
        "--tls-client-auth-policy=require-verify", f"--tls-root-ca-file={certificates.authority}"
    )
    base_url = f"https://127.0.0.1:{await https_port(process)}"
    url = f"{base_url}/ping"
    context = client_context(certificates, shows="client")
    assert await ask(url, context) == (200, b"OK")
    assert await ask(f"{base_url}/config/tls_required", context) == (200, b"2")
    for shows in ("", "stranger"):
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await ask(url, client_context(certificates, shows=shows))


async def test_the_policy_require_takes_any_certificate_but_wants_one(
    make: Make, certificates: Certificates
) -> None:
    pytest.importorskip("OpenSSL")
    process = make("--tls-client-auth-policy=require")
    base_url = f"https://127.0.0.1:{await https_port(process)}"
    body = b"x" * 900_000
    for shows in ("client", "stranger"):
        context = client_context(certificates, shows=shows)
        assert await ask(f"{base_url}/ping", context) == (200, b"OK")
        status, answer = await ask(f"{base_url}/pub?topic=t", context, data=body)
        assert (status, answer) == (200, b"OK")
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await ask(f"{base_url}/ping", client_context(certificates))
    context = client_context(certificates, shows="stranger")
    status, answer = await ask(f"{base_url}/stats?format=json", context)
    assert json.loads(answer)["topics"][0]["message_count"] == 2


async def test_input_that_is_no_tls_harms_no_other_client(
    make: Make, certificates: Certificates
) -> None:
    process = make()
    port = await https_port(process)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(START_S):
        assert b"200 OK" not in await reader.read()
    writer.close()
    context = client_context(certificates)
    assert await ask(f"https://127.0.0.1:{port}/ping", context) == (200, b"OK")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--tls-required"], "cannot require TLS client connections without TLS key and cert"),
        (["--tls-client-auth-policy=require"], "cannot require TLS client connections"),
        (["--tls-cert=/no/such/cert", "--tls-key=/no/such/key"], "--tls-cert=/no/such/cert"),
        (["--tls-cert=CERTIFICATE"], "--tls-key"),
        (["--tls-cert=CERTIFICATE", "--tls-key=STRANGER"], "--tls-key"),
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
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    """nsqd's own routes answer what --tls-min-version allows, as there."""
    old = client_context(certificates)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    flags = ("--https-address=127.0.0.1:0", *certificates.flags)
    with BrokerProcess(None, *flags) as process:
        port = (await https_address(process)).rpartition(":")[2]
        async with aiohttp.ClientSession() as session:
            for context, path, status in (
                (old, "/ping", 200),
                (old, "/log/topics", 403),
                (client_context(certificates), "/log/topics", 200),
            ):
                url = f"https://localhost:{port}{path}"
                async with session.get(url, ssl=context) as answer:
                    text = await answer.text()
                    assert answer.status == status, text
                    assert (status == 403) == ("TLS_TOO_OLD" in text)


async def test_https_may_listen_at_a_unix_socket(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "https"
    with BrokerProcess(None, f"--https-address={path}", *certificates.flags) as process:
        assert await https_address(process) == str(path)
        context = client_context(certificates)
        reader, writer = await asyncio.open_unix_connection(
            path, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /ping HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(START_S):
            assert (await reader.read()).endswith(b"\r\n\r\nOK")
        writer.close()
        assert process.stop() == 0
        assert not path.exists()
