"""Run a server until a signal, and notify the service manager that started it of its state.

systemd starts dependent services once a server has reported that it is ready (``Type=notify``), and
so does ``martlet up``.  A notification is a datagram to the Unix socket that ``NOTIFY_SOCKET``
names; a name that begins with ``@`` has no file.  Without the variable there is no service manager.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Protocol

from martlet.cli import start

_log = logging.getLogger(start.ROOT)

READY = "READY=1"
"""The server listens on all its addresses."""
STOPPING = "STOPPING=1"
"""The server is stopping."""

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Send a state to the service manager, if there is one; failures are ignored."""
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.sendto(state.encode(), socket.MSG_DONTWAIT, address)
    except OSError:
        return


class StoppableServer(Protocol):
    """A process that listens until it is stopped."""

    async def start(self) -> None:
        """Listen. Raises OSError."""

    async def stop(self) -> None:
        """Stop listening, and end all requests."""


async def serve(make: Callable[[], StoppableServer]) -> int:
    """Run a server until SIGTERM or SIGINT; return the exit code of the process."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        server = make()
        await server.start()
    except OSError as error:
        _log.critical("%s", error)
        return 1
    try:
        notify(READY)
        await stopping.wait()
        notify(STOPPING)
    finally:
        await server.stop()
    _log.info("bye")
    return 0
