import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from martlet.server import listener
from martlet.server.listener import listen, port_of, remove, serve, shown, shown_peer


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


def test_a_port_in_use_is_told_by_address_and_flag() -> None:
    with listen("127.0.0.1:0", "tcp-address") as first:
        address = shown(first)
        with pytest.raises(OSError, match=r"Address already in use.*see --http-address") as caught:
            listen(address, "http-address")
        assert f"listen ({address}) failed" in str(caught.value)


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("4150", "neither host:port nor a path; did you mean :4150"),
        ("203.0.113.1:0", "this machine has no such address"),
        ("no/such/folder/martlet.sock", "the folder is not there"),
    ],
)
def test_what_fails_is_told_with_a_way_out(address: str, hint: str) -> None:
    with pytest.raises(OSError, match=r"see --tcp-address") as caught:
        listen(address, "tcp-address")
    assert hint in str(caught.value)
    assert not Path(address).exists()


@pytest.mark.parametrize("address", ["127.0.0.1:http", "127.0.0.1:", "127.0.0.1:70000"])
def test_a_port_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(OSError, match="see --tcp-address"):
        listen(address, "tcp-address")


def test_listens_on_a_path(tmp_path: Path) -> None:
    path = str(tmp_path / "martlet.sock")
    with listen(path, "tcp-address") as sock:
        assert shown(sock) == path
        assert port_of(sock) == -1
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        with pytest.raises(OSError, match="Address already in use"):
            listen(path, "tcp-address")
    with listen(path, "tcp-address"):  # the file that was left behind is replaced
        pass
    remove(path)
    remove(path)
    assert not (tmp_path / "martlet.sock").exists()


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_bytes(b"data")
    with pytest.raises(OSError, match="Address already in use"):
        listen(str(path), "tcp-address")
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


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(
        OSError, match=r"listen \(no.such.host.invalid:0\) failed.*--tcp-address: there is no"
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
    """What the listener's side calls a client."""
    shown_peers: asyncio.Queue[str] = asyncio.Queue()

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            shown_peers.put_nowait(shown_peer(transport))

    door = await serve(asyncio.get_running_loop(), Guest, sock)
    try:
        with connect() as client:
            told = await asyncio.wait_for(shown_peers.get(), 5)
            name = client.getsockname()
            return told.replace(str(name[1]), "PORT") if isinstance(name, tuple) else told
    finally:
        door.close()
        await door.wait_closed()


@pytest.mark.skipif(not can_bind_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", "127.0.0.1:PORT"), ("::1", "[::1]:PORT")])
async def test_a_client_is_told_by_the_address_that_it_has_itself(host: str, told: str) -> None:
    sock = listen(":0", "tcp-address")
    place = (host, port_of(sock))
    assert await peer_shown(sock, lambda: socket.create_connection(place, timeout=5)) == told


async def test_a_client_of_a_unix_socket_has_no_address(tmp_path: Path) -> None:
    path = str(tmp_path / "door")

    def connect() -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        client.connect(path)
        return client

    assert await peer_shown(listen(path, "tcp-address"), connect) == "@"
