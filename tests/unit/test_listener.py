import socket
from pathlib import Path

import pytest

from martlet.server.listener import listen, port_of, remove, shown


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
