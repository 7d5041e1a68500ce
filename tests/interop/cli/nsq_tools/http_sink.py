"""An HTTP server that takes messages, as a user's web hook does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import parse_qs, urlsplit


class Taken(NamedTuple):
    """A request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    @property
    def message(self) -> bytes:
        """Return the message that was to be sent."""
        if self.method == "POST":
            return self.body
        (text,) = parse_qs(urlsplit(self.path).query, encoding="latin-1")["m"]
        return text.encode("latin-1")


class HttpSink:
    """Listens while its ``with`` block runs.

    Args:
        answer: the status for a request.

    Attributes:
        location: where redirects lead.
    """

    def __init__(self, answer: Callable[[Taken], int] = lambda taken: 200) -> None:
        self.answer = answer
        self.location = ""
        self.asked: list[Taken] = []
        """All requests."""
        self.taken: list[Taken] = []
        """Those that were answered 2xx."""
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                taken = Taken(self.command, self.path, body, dict(self.headers))
                sink.asked.append(taken)
                status = sink.answer(taken)
                if 200 <= status < 300:
                    sink.taken.append(taken)
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", sink.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 1000  # with less the kernel drops some of many, for seconds

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def messages(self) -> list[bytes]:
        """Return the messages that were accepted."""
        return [taken.message for taken in self.taken]

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
