"""A client of plain HTTP that knows nothing of Martlet: what a program in any language does."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

JSON, NDJSON = "application/json", "application/x-ndjson"


class HttpAnswer(NamedTuple):
    """An answer's status and its JSON."""

    status: int
    json: Any


class HttpClient:
    """Publishes to a topic, and receives from a channel of it.

    Args:
        address: of the broker's HTTP.
        topic: its name.
        channel: its name.
        headers: of each request.
    """

    def __init__(
        self,
        address: str,
        topic: str,
        channel: str = "c",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._address = address
        self._topic = topic
        self._channel = channel
        self._headers = dict(headers or {})

    def post(self, path: str, body: bytes = b"", kind: str = JSON) -> HttpAnswer:
        """Send a request to a path below the topic."""
        url = f"http://{self._address}/v1/topics/{self._topic}/{path}"
        headers = self._headers | {"Content-Type": kind}
        request = urllib.request.Request(url, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return HttpAnswer(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return HttpAnswer(error.code, json.load(error))

    def publish(self, *bodies: str, wait: bool = True, **fields: object) -> HttpAnswer:
        """Publish messages with the same further fields."""
        lines = [json.dumps({"body": body, **fields}) for body in bodies]
        kind = JSON if len(lines) == 1 else NDJSON
        path = "messages" if wait else "messages?wait=false"
        return self.post(path, "\n".join(lines).encode(), kind)

    def receive(self, **query: object) -> list[Any]:
        """Receive messages."""
        text = "&".join(f"{name}={value}" for name, value in query.items())
        answer = self.post(f"channels/{self._channel}/receive?{text}")
        assert answer.status == 200, answer
        messages: list[Any] = answer.json["messages"]
        return messages

    def answer(self, verb: str, messages: Sequence[Any], **fields: object) -> list[str]:
        """Acknowledge messages. Returns the status of each."""
        return [each["status"] for each in self.results(verb, messages, **fields)]

    def results(self, verb: str, messages: Sequence[Any], **fields: object) -> list[Any]:
        """Acknowledge messages. Returns the results."""
        receipts = [message["receipt"] for message in messages]
        body = json.dumps({"receipts": receipts, **fields}).encode()
        results: list[Any] = self.post(f"channels/{self._channel}/{verb}", body).json["results"]
        return results
