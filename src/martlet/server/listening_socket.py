"""Make a listening socket from the address of a flag, and show addresses as text.

An address is ``host:port``, ``:port``, ``[::1]:port`` or, where it is none of these, the path of a
Unix socket, as with nsqd; a path that begins with ``@`` has no file (Linux's abstract names).  No
host, ``0.0.0.0`` and ``[::]`` all mean every address of the machine, IPv4 and IPv6 alike.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress
from ipaddress import ip_address

from martlet.addresses import shown_host, shown_name

_BACKLOG = 4096
_HIGHEST_PORT = 65535
_EVERYWHERE = frozenset({"", "0.0.0.0", "::"})
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
_MAX_PATH_BYTES = 107
_OTHER_PORT = "give another port with --{flag}"
_OTHER_PATH = "give another path with --{flag}"
_WAYS_OUT: dict[int | None, str] = {
    errno.EADDRINUSE: f"another process listens there: stop it, or {_OTHER_PORT}",
    errno.EADDRNOTAVAIL: "this machine has no such address: give one that it has with --{flag},"
    " or :PORT for all of them",
    errno.EACCES: f"ports below 1024 are root's: {_OTHER_PORT}",
    socket.EAI_NONAME: "there is no such host: correct --{flag}, or give :PORT for every address of"
    " this machine",
    socket.EAI_AGAIN: "no name server knows the host's address: correct --{flag}, or give a number",
}
_WAYS_OUT_OF_PATHS: dict[int | None, str] = {
    errno.EADDRINUSE: f"another process listens there: stop it, or {_OTHER_PATH}",
    errno.EACCES: f"let this user write in that folder, or {_OTHER_PATH}",
    errno.ENOENT: f"the folder is not there: make it, or {_OTHER_PATH}",
    errno.ENOTDIR: f"a file is where a folder has to be: {_OTHER_PATH}",
    errno.EEXIST: f"move it away, or {_OTHER_PATH}",
}


def listen(address: str, flag: str) -> socket.socket:
    """Return a listening socket that does not block.

    The socket file of a killed process is replaced; one with a listening process, or any other
    file, is not.

    Args:
        flag: the flag that the address came from, for the error.

    Raises:
        OSError: it cannot listen; the text names the address, the reason, and the remedy by the
        flag.
    """
    host, colon, port = address.rpartition(":")
    sock: socket.socket | None = None
    ways_out = _WAYS_OUT
    try:
        if colon and port.isdecimal() and int(port) <= _HIGHEST_PORT:
            sock = _bound(host.strip("[]"), int(port))
        elif colon and "/" not in address:
            raise OSError(errno.EINVAL, f"{port!r} is no port")
        elif not address or address.isdecimal():
            meant = f"; did you mean :{address}" if address else ""
            raise OSError(errno.EINVAL, f"neither host:port nor a path{meant}")
        else:
            ways_out = _WAYS_OUT_OF_PATHS
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            if len(os.fsencode(address)) > _MAX_PATH_BYTES:
                max_count = f"the path of a Unix socket has {_MAX_PATH_BYTES} bytes at most"
                raise OSError(errno.ENAMETOOLONG, max_count)
            if not address.startswith("@"):
                _remove_left_behind(address)
            sock.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        sock.listen(_BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        way_out = ways_out.get(error.errno, "correct --{flag}").format(flag=flag)
        reason = error.strerror or error
        raise OSError(f"listen ({address}) failed: {reason}; {way_out}") from error
    sock.setblocking(False)
    return sock


def _bound(host: str, port: int) -> socket.socket:
    if host in _EVERYWHERE:
        try:
            return _bind(socket.AF_INET6, ("::", port))
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            host = "0.0.0.0"
    entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    family, *_, address = min(entries, key=lambda entry: entry[0] != socket.AF_INET)
    return _bind(family, (address[0], port, *address[2:]))


def _bind(family: int, address: tuple[str | int | bytes, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def shown(sock: socket.socket) -> str:
    """Return the address as a user writes it: ``127.0.0.1:4150``, ``[::1]:4150`` or a path."""
    return shown_name(sock.getsockname())


def is_local(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether a client is on this machine: at a loopback address or a Unix socket."""
    sock = None if transport is None else transport.get_extra_info("socket")
    if transport is None or sock is None:
        return False
    if sock.family == socket.AF_UNIX:
        return True
    peer = transport.get_extra_info("peername")
    return bool(peer) and ip_address(shown_host(peer[0]).partition("%")[0]).is_loopback


def port_of(sock: socket.socket) -> int:
    """Return the port of a listening socket; -1 for a Unix socket, as nsqd reports it."""
    name = sock.getsockname()
    return int(name[1]) if isinstance(name, tuple) else -1


def remove(path: str) -> None:
    """Remove a Unix socket's file, if it has one, after it stopped listening."""
    if not path.startswith("@"):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _remove_left_behind(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a file"
        raise FileExistsError(errno.EEXIST, f"{what} is there, and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
