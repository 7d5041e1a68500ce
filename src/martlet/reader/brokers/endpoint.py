"""A client of one broker's HTTP API: list queues, find offsets, read the index and the log.

It keeps one connection alive, and opens another when that breaks.  A request to a broker that is
out of reach is retried at growing intervals until `timeout_ms` have passed.  An endpoint can be
pickled; its copy opens a connection of its own.

Of a broker with replicas it has several addresses.  What one does not answer, or not yet, such as a
standby that lags, it asks the next one.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from martlet import unreachable
from martlet.log.index import ENTRY, Rows
from martlet.reader.brokers.addresses import (
    NO_TOKEN,
    TRUSTED_OPTION,
    OperatorToken,
    SparkTls,
    with_port,
)

_LOG = logging.getLogger(__name__)
_ANSWER_TIMEOUT_S = 30.0
_REPLICA_TIMEOUT_S = 5.0
"""The time after which another replica is asked."""
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0
_BUSY = (502, 503, 504)
_NO_ROUTE = "NOT_FOUND"
_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_MAX_NAMED_LENGTH = 4000
"""Characters of topic names in a URL; a request with more asks for all topics instead."""
_MAX_QUEUES_A_REQUEST = 1000
_FULL_INDEX_BYTES = (1 << 20) - ENTRY.itemsize
"""An answer of at least this size may lack rows."""
PLAIN = SparkTls()
Parameters = dict[str, str | int]


class BrokerUnreachable(Exception):
    """A broker did not answer within the timeout."""


class BrokerRefused(Exception):
    """A broker answered with an error that a retry will not mend."""


class BrokerNotFound(BrokerRefused):
    """A broker does not have the requested topic, queue or route."""


class OffsetGone(Exception):
    """An offset is no longer in the broker's log."""

    def __init__(self, start_offset: int) -> None:
        super().__init__(f"the queue begins at offset {start_offset}")
        self.start_offset = start_offset
        """The first offset that the queue still holds."""


class BrokerQueue(NamedTuple):
    """A queue of one broker, as requests for its log name it."""

    topic: str
    queue: int
    queue_topic_id: int
    """The number in its records; a later topic of the same name has another one."""


class MadeAnew(BrokerNotFound):
    """The topic was deleted, and another one with its name created."""


class NotABroker(BrokerRefused):
    """The program at an address has no log to read: it is nsqd or nsqlookupd, for example."""


@dataclass(frozen=True)
class QueueRange:
    """A queue of a topic and the offsets that it holds, `end_offset` excluded."""

    topic: str
    topic_id: int
    """The topic's number; a later topic of the same name has another one."""
    queue_topic_id: int
    """The number in the queue's records."""
    queue: int
    start_offset: int
    end_offset: int
    holes: tuple[tuple[int, int], ...] = ()
    """Ranges of offsets that are missing between others that are stored."""

    @property
    def source(self) -> BrokerQueue:
        """The queue, as requests for its log name it."""
        return BrokerQueue(self.topic, self.queue, self.queue_topic_id)


class ReplicaSource(NamedTuple):
    """A replica of a broker; most brokers have only one."""

    address: str
    data_path: str
    """The data folder, on the replica's machine."""


@dataclass(frozen=True)
class Listing:
    """A broker's id, data folder and queues, as one replica has them."""

    broker: str
    data_path: str
    queues: tuple[QueueRange, ...]
    epoch: int = 0
    """The number of the run that wrote the end of its log."""
    is_standby: bool = False
    replicas: tuple[str, ...] = ()
    """The addresses of all replicas, dead or alive, as far as they are known."""
    run: str = ""
    """A random name of the process; empty of one that does not report it."""

    @property
    def is_alone(self) -> bool:
        """Whether no other process may have the broker's id."""
        return bool(self.run) and not (self.is_standby or self.replicas)


class CopiedFolder(BrokerRefused):
    """Two brokers have one id, since a data folder was copied: rows of one would be left out."""


class Endpoint:
    """A client of one broker's HTTP API.

    Args:
        timeout_ms: how long the broker may be out of reach before a request fails.
        replicas: the addresses of all replicas of a broker that has several.
    """

    def __init__(
        self,
        address: str,
        timeout_ms: int,
        tls: SparkTls = PLAIN,
        replicas: Sequence[str] = (),
        token: OperatorToken = NO_TOKEN,
    ) -> None:
        self.address = address
        """The one that is asked next."""
        self._others = [other for other in replicas if other != address]
        self.is_given_up = False
        """Set by another thread to make a request fail in place of its next retry."""
        self.timeout_ms = timeout_ms
        self._tls = tls
        self._token = token
        self._dialed_address = address
        """The HTTPS address after the broker has redirected there, else `address`."""
        self._connection: http.client.HTTPConnection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None}

    @property
    def other_count(self) -> int:
        """The number of other replicas."""
        return len(self._others)

    def turn(self) -> None:
        """Ask the next replica from now on."""
        if self._others:
            self.close()
            self._others.append(self.address)
            self.address = self._dialed_address = self._others.pop(0)

    def _of(self, queue: BrokerQueue) -> Parameters:
        topic, number, topic_id = queue
        named: Parameters = {"topic": topic, "queue": number, "topic_id": topic_id}
        return named | self._complete

    @property
    def _complete(self) -> Parameters:
        """The argument with which a replica refuses what it does not have yet."""
        return {"complete": "true"} if self._others else {}

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def listing(self, topics: Sequence[str] = (), *, patient: bool = True) -> Listing:
        """List the broker's queues, of all topics or of those named.

        Raises:
            BrokerUnreachable, BrokerRefused.
            NotABroker: another program answers there.
        """
        named = ",".join(topics)
        parameters: Parameters = {"names": named} if 0 < len(named) <= _MAX_NAMED_LENGTH else {}
        try:
            _, body = self._ask("GET", "/log/topics", parameters, patient=patient)
            answer = json.loads(body)
            return Listing(
                broker=answer["broker"],
                data_path=answer["data_path"],
                epoch=answer.get("epoch", 0),
                is_standby=answer.get("standby", False),
                replicas=tuple(answer.get("replicas", ())),
                run=answer.get("run", ""),
                queues=tuple(
                    QueueRange(
                        topic=topic["topic"],
                        topic_id=topic["topic_id"],
                        queue_topic_id=queue.get("topic_id", topic["topic_id"]),
                        queue=queue["queue"],
                        start_offset=queue.get("first_offset", queue["start_offset"]),
                        end_offset=queue["end_offset"],
                        holes=tuple((first, end) for first, end in queue.get("holes", ())),
                    )
                    for topic in answer["topics"]
                    for queue in topic["queues"]
                ),
            )
        except (BrokerNotFound, ValueError, TypeError, KeyError) as error:
            raise NotABroker(
                f"what answers at {self.address} is no Martlet broker: it has no /log/topics that"
                f" could be understood ({error})"
            ) from None

    def nodes(self, *, patient: bool = True) -> list[Any]:
        """List the brokers that a lookup daemon knows, as /nodes has them."""
        try:
            _, body = self._ask("GET", "/nodes", {}, patient=patient)
            return list(json.loads(body)["producers"])
        except (BrokerNotFound, ValueError, TypeError, KeyError) as error:
            raise NotABroker(
                f"what answers at {self.address} is no lookup daemon: it has no /nodes that could"
                f" be understood ({error})"
            ) from None

    def offset_at(self, topic: str, queue: int, timestamp_ns: int) -> int:
        """The first offset of the first batch stored at or after a time, else the queue's end."""
        parameters: Parameters = {"topic": topic, "queue": queue, "timestamp_ns": timestamp_ns}
        _, body = self._ask("GET", "/log/offset", parameters | self._complete)
        return int(json.loads(body)["offset"])

    def reach(self, queue: BrokerQueue, start: int, end: int, max_bytes: int) -> tuple[int, int]:
        """Return the offset, at most `end`, up to which `max_bytes` of the log reach from `start`,
        by entire batches and at least one; and their bytes.
        """
        parameters = self._of(queue) | {"start": start, "end": end, "max_bytes": max_bytes}
        _, body = self._ask("GET", "/log/reach", parameters)
        answer = json.loads(body)
        return int(answer["offset"]), int(answer["bytes"])

    def index(self, queue: BrokerQueue, start: int, end: int) -> Rows:
        """Read the index rows of the batches that hold offsets from `start` up to `end`."""
        pages = list(self.index_pages(queue, start, end))
        return np.concatenate(pages) if pages else np.empty(0, ENTRY)

    def index_pages(self, queue: BrokerQueue, start: int, end: int) -> Iterator[Rows]:
        """Read the same rows page by page."""
        while start < end:
            _, body = self._ask("GET", "/log/index", self._of(queue) | {"start": start, "end": end})
            page = np.frombuffer(body, ENTRY)
            if not len(page):
                return
            yield page
            start = int(page[-1]["first_offset"]) + int(page[-1]["count"])

    def indexes(self, ranges: Sequence[tuple[BrokerQueue, int, int]]) -> list[Rows]:
        """Read the index rows of several ranges, each of one queue, in few requests."""
        rows_of_ranges: list[Rows] = []
        for number in range(0, len(ranges), _MAX_QUEUES_A_REQUEST):
            requested = ranges[number : number + _MAX_QUEUES_A_REQUEST]
            fields = [[*queue, start, end] for queue, start, end in requested]
            request = json.dumps(fields).encode()
            _, body = self._ask("POST", "/log/index", self._complete, request)
            is_full = len(body) >= _FULL_INDEX_BYTES
            at = 0
            for queue, start, end in requested:
                row_count = int.from_bytes(body[at : at + 8], "little")
                rows = np.frombuffer(body, ENTRY, row_count, at + 8)
                at += 8 + rows.nbytes
                reached = int(rows[-1]["first_offset"] + rows[-1]["count"]) if row_count else start
                if is_full and reached < end:
                    rows = np.concatenate((rows, self.index(queue, reached, end)))
                rows_of_ranges.append(rows)
            assert at == len(body)
        return rows_of_ranges

    def batches(
        self, queue: BrokerQueue, offset: int, max_bytes: int, *, bodies: bool = True
    ) -> bytes:
        """Read entire records from the one that holds `offset`: at least one, none at the end.
        Without `bodies`, each is its header and its properties, padded to 8 bytes. Raises
        OffsetGone.
        """
        parameters = self._of(queue) | {"offset": offset, "max_bytes": max_bytes}
        if not bodies:
            parameters["bodies"] = "false"
        _, body = self._ask("GET", "/log/batches", parameters)
        return body

    def call(self, method: str, fields: Mapping[str, object], *, patient: bool = True) -> Any:
        """Make an RPC call and return its answer."""
        _, answer = self._ask(
            "POST", f"/call/{method}", {}, json.dumps(fields).encode(), patient=patient
        )
        return json.loads(answer)

    def read(self, path: str, **parameters: str | int) -> bytes:
        """Return the body of the answer to a GET. Raises BrokerUnreachable, BrokerRefused."""
        return self._ask("GET", path, parameters)[1]

    def advance(
        self, queue: BrokerQueue, channel: str, offset: int, *, patient: bool = True
    ) -> None:
        """Finish all messages of a queue below `offset` in a channel, created if missing."""
        parameters = self._of(queue) | {"channel": channel, "offset": offset}
        self._ask("POST", "/channel/advance", parameters, patient=patient)

    def _ask(
        self,
        method: str,
        path: str,
        parameters: Parameters,
        body: bytes | None = None,
        *,
        patient: bool = True,
    ) -> tuple[int, bytes]:
        """Return the answer's status and body; if not `patient`, after one try only."""
        deadline_s = time.monotonic() + self.timeout_ms / 1000
        pause_s = FIRST_PAUSE_S
        troubles: dict[str, str] = {}
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        while True:
            answer = self._try(method, target, body)
            if not isinstance(answer, str):
                return self._check(*answer, target)
            troubles[self.address] = answer
            if len(troubles) <= len(self._others):
                _LOG.info("%s: %s; asking %s", self.address, answer, self._others[0])
                self.turn()
                continue
            trouble = answer
            if self._others:
                trouble = "; ".join(f"{address}: {why}" for address, why in troubles.items())
            troubles.clear()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not patient or self.is_given_up:
                waited = f"; waited {self.timeout_ms} ms, see option timeoutMs" if patient else ""
                raise BrokerUnreachable(
                    f"the broker at {self.address} did not answer {path} ({trouble}){waited}"
                )
            if pause_s == FIRST_PAUSE_S:
                _LOG.warning(
                    "the broker at %s is out of reach (%s); trying again for %g s",
                    self.address,
                    trouble,
                    self.timeout_ms / 1000,
                )
            time.sleep(min(pause_s * random.uniform(0.5, 1), left_s))
            pause_s = min(pause_s * 2, MAX_PAUSE_S)
            self.turn()

    def _try(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes] | str:
        """Send a request once; return status and body, or why none came. Raises BrokerRefused."""
        try:
            status, answer = self._exchange(method, target, body)
            if status == 403 and self._switch_to_https(answer):
                status, answer = self._exchange(method, target, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not_http(error):
                raise NotABroker(f"{self.address}: {unreachable.not_http(error)}") from None
            if isinstance(error, ConnectionRefusedError):
                return unreachable.reason(error)
            if isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN_OFF):
                raise BrokerRefused(
                    f"the broker at {self._dialed_address} and this query do not agree about TLS:"
                    f" {error}; see options tlsCaFile, tlsCertFile and tlsVerify"
                ) from error
            return f"{type(error).__name__}: {error}"
        if status in _BUSY and b"LIMIT_REACHED" not in answer:
            return f"HTTP {status}: {_message(answer)}"
        if status == 404 and self._others and _message(answer) == _NO_ROUTE:
            return "it is a standby, which only answers readers"
        return status, answer

    def _switch_to_https(self, answer: bytes) -> bool:
        """Switch to the HTTPS port that a broker which takes TLS only has named, if it has."""
        if self._dialed_address.startswith("https://"):
            return False
        try:
            port = json.loads(answer)["https_port"]
        except (ValueError, TypeError, KeyError):
            return False
        if type(port) is not int or not 0 < port < 65536:
            return False
        self.close()
        self._dialed_address = with_port(self._dialed_address, port)
        return True

    def _exchange(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Send one request and read its answer; replace a kept connection that has gone stale."""
        try:
            headers = self._token.headers(self.address)
        except OSError as error:
            raise BrokerRefused(str(error)) from error

        def exchange_on(connection: http.client.HTTPConnection) -> tuple[int, bytes]:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        if self._connection is not None:
            try:
                return exchange_on(self._connection)
            except (ConnectionError, http.client.RemoteDisconnected):
                self.close()
        timeout_s = _REPLICA_TIMEOUT_S if self._others else _ANSWER_TIMEOUT_S
        self._connection = self._tls.connection(self._dialed_address, timeout_s)
        return exchange_on(self._connection)

    def _check(self, status: int, body: bytes, target: str) -> tuple[int, bytes]:
        if status < 400:
            return status, body
        if status == 410:
            raise OffsetGone(int(json.loads(body)["start_offset"]))
        kind = BrokerRefused
        if status == 404:
            kind = MadeAnew if b"TOPIC_MADE_ANEW" in body else BrokerNotFound
        hint = ""
        if status in (401, 403) and self._token.is_withheld(self.address):
            hint = (
                "; it gets no operator's token, as a lookup daemon alone names it: see option"
                f" {TRUSTED_OPTION}"
            )
        raise kind(
            f"the broker at {self.address} answered {target} with HTTP {status}:"
            f" {_message(body)}{hint}"
        )


def not_http(error: Exception) -> bool:
    """Whether a program answered in another protocol than HTTP, so that a retry cannot help."""
    return isinstance(error, http.client.BadStatusLine) and not isinstance(
        error, http.client.RemoteDisconnected
    )


def _message(body: bytes) -> str:
    """The text of an error, which the broker sends as JSON."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return body[:200].decode(errors="replace")
    return str(parsed.get("message", parsed)) if isinstance(parsed, dict) else str(parsed)
