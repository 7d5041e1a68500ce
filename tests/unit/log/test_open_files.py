"""The acceptor, where the system is out of something."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from martlet.log import open_files
from martlet.log.open_files import Acceptor
from martlet.server.listening_socket import listen, shown


class ShortSocket:
    """A listening socket that cannot accept for a while."""

    def __init__(self, sock: socket.socket, failure_count: int) -> None:
        self._sock = sock
        self._left = failure_count

    def accept(self) -> tuple[socket.socket, object]:
        if self._left:
            self._left -= 1
            raise OSError(errno.ENFILE, "Too many open files in system")
        return self._sock.accept()

    def fileno(self) -> int:
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)

    def close(self) -> None:
        self._sock.close()


async def test_a_lack_of_files_is_logged_once_and_waiting_clients_are_accepted_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_files, "_PAUSE_S", 0.001)
    accepted = asyncio.Event()

    class Guest(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.close()
            accepted.set()

    sock = listen("127.0.0.1:0", "tcp-address")
    server = Acceptor(Guest, ShortSocket(sock, 20), shown(sock))  # type: ignore[arg-type]
    try:
        with caplog.at_level(logging.WARNING), socket.create_connection(sock.getsockname()):
            async with asyncio.timeout(50):
                await accepted.wait()
    finally:
        server.close()
    failed, over = [record.message for record in caplog.records]
    assert failed.startswith(f"no connection is accepted at {server._address}: ")
    assert over.endswith("and 20 failed attempts")
