import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest
import uvloop

from martlet.addresses import shown_peer
from martlet.log.open_files import Acceptor
from martlet.server import listening_socket as listener
from martlet.server.listening_socket import is_local, listen, port_of, remove, shown


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", ":0"])
def test_listens_on_a_port(address: str) -> None:
    with listen(address, "tcp-address") as sock:
        assert not sock.getblocking()
        assert port_of(sock) > 0
        assert shown(sock).endswith(f":{port_of(sock)}")
        socket.create_connection(("127.0.0.1", port_of(sock))).close()


def test_listens_on_ipv6() -> None:
    try:
        sock = listen("[::1]:0", "tcp-address")
    except OSError:
        pytest.skip("this machine has no IPv6")
    with sock:
        assert shown(sock) == f"[::1]:{port_of(sock)}"


def test_the_error_of_a_port_in_use_names_address_and_flag() -> None:
    with listen("127.0.0.1:0", "tcp-address") as first:
        address = shown(first)
        with pytest.raises(OSError, match="Address already in use") as caught:
            listen(address, "http-address")
        assert f"listen ({address}) failed" in str(caught.value)
        assert str(caught.value).endswith(
            "another process listens there: stop it, or give another port with --http-address"
        )


@pytest.mark.parametrize(
    ("address", "error_text"),
    [
        ("4150", "neither host:port nor a path; did you mean :4150; correct --tcp-address"),
        ("127.0.0.1:http", "'http' is no port; correct --tcp-address"),
        ("127.0.0.1:", "'' is no port; correct --tcp-address"),
        ("127.0.0.1:70000", "'70000' is no port; correct --tcp-address"),
        ("203.0.113.1:0", "this machine has no such address: give one that it has with --tcp-"),
        ("no/such/folder/martlet.sock", "the folder is not there: make it, or give another path"),
        ("/dev/null/martlet.sock", "a file is where a folder has to be: give another path with --"),
        (f"/tmp/{'x' * 103}", "has 107 bytes at most; correct --tcp-address"),
    ],
)
def test_a_failed_listen_names_the_flag_and_says_what_to_do(address: str, error_text: str) -> None:
    with pytest.raises(OSError, match="--tcp-address") as caught:
        listen(address, "tcp-address")
    assert str(caught.value).startswith(f"listen ({address}) failed: ")
    assert error_text in str(caught.value)
    assert not Path(address).exists()


@pytest.mark.parametrize(
    ("error", "error_text"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "there is no such host"),
        (
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure"),
            "no name server knows the host's address",
        ),
    ],
)
def test_an_unknown_name_is_reported(
    error: OSError, error_text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(OSError, match=f"{error_text}: correct --https-address"):
        listen("broker.example:4152", "https-address")


def test_a_privileged_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(listener, "_bind", refuse)
    with pytest.raises(OSError, match="ports below 1024 are root's: give another port with --http"):
        listen("127.0.0.1:80", "http-address")


def test_listens_on_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "martlet.sock")
    with listen(path, "tcp-address") as sock:
        assert shown(sock) == path
        assert port_of(sock) == -1
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        with pytest.raises(OSError, match="stop it, or give another path with --tcp-address"):
            listen(path, "tcp-address")
    with listen(path, "tcp-address"):  # the file that was left behind is replaced
        pass
    remove(path)
    remove(path)
    assert not (tmp_path / "martlet.sock").exists()


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_bytes(b"data")
    with pytest.raises(OSError, match="a file is there, and no socket; move it away, or"):
        listen(str(path), "tcp-address")
    with pytest.raises(OSError, match="a folder is there, and no socket; move it away, or"):
        listen(str(tmp_path), "tcp-address")
    assert path.read_bytes() == b"data"


def can_bind_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not can_bind_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("address", [":0", "0.0.0.0:0", "[::]:0"])
def test_every_address_of_the_machine_is_ipv4_and_ipv6_alike(address: str) -> None:
    with listen(address, "tcp-address") as sock:
        assert shown(sock) == f"[::]:{port_of(sock)}"
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port_of(sock)), timeout=5):
                pass


@pytest.mark.parametrize("address", [":0", "0.0.0.0:0"])
def test_without_ipv6_it_is_ipv4_alone(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = listener._bind

    def no_ipv6(family: int, place: tuple[str | int | bytes, ...]) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return bind(family, place)

    monkeypatch.setattr(listener, "_bind", no_ipv6)
    with listen(address, "tcp-address") as sock:
        assert shown(sock) == f"0.0.0.0:{port_of(sock)}"


def test_a_name_is_looked_up_and_ipv4_is_preferred() -> None:
    with listen("localhost:0", "tcp-address") as sock:
        assert shown(sock) == f"127.0.0.1:{port_of(sock)}"


def test_a_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        OSError, match=r"listen \(no.such.host.invalid:0\) failed.*there is no such host: correct"
    ):
        listen("no.such.host.invalid:0", "tcp-address")


def test_a_unix_socket_may_have_a_name_without_a_file(tmp_path: Path) -> None:
    name = f"@martlet-{tmp_path.name}-{os.getpid()}"
    with listen(name, "tcp-address") as sock, socket.socket(socket.AF_UNIX) as client:
        assert shown(sock) == name
        client.connect("\0" + name[1:])
        assert port_of(sock) == -1
    remove(name)


async def peer_shown(sock: socket.socket, connect: Callable[[], socket.socket]) -> str:
    """Return the client's name on the listener's side."""
    shown_peers: asyncio.Queue[str] = asyncio.Queue()

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            shown_peers.put_nowait(shown_peer(transport))

    server = Acceptor(Guest, sock, shown(sock))
    try:
        with connect() as client:
            peer = await asyncio.wait_for(shown_peers.get(), 50)
            name = client.getsockname()
            return peer.replace(str(name[1]), "PORT") if isinstance(name, tuple) else peer
    finally:
        server.close()


@pytest.mark.skipif(not can_bind_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", "127.0.0.1:PORT"), ("::1", "[::1]:PORT")]
)
async def test_a_client_is_shown_by_its_own_address(host: str, expected: str) -> None:
    sock = listen(":0", "tcp-address")
    place = (host, port_of(sock))
    assert await peer_shown(sock, lambda: socket.create_connection(place, timeout=5)) == expected


async def test_a_client_of_a_unix_socket_has_no_address(tmp_path: Path) -> None:
    path = str(tmp_path / "door")

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        return client

    assert await peer_shown(listen(path, "tcp-address"), connect) == "@"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_was_accepted_begins_and_ends_though_the_listener_closes(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A server that stops waits for the end of each connection that has begun."""

    class Ending(asyncio.Protocol):
        """Aborts its connection as it begins."""

        def __init__(self) -> None:
            self.lost = asyncio.Event()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert not transport.is_closing()
            cast(asyncio.Transport, transport).abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self.lost.set()

    async def close_at_once() -> None:
        protocol = Ending()
        sock = listen("127.0.0.1:0", "tcp-address")
        acceptor = Acceptor(lambda: protocol, sock, shown(sock))
        with socket.create_connection(("127.0.0.1", port_of(sock))):
            acceptor._accept()
            await asyncio.sleep(0)  # So that it is about to begin.
            acceptor.close()
            async with asyncio.timeout(60):
                await protocol.lost.wait()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(close_at_once())


class Peer(asyncio.BaseTransport):
    """The transport of a client at an address."""

    def __init__(self, family: socket.AddressFamily, name: object) -> None:
        super().__init__({"socket": Mock(family=family), "peername": name})


@pytest.mark.parametrize(
    ("family", "name", "expected"),
    [
        (socket.AF_INET, ("127.0.0.1", 80), True),
        (socket.AF_INET, ("127.9.9.9", 80), True),
        (socket.AF_INET, ("10.0.0.1", 80), False),
        (socket.AF_INET, ("128.0.0.1", 80), False),
        (socket.AF_INET, None, False),
        (socket.AF_INET6, ("::1", 80, 0, 0), True),
        (socket.AF_INET6, ("::ffff:127.0.0.1", 80, 0, 0), True),
        (socket.AF_INET6, ("::ffff:10.0.0.1", 80, 0, 0), False),
        (socket.AF_INET6, ("fe80::1%eth0", 80, 0, 2), False),
        (socket.AF_INET6, ("::", 80, 0, 0), False),
        (socket.AF_UNIX, "", True),
        (socket.AF_UNIX, "/run/10.0.0.1:80", True),
        (socket.AF_UNIX, b"\0name", True),
    ],
)
def test_a_client_at_loopback_or_a_unix_socket_is_on_this_machine(
    family: socket.AddressFamily, name: object, expected: bool
) -> None:
    assert is_local(Peer(family, name)) is expected
    assert not is_local(None)
