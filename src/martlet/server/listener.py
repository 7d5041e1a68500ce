"""The listening socket: made from an address as flags give it.

An address is ``host:port``, ``:port``, ``[::1]:port`` or, where it is none of these, the path of a
Unix socket, as with nsqd.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Callable
from contextlib import suppress

_BACKLOG = 4096
_HINTS: dict[int | None, str] = {
    errno.EADDRINUSE: ": somebody else listens there",
    errno.EADDRNOTAVAIL: ": this machine has no such address",
    errno.EACCES: ": that is not allowed to this user (ports below 1024 are root's)",
    errno.ENOENT: ": the folder is not there",
}


def listen(address: str, flag: str) -> socket.socket:
    """A socket that listens, and does not block.

    A Unix socket that a killed process left behind is replaced; one that somebody listens on is
    not, nor is any other file.

    Args:
        address: where.
        flag: the flag that the address came from, for the error.

    Raises:
        OSError: it cannot; the text says which address and which flag.
    """
    host, colon, port = address.rpartition(":")
    sock: socket.socket | None = None
    try:
        if colon and port.isdecimal():
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host.strip("[]"), int(port)))
        elif colon and "/" not in address:
            raise OSError(errno.EINVAL, f"{port!r} is no port")
        elif address.isdecimal():
            raise OSError(errno.EINVAL, f"neither host:port nor a path; did you mean :{address}")
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            _remove_left_behind(address)
            sock.bind(address)
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        if sock is not None:
            sock.close()
        hint = _HINTS.get(getattr(error, "errno", None), "")
        raise OSError(f"listen ({address}) failed: {error}; see --{flag}{hint}") from error
    sock.setblocking(False)
    return sock


async def serve(
    loop: asyncio.AbstractEventLoop,
    protocol: Callable[[], asyncio.BaseProtocol],
    sock: socket.socket,
) -> asyncio.Server:
    """Accept connections on the socket, of whichever family it is."""
    if sock.family == socket.AF_UNIX:
        return await loop.create_unix_server(protocol, sock=sock, backlog=_BACKLOG)
    return await loop.create_server(protocol, sock=sock, backlog=_BACKLOG)


def shown(sock: socket.socket) -> str:
    """The address as one would write it: ``127.0.0.1:4150``, ``[::1]:4150`` or a path."""
    name = sock.getsockname()
    if isinstance(name, str):
        return name
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


def port_of(sock: socket.socket) -> int:
    """The port that it listens on; -1 for a Unix socket, as nsqd tells it."""
    name = sock.getsockname()
    return -1 if isinstance(name, str) else int(name[1])


def remove(path: str) -> None:
    """Take a Unix socket's file away, once nobody listens any more."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _remove_left_behind(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
