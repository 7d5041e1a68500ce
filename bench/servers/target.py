"""A server under measurement: its ports, its topics, its version."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

_ANSWER_S = 60.0
_SETTLE_S = 120.0
_LOOK_AGAIN_S = 0.05


class TargetFailed(Exception):
    """A server cannot be measured; the text says why."""


@dataclass(frozen=True)
class Target:
    """An NSQ server.

    Attributes:
        name: its name in the report.
        host, port: where it listens for TCP.
        http_host, http_port: where it listens for HTTP.
    """

    name: str
    host: str
    port: int
    http_host: str
    http_port: int

    @classmethod
    def parse(cls, text: str, name: str = "") -> Target:
        """``HOST:PORT[,HTTP]``, HTTP being a port or another ``HOST:PORT``.

        Without it, HTTP is looked for one port higher, as NSQ's defaults have it.

        Raises:
            ValueError: it is none of that.
        """
        tcp, _, rest = text.partition(",")
        host, port = _host_port(tcp, "127.0.0.1")
        http_host, http_port = _host_port(rest, host) if rest else (host, port + 1)
        return cls(name or tcp, host, port, http_host, http_port)

    @property
    def http_address(self) -> str:
        """Where HTTP is, as ``host:port``."""
        return f"{self.http_host}:{self.http_port}"

    def version(self) -> str:
        """The version that the server reports."""
        return str(self._get("/info").get("version", "unknown"))

    def fresh(self, topic: str, channel: str) -> None:
        """Make the topic and its channel, with nothing in them."""
        self.delete(topic)
        self._ask("POST", "/topic/create?" + urlencode({"topic": topic}))
        self._ask("POST", "/channel/create?" + urlencode({"topic": topic, "channel": channel}))

    def delete(self, topic: str) -> None:
        """Delete the topic, if there is one."""
        self._ask("POST", "/topic/delete?" + urlencode({"topic": topic}), allowed=(200, 404))

    def wait_for_channels(self, topic: str) -> None:
        """Wait until all messages of the topic are in its channels.

        A server that copies messages into channels goes on with that after its answer.

        Raises:
            TargetFailed: it takes too long.
        """
        gives_up_s = time.monotonic() + _SETTLE_S
        query = {"format": "json", "topic": topic, "include_clients": "false"}
        while True:
            stats = self._get("/stats?" + urlencode(query))
            if all(each["depth"] == 0 for each in stats["topics"] or []):
                return
            if time.monotonic() > gives_up_s:
                raise TargetFailed(f"{self.name}: topic {topic} is not in its channel after"
                                   f" {_SETTLE_S:g} s")  # fmt: skip
            time.sleep(_LOOK_AGAIN_S)

    def _get(self, path: str) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._ask("GET", path))
        except ValueError as error:
            raise TargetFailed(
                f"{self.name}: {self.http_address}{path} does not answer JSON: {error}"
            ) from error
        return answer

    def _ask(self, method: str, path: str, allowed: tuple[int, ...] = (200,)) -> bytes:
        connection = http.client.HTTPConnection(self.http_host, self.http_port, timeout=_ANSWER_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise TargetFailed(
                f"{self.name}: HTTP at {self.http_address} does not answer ({error});"
                " give its port after a comma: HOST:PORT,HTTP_PORT"
            ) from error
        finally:
            connection.close()
        if response.status not in allowed:
            text = body[:200].decode("utf-8", "replace")
            raise TargetFailed(
                f"{self.name}: {method} {self.http_address}{path} answered"
                f" {response.status}: {text}"
            )
        return body


def _host_port(text: str, default_host: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.strip("[]") or default_host, int(port)
