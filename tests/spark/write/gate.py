"""A gate between Spark and a broker that stops at a step of a batch's way, and holds it there.

::

    task --SEND--> gate -----------> broker        STAGING: a block has come, and is not passed on
    driver --CALL transaction.commit--> gate       DECIDED: the commit has come, as far as here
                   gate <--committed-- broker      COMMITTED: done, unknown to the driver
    driver <------ gate                            ANSWERED: the driver knows

From then on nothing is passed on until the gate opens, so that anything done meanwhile to the
processes on either side is done at this step.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

_TAIL_BYTES = 64


class Step(StrEnum):
    """Where a batch is."""

    STAGING = "staging"
    DECIDED = "decided"
    COMMITTED = "committed"
    ANSWERED = "answered"


_MARKS = {
    Step.STAGING: b"SEND ",
    Step.DECIDED: b" transaction.commit\n",
    Step.COMMITTED: b'{"state":"committed"',
    Step.ANSWERED: b'{"state":"committed"',
}
_OF_ANSWERS = (Step.COMMITTED, Step.ANSWERED)


class Gate:
    """Runs in threads of its own.

    Args:
        broker_address: the broker's TCP address.

    Attributes:
        http_address: the address that Spark gets as the broker's.
    """

    def __init__(self, broker_address: str) -> None:
        host, _, port = broker_address.rpartition(":")
        self._broker = host, int(port)
        self._step: Step | None = None
        self._passes = 0
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._info())
        self.http_address = f"127.0.0.1:{self._http.server_address[1]}"

    def _info(self) -> type[BaseHTTPRequestHandler]:
        body = b'{"tcp_port": %d}' % self._listener.getsockname()[1]

        class Info(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        return Info

    def __enter__(self) -> Self:
        for target in (self._http.serve_forever, self._accept):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._listener.close()
        self.let_go()

    def stop_at(self, step: Step, passes: int = 0) -> None:
        """Stop where a batch comes to a step, after it was passed some times."""
        with self._lock:
            self._reached.clear()
            self._step, self._passes = step, passes

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is there."""
        return self._reached.wait(timeout_s)

    def let_go(self) -> None:
        """Cut off all that is held, and let others pass."""
        with self._lock:
            held, self._sockets = self._sockets, set()
            self._step = None
        for connection in held:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._open.wait()
        try:
            broker = socket.create_connection(self._broker)
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets |= {client, broker}
        back = threading.Thread(target=self._pass_on, args=(broker, client, True), daemon=True)
        back.start()
        self._pass_on(client, broker, False)
        back.join()
        client.close()
        broker.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        tail = b""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                step = self._is_there(tail + data, is_answer)
                tail = data[-_TAIL_BYTES:]
                if step is Step.ANSWERED:
                    target.sendall(data)
                if step is not None:
                    self._reached.set()
                self._open.wait()
                if step is not Step.ANSWERED:
                    target.sendall(data)
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _is_there(self, data: bytes, is_answer: bool) -> Step | None:
        with self._lock:
            step = self._step
            if step is None or is_answer != (step in _OF_ANSWERS) or _MARKS[step] not in data:
                return None
            if self._passes:
                self._passes -= 1
                return None
            self._step = None
            self._open.clear()
            return step
