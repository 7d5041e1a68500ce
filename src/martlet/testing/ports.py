"""Ports for servers that tests start, which no other test process deals out as well.

Between the finding of a free port and a server's taking it, or while the server is killed and
started again, another process might get it.  The system gives none of these ports by itself.  And a
process deals out the ports of a block, which is its own as long as it listens at the block's first.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from itertools import cycle, islice

_PORTS = range(10_240, 32_768)
_BLOCK = 256


class _Dealer:
    def __init__(self) -> None:
        self.begin_anew()
        os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self) -> None:
        """The next port is of another block: a forked process must not go on with its parent's."""
        self._lock = threading.Lock()
        self._ports: Iterator[int] | None = None

    def free_port(self) -> int:
        with self._lock:
            if self._ports is None:
                self._ports = _own_block()
            for port in islice(self._ports, _BLOCK):
                if (listener := _bound(port)) is not None:
                    listener.close()
                    return port
        raise OSError(f"no port of this process's {_BLOCK} is free on 127.0.0.1")


def _own_block() -> Iterator[int]:
    firsts = range(_PORTS.start, _PORTS.stop, _BLOCK)
    # Not the tests' own generator: a seed would have all processes begin with the same.
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        if (listener := _bound(first)) is not None:
            try:
                listener.listen()
            except OSError:  # taken since
                listener.close()
                continue
            listener.detach()  # It listens until this process ends.
            # Long after its first use comes the second.
            return cycle(range(first + 1, first + _BLOCK))
    raise OSError(f"no {_BLOCK} ports are free for tests on 127.0.0.1 of {_PORTS}")


def _bound(port: int) -> socket.socket | None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        return None
    return listener


free_port = _Dealer().free_port
