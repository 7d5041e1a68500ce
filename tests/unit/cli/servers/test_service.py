"""Messages to a service manager."""

import os
import socket
from pathlib import Path

import pytest

from martlet.cli.servers import service


def received(sock: socket.socket) -> bytes:
    sock.settimeout(5)
    return sock.recv(100)


def test_a_service_manager_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        service.notify(service.READY)
        assert received(manager) == b"READY=1"


def test_a_service_manager_at_an_abstract_socket_is_notified(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"martlet-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        service.notify(service.STOPPING)
        assert received(manager) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "nothing", "/nowhere/at/all", "/" + "x" * 200])
def test_without_a_manager_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    service.notify(service.READY)
