"""The limit of open files: the last ones are for the log, and not for further connections.

Each connection is a file, and so is each segment that the log begins. A server that gives its last
descriptor to a connection can store nothing more. So it accepts connections itself, and closes
those whose descriptor is one of the last at once: the system always gives the lowest that is free.
An event loop would accept a burst of them, and begin TLS, before a protocol sees the first.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from martlet.unreachable import Outage

if TYPE_CHECKING:
    import ssl

log = logging.getLogger(__name__)

MAX_SPARE = 64
"""The descriptors that no accepted connection gets, or a quarter of a low limit."""
REFUSAL = "refusing %d connections at %s: too few files are left for the log; raise LimitNOFILE"
_LOG_PAUSE_S = 1.0
"""How long refusals are counted before a further line of the log says so."""
_MAX_ACCEPTED = 64
"""The connections that are accepted in one turn of the loop."""
_HANDSHAKE_S = 5.0
_SHUTDOWN_S = 1.0
_PAUSE_S = 0.1
"""How long no connection is accepted where the system is out of something."""


def is_for_the_log(descriptor: int) -> bool:
    """Whether a descriptor is one of the last, which connections do not get."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and descriptor >= limit - min(MAX_SPARE, limit // 4)


class Acceptor:
    """Accepts connections on a listening socket, in TLS if it is given, and refuses those with a
    descriptor of the log's. `protocol` makes the protocol of each.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        sock: socket.socket,
        address: str,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._protocol = protocol
        self._sock = sock
        self._address = address
        self._tls: dict[str, Any] = {}
        if tls is not None:
            self._tls = {
                "ssl": tls,
                "ssl_handshake_timeout": _HANDSHAKE_S,
                "ssl_shutdown_timeout": _SHUTDOWN_S,
            }
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[Any]] = set()
        self._outage = Outage(
            f"no connection is accepted at {address}",
            f"connections are accepted at {address}",
            log=log,
            level=logging.ERROR,
        )
        self._refused_count = 0
        self._log_timer: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Stop listening. Connections that have begun go on."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._sock.close()
        for timer in (self._pause, self._log_timer):
            if timer is not None:
                timer.cancel()
        if self._tls:  # Other connections have begun with the next turns of the loop.
            for task in self._beginning:
                task.cancel()

    def _begin(self) -> None:
        self._pause = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                accepted, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors, or of memory
                self._outage.failed(str(error))
                self._loop.remove_reader(self._sock)
                self._pause = self._loop.call_later(_PAUSE_S, self._begin)
                return
            self._outage.over()
            if is_for_the_log(accepted.fileno()):
                accepted.close()
                self._refused()
                continue
            accepted.setblocking(False)
            connecting = self._loop.connect_accepted_socket(self._protocol, accepted, **self._tls)
            task = self._loop.create_task(connecting)
            self._beginning.add(task)
            task.add_done_callback(self._has_begun)

    def _has_begun(self, task: asyncio.Task[Any]) -> None:
        self._beginning.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError):
            log.debug("a client at %s did not begin: %s", self._address, error)
        elif error is not None:
            log.error("a client at %s failed to begin", self._address, exc_info=error)

    def _refused(self) -> None:
        self._refused_count += 1
        if self._log_timer is None:
            self._say()

    def _say(self) -> None:
        self._log_timer = None
        if self._refused_count:
            log.warning(REFUSAL, self._refused_count, self._address)
            self._refused_count = 0
            self._log_timer = self._loop.call_later(_LOG_PAUSE_S, self._say)
