"""A broker's HTTP address, as the source uses it: what there is, where it is, and the log itself.

One connection, kept alive and made anew when it breaks.  A broker that is out of reach is asked
again, at growing intervals, until `timeout_ms` have passed.  An endpoint can be pickled; its copy
connects by itself.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from martlet.log.index import ENTRY, Rows

_LOG = logging.getLogger(__name__)
_ANSWER_TIMEOUT_S = 30.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_BUSY = (502, 503, 504)
Parameters = dict[str, str | int]


class BrokerUnreachable(Exception):
    """A broker did not answer for as long as it was given."""


class BrokerRefused(Exception):
    """A broker answered with an error that asking again will not mend."""


class OffsetGone(Exception):
    """An offset is no longer in the broker's log.

    Attributes:
        start_offset: the first offset that the queue still has.
    """

    def __init__(self, start_offset: int) -> None:
        super().__init__(f"the queue begins at offset {start_offset}")
        self.start_offset = start_offset


@dataclass(frozen=True)
class QueueRange:
    """A queue of a topic and the offsets that it holds, the end not included."""

    topic: str
    topic_id: int
    queue: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True)
class Listing:
    """What a broker says of itself."""

    broker: str
    data_path: str
    queues: tuple[QueueRange, ...]


class Endpoint:
    """A client of one broker's HTTP door.

    Args:
        address: ``host:port``.
        timeout_ms: how long the broker may be out of reach before a request fails.
    """

    def __init__(self, address: str, timeout_ms: int) -> None:
        self.address = address
        self.timeout_ms = timeout_ms
        self._connection: http.client.HTTPConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None}

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def listing(self, *, patient: bool = True) -> Listing:
        """All topics of the broker. Not `patient`: one try only.

        Raises:
            BrokerUnreachable, BrokerRefused.
        """
        _, body = self._ask("GET", "/log/topics", {}, patient=patient)
        found = json.loads(body)
        return Listing(
            broker=found["broker"],
            data_path=found["data_path"],
            queues=tuple(
                QueueRange(
                    topic=topic["topic"],
                    topic_id=queue.get("topic_id", topic["topic_id"]),
                    queue=queue["queue"],
                    start_offset=queue["start_offset"],
                    end_offset=queue["end_offset"],
                )
                for topic in found["topics"]
                for queue in topic["queues"]
            ),
        )

    def offset_at(self, topic: str, queue: int, timestamp_ns: int) -> int:
        """The first offset of the first batch stored at or after a time, else the queue's end."""
        parameters: Parameters = {"topic": topic, "queue": queue, "timestamp_ns": timestamp_ns}
        _, body = self._ask("GET", "/log/offset", parameters)
        return int(json.loads(body)["offset"])

    def index(self, topic: str, queue: int, start: int, end: int) -> Rows:
        """The index's rows of the batches that hold any of the offsets from `start` up to `end`."""
        pages = [np.empty(0, ENTRY)]
        while start < end:
            parameters: Parameters = {"topic": topic, "queue": queue, "start": start, "end": end}
            _, body = self._ask("GET", "/log/index", parameters)
            page = np.frombuffer(body, ENTRY)
            if not len(page):
                break
            pages.append(page)
            start = int(page[-1]["first_offset"]) + int(page[-1]["count"])
        return np.concatenate(pages)

    def batches(self, topic: str, queue: int, offset: int, max_bytes: int) -> bytes:
        """Whole records from the one that holds `offset`, one at least; none at the queue's end.

        Raises:
            OffsetGone: it is no longer in the log.
        """
        parameters: Parameters = {
            "topic": topic,
            "queue": queue,
            "offset": offset,
            "max_bytes": max_bytes,
        }
        _, body = self._ask("GET", "/log/batches", parameters)
        return body

    def create(self, topic: str, channel: str) -> None:
        """Create a topic and a channel where they do not exist."""
        self._ask("POST", "/topic/create", {"topic": topic})
        self._ask("POST", "/channel/create", {"topic": topic, "channel": channel})

    def advance(
        self, topic: str, queue: int, channel: str, offset: int, *, patient: bool = True
    ) -> None:
        """Let a channel go forward: it is done with all of a queue that lies below `offset`.

        Not `patient`: one try only.
        """
        parameters: Parameters = {
            "topic": topic,
            "queue": queue,
            "channel": channel,
            "offset": offset,
        }
        self._ask("POST", "/channel/advance", parameters, patient=patient)

    def _ask(
        self, method: str, path: str, parameters: Parameters, *, patient: bool = True
    ) -> tuple[int, bytes]:
        deadline_s = time.monotonic() + self.timeout_ms / 1000
        pause_s = _FIRST_PAUSE_S
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        while True:
            try:
                status, body = self._exchange(method, target)
                if status not in _BUSY:
                    return self._checked(status, body, target)
                trouble = f"HTTP {status}: {_message(body)}"
            except (OSError, http.client.HTTPException) as error:
                self.close()
                trouble = f"{type(error).__name__}: {error}"
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not patient:
                waited = f"; waited {self.timeout_ms} ms, see option timeoutMs" if patient else ""
                raise BrokerUnreachable(
                    f"the broker at {self.address} did not answer {path} ({trouble}){waited}"
                )
            if pause_s == _FIRST_PAUSE_S:
                _LOG.warning(
                    "the broker at %s is out of reach (%s); asking again for %d ms",
                    self.address,
                    trouble,
                    self.timeout_ms,
                )
            time.sleep(min(pause_s * random.uniform(0.5, 1), left_s))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _exchange(self, method: str, target: str) -> tuple[int, bytes]:
        """One request and its whole answer; a kept connection that has gone stale is replaced."""
        kept = self._connection
        if kept is not None:
            try:
                return self._exchange_on(kept, method, target)
            except (ConnectionError, http.client.RemoteDisconnected):
                self.close()
        host, _, port = self.address.rpartition(":")
        self._connection = http.client.HTTPConnection(
            host.strip("[]"), int(port), timeout=_ANSWER_TIMEOUT_S
        )
        return self._exchange_on(self._connection, method, target)

    @staticmethod
    def _exchange_on(
        connection: http.client.HTTPConnection, method: str, target: str
    ) -> tuple[int, bytes]:
        connection.request(method, target)
        response = connection.getresponse()
        return response.status, response.read()

    def _checked(self, status: int, body: bytes, target: str) -> tuple[int, bytes]:
        if status < 400:
            return status, body
        if status == 410:
            raise OffsetGone(int(json.loads(body)["start_offset"]))
        raise BrokerRefused(
            f"the broker at {self.address} answered {target} with HTTP {status}: {_message(body)}"
        )


def _message(body: bytes) -> str:
    """The text of an error, which the broker wraps in JSON."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")
    return str(parsed.get("message", parsed)) if isinstance(parsed, dict) else str(parsed)
