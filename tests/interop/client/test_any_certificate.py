"""TLS that takes any certificate, under each event loop: its sessions are used as Python's are."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.interop.certificates import Certificates

pytestmark = pytest.mark.interop
pytest.importorskip("OpenSSL")
uvloop = pytest.importorskip("uvloop")
ANSWER_S = 60.0


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = (
        uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    )
    return made


def served(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    certificates: Certificates,
    talk: Callable[[ssl.SSLSocket], bytes],
    shows: tuple[Path, Path],
) -> bytes:
    """Return the bytes that a client gets from an echo server."""
    from martlet.server.any_certificate import AnyCertificateContext

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            writer.write(data)
            await writer.drain()
        writer.close()

    def client(port: int) -> bytes:
        context = ssl.create_default_context(cafile=certificates.authority)
        context.load_cert_chain(*shows)
        with (
            socket.create_connection(("127.0.0.1", port), ANSWER_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wire,
        ):
            return talk(wire)

    async def run() -> bytes:
        context = AnyCertificateContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
        async with server, asyncio.timeout(ANSWER_S):
            return await asyncio.to_thread(client, server.sockets[0].getsockname()[1])

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(run())


def all_of(wire: ssl.SSLSocket, count: int) -> bytes:
    got = bytearray()
    while len(got) < count:
        piece = wire.recv(count - len(got))
        assert piece, "the server hung up"
        got += piece
    return bytes(got)


def test_records_that_come_together_are_all_read(
    new_loop: Callable[[], asyncio.AbstractEventLoop], certificates: Certificates
) -> None:
    """Of a hundred small records in one receive, none waits in OpenSSL for the next receive."""
    lines = [b"%d\n" % number for number in range(100)]

    def talk(wire: ssl.SSLSocket) -> bytes:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        for line in lines:
            wire.send(line)
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        return all_of(wire, len(b"".join(lines)))

    shows = (certificates.stranger, certificates.stranger_key)
    assert served(new_loop, certificates, talk, shows) == b"".join(lines)


def test_a_large_body_passes_both_ways(
    new_loop: Callable[[], asyncio.AbstractEventLoop], certificates: Certificates
) -> None:
    body = os.urandom(300_000)

    def talk(wire: ssl.SSLSocket) -> bytes:
        got = b""
        for start in range(0, len(body), 50_000):
            wire.sendall(body[start : start + 50_000])
            got += all_of(wire, 50_000)
        return got

    shows = (certificates.client, certificates.client_key)
    assert served(new_loop, certificates, talk, shows) == body


def test_wrapping_as_a_client_is_refused(certificates: Certificates) -> None:
    """The same context, wrapped round a socket, is Python's ssl, which verifies."""
    from martlet.options import BrokerOptions
    from martlet.server.tls import server_context

    context = server_context(
        BrokerOptions(
            tls_cert=str(certificates.certificate),
            tls_key=str(certificates.key),
            tls_client_auth_policy="require",
        )
    )
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
    with pytest.raises(ValueError, match="is a server's"):
        context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
