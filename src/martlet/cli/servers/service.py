"""Notify the service manager that started a server of its state.

systemd starts dependent services once a server has reported that it is ready (``Type=notify``), and
so does ``martlet up``.  A notification is a datagram to the Unix socket that ``NOTIFY_SOCKET``
names; a name that begins with ``@`` has no file.  Without the variable there is no service manager.
"""

from __future__ import annotations

import os
import socket

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
