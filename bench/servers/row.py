"""The rows of the table: a load, how many connections run it, and what must be there before.

The measures of a row are rates, where more is better, or latencies, where less is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.servers.link import LoadFailed
from bench.servers.load import (
    CHANNEL,
    TOPIC,
    Consuming,
    HttpPublishing,
    Load,
    LoadResult,
    Pinging,
    PublishLoad,
)

PINGS_OF_NSQLOAD = 5000


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the table.

    Attributes:
        name: for the command line and for programs.
        work: for people.
        load: the load of a connection.
        connections: how many run it at the same time.
        sync: whether the servers are those that flush before they answer.
        backlog: whether the topic is filled before.
        http: whether it goes to the port for HTTP.
    """

    name: str
    work: str
    load: Load
    connections: int = 2
    sync: bool = False
    backlog: bool = False
    http: bool = False

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures; empty for the rate."""
        return ("p50", "p99") if isinstance(self.load, Pinging) else ("",)

    @property
    def unit(self) -> str:
        """The unit of the measures."""
        return "us" if isinstance(self.load, Pinging) else "msg/s"

    @property
    def more_is_better(self) -> bool:
        """Whether a larger measure is the better one."""
        return self.unit == "msg/s"

    def loads(self, seconds: float) -> list[Load]:
        """The load of each connection; they draw different sizes."""
        return [replace(self.load, seconds=seconds, seed=n) for n in range(self.connections)]

    def nsqload(self, host: str, port: int, seconds: float) -> list[str]:
        """The arguments with which ``nsqload`` does the same; its ping counts messages.

        Raises:
            LoadFailed: it cannot do that.
        """
        load, often = self.load, [self.connections, f"{seconds:g}"]
        address: list[object] = [host, port, TOPIC]
        words: list[object]
        if self.http or (isinstance(load, PublishLoad) and load.joined):
            raise LoadFailed(f"nsqload has no row {self.name!r}; leave it out with --rows")
        if isinstance(load, PublishLoad):
            size = f"{load.smallest_bytes}"
            if load.largest_bytes != load.smallest_bytes:
                size += f"-{load.largest_bytes}"
            words = ["pub", *address, *often, size, load.batch, load.window]
        elif isinstance(load, Consuming):
            words = ["sub", *address, CHANNEL, *often, load.ready, load.finish_batch]
        else:
            assert isinstance(load, Pinging)
            words = ["ping", *address, CHANNEL, PINGS_OF_NSQLOAD, load.body_bytes]
        return [str(word) for word in words]

    def evaluate(self, results: Sequence[LoadResult]) -> list[float]:
        """The measures of a run.

        Messages a second from the first start to the last end, or the 50th and the 99th percentile
        in microseconds.
        """
        if isinstance(self.load, Pinging):
            latencies_ns = np.concatenate([result.latencies_ns for result in results])
            return [float(value) / 1000 for value in np.percentile(latencies_ns, [50, 99])]
        started_ns = min(result.started_ns for result in results)
        ended_ns = max(result.ended_ns for result in results)
        messages = sum(result.messages for result in results)
        return [messages / (max(1, ended_ns - started_ns) / 1e9)]


_MPUB = PublishLoad(batch=200)
_MIXED = PublishLoad(batch=200, smallest_bytes=100, largest_bytes=300)
_LARGE = PublishLoad(batch=100, smallest_bytes=1000, largest_bytes=1000)
_JOINED = PublishLoad(window=50, joined=True)
_HTTP = HttpPublishing()
BACKLOG = Row(name="backlog", work="the backlog for consuming", load=_MPUB)
_ROWS = (
    Row(name="mpub", work="MPUB of 200", load=_MPUB),
    Row(name="mpub-mixed", work="MPUB of 200, sizes 100 to 300", load=_MIXED),
    Row(name="mpub-1000", work="MPUB of 100 x 1,000 bytes", load=_LARGE),
    Row(name="consume", work="consume + FIN, RDY 2500", load=Consuming(ready=2500), backlog=True),
    Row(name="pub-50", work="PUB, 50 in flight a connection", load=PublishLoad(window=50)),
    Row(name="pub-joined", work="the same, a window a write", load=_JOINED),
    Row(name="pub", work="PUB, one at a time", load=PublishLoad()),
    Row(name="pub-4", work="the same, 4 connections", load=PublishLoad(), connections=4),
    Row(name="pub-16", work="the same, 16 connections", load=PublishLoad(), connections=16),
    Row(name="ping", work="publish to receive", load=Pinging(), connections=1),
    Row(name="http", work="HTTP /pub, 1 connection", load=_HTTP, connections=1, http=True),
    Row(name="http-4", work="HTTP /pub, 4 connections", load=_HTTP, connections=4, http=True),
    Row(name="mpub-sync", work="MPUB of 200, flushed before OK", load=_MPUB, sync=True),
)
ROWS = {row.name: row for row in _ROWS}
"""All rows by name, in the order of the table."""
