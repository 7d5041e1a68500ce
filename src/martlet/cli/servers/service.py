"""The service manager: what it is told of a server that it has started.

systemd waits with what needs a server until that has said it is ready (``Type=notify``), and so
does ``martlet up``.  What is told is a datagram to the Unix socket that ``NOTIFY_SOCKET`` names; a
name that begins with ``@`` has no file.  Where the variable is not set nobody wants to know.
"""

from __future__ import annotations

import os
import socket

READY = "READY=1"
"""All client are open."""
STOPPING = "STOPPING=1"
"""It was asked to stop, and is stopping."""

VARIABLE = "NOTIFY_SOCKET"


def notify(state: str) -> None:
    """Tell the service manager, if there is one.

    One that cannot be reached is none: a server runs on without.
    """
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
