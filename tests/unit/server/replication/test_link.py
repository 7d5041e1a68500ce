"""A connection between replicas."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import uvloop
from tests.interop.certificates import Certificates
from tests.polling import until
from tests.unit.server.replication.test_trust import load

from martlet.replica.frames import MAX_GREETING_BYTES, Frame, FrameKind
from martlet.server.replication.link import ReplicaLink, connect
from martlet.server.replication.trust import LinkTrust

log = logging.getLogger("martlet")


class Owner:
    """A process that keeps the frames that it receives, and joins the pieces of DATA."""

    def __init__(self) -> None:
        self.links: set[ReplicaLink] = set()
        self.strangers: dict[ReplicaLink, None] = {}
        self.frames: list[Frame] = []
        self.body_bytes = 0
        self.received = asyncio.Event()
        self.drained = asyncio.Event()

    def link_received(self, link: ReplicaLink, frames: list[Frame]) -> None:
        for frame in frames:
            last = self.frames[-1] if self.frames else frame
            self.body_bytes += len(frame.body)
            if last.body and frame.position == last.position + len(last.body):
                self.frames[-1] = last._replace(body=bytes(last.body) + bytes(frame.body))
            else:
                self.frames.append(frame._replace(body=bytes(frame.body)))
        self.received.set()

    def link_drained(self, link: ReplicaLink) -> None:
        self.drained.set()

    def link_lost(self, link: ReplicaLink) -> None:
        self.received.set()

    def link_spliced(self, link: ReplicaLink, frame: Frame) -> None:
        raise AssertionError


def trust(folder: Path, *, tls: bool) -> LinkTrust:
    return load(Certificates(folder), "127.0.0.1") if tls else LinkTrust()


async def listening(owner: Owner, peer_trust: LinkTrust) -> tuple[asyncio.Server, str]:
    """A server of links, and its address."""
    server = await asyncio.get_running_loop().create_server(
        lambda: ReplicaLink(owner, peer_trust, log), "127.0.0.1", 0, ssl=peer_trust.server_tls
    )
    return server, "{}:{}".format(*server.sockets[0].getsockname())


async def exchange(sent: list[Frame], peer_trust: LinkTrust) -> list[Frame]:
    """Send frames to a process that does not read until all are sent."""
    loop = asyncio.get_running_loop()
    sender, receiver = Owner(), Owner()
    accepted: asyncio.Future[asyncio.ReadTransport] = loop.create_future()

    class SlowLink(ReplicaLink):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            reading = cast(asyncio.ReadTransport, transport)  # uvloop's is no subclass of it.
            reading.pause_reading()
            accepted.set_result(reading)

    server = await loop.create_server(
        lambda: SlowLink(receiver, peer_trust, log), "127.0.0.1", 0, ssl=peer_trust.server_tls
    )
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    link = await connect(
        address, peer_trust, lambda: ReplicaLink(sender, peer_trust, log, is_acceptor=False)
    )
    reading = await accepted
    for frame in sent:
        link.send(frame)
    filled = [link.is_full, sender.drained.is_set()]
    reading.resume_reading()
    await sender.drained.wait()
    assert [*filled, link.is_full] == [True, False, False]
    body_bytes = sum(len(frame.body) for frame in sent)
    while len(receiver.frames) < len(sent) or receiver.body_bytes < body_bytes:
        await receiver.received.wait()
        receiver.received.clear()
        assert receiver.links, "the connection was lost"
    link.close()
    server.close()
    return receiver.frames


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_frames_arrive_in_order_when_the_socket_is_full(
    run: Callable[[Coroutine[Any, Any, list[Frame]]], list[Frame]], tls: bool, tmp_path: Path
) -> None:
    """Of a large frame the socket may take a part, of the header even. The sender is told when it
    has taken the rest.
    """
    random = Random(1)
    sizes = [0, 1, 100, 1 << 14, 1 << 20, 70_000]
    sent = [
        Frame(FrameKind.DATA, 1, number << 32, 0, random.randbytes(random.choice(sizes)))
        for number in range(60)
    ]
    received = run(exchange(sent, trust(tmp_path, tls=tls)))
    assert received == sent


def test_a_stranger_s_certificate_is_named_as_a_reason(tmp_path: Path) -> None:
    peer_trust = replace(trust(tmp_path, tls=True), secret=b"the secret of all replicas")
    assert peer_trust.client_tls is not None
    stranger = ssl.create_default_context(cafile=tmp_path / "authority.pem")
    stranger.load_cert_chain(tmp_path / "stranger.pem", tmp_path / "stranger.key")

    async def meet() -> None:
        server, address = await listening(Owner(), peer_trust)
        other = replace(peer_trust, client_tls=stranger)
        with pytest.raises(OSError, match="another --replica-secret-file or --replica-tls-ca-file"):
            await connect(
                address, other, lambda: ReplicaLink(Owner(), other, log, is_acceptor=False)
            )
        server.close()
        await server.wait_closed()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(meet())


async def test_a_stranger_cannot_send_a_large_first_frame() -> None:
    """Of 256 strangers, each with 64 MiB of a frame that does not end, the memory would be full."""
    owner = Owner()
    loop = asyncio.get_running_loop()
    server, address = await listening(owner, LinkTrust())
    large = Frame(FrameKind.DATA, 1, body=bytes(MAX_GREETING_BYTES + 1))
    with socket.create_connection(server.sockets[0].getsockname()) as stranger:
        stranger.setblocking(False)
        for data in (large.pack_header(), b"What it still sends resets nothing.", b"Nor this."):
            await loop.sock_sendall(stranger, data)
            assert await loop.sock_recv(stranger, 1) == b""
    assert (owner.frames, owner.strangers) == ([], {})
    # One that has sent a frame may.
    peer = await connect(
        address, LinkTrust(), lambda: ReplicaLink(Owner(), LinkTrust(), log, is_acceptor=False)
    )
    peer.send(Frame(FrameKind.HELLO, 1, body=b"{}"))
    await until(lambda: owner.frames)
    peer.send(large)
    await until(lambda: owner.body_bytes >= len(b"{}") + len(large.body))
    assert owner.frames[1:] == [large]
    peer.close()
    server.close()


@pytest.mark.parametrize("address", ["", "nonsense:", "10.0.0.1:99999999", "10.0.0.1:x"])
async def test_an_address_of_the_document_that_is_none_ends_no_process(address: str) -> None:
    with pytest.raises(OSError, match="is no address: it must be like"):
        await connect(address, LinkTrust(), lambda: ReplicaLink(Owner(), LinkTrust(), log))
