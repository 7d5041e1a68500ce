"""An auth server, as users of NSQ write one: it answers over HTTP what a client may do."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

EVERYTHING = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}


def allowed(*authorizations: object, ttl: object = 3600, **more: object) -> bytes:
    """An answer that allows that."""
    state = {"ttl": ttl, "identity": "anna", "identity_url": "https://example.com/anna"}
    return json.dumps(state | {"authorizations": authorizations} | more).encode()


@dataclass
class Request:
    """A request to the auth server."""

    method: str
    path: str
    headers: dict[str, str]
    query: list[tuple[str, str]]
    body: bytes


@dataclass
class Answer:
    """The answer to a secret. With `held`, it is sent when that is set."""

    body: bytes = b""
    status: int = 200
    held: threading.Event | None = None


@dataclass
class AuthServer:
    """Runs in threads of its own. Who sends a secret that is not in `answers` gets a 403."""

    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)

    def __enter__(self) -> AuthServer:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                query = parse_qsl(parts.query, keep_blank_values=True)
                request = Request(self.command, parts.path, dict(self.headers), query, body)
                server.asked.append(request)
                secret = json.loads(body)["secret"][0] if body else dict(query).get("secret", "")
                answer = server.answers.get(secret, Answer(b"go away", 403))
                if answer.held is not None:
                    assert answer.held.wait(30)
                self.send_response(answer.status)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_POST = do_GET

            def log_message(self, *_args: Any) -> None:
                """Log nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._http.server_address[1]}"

    def count(self, secret: str) -> int:
        """How often it was asked for a secret."""
        return sum(dict(request.query).get("secret") == secret for request in self.asked)
