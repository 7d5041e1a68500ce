"""What is measured: the rows of the table.

A row names a load, how many connections run it, and what must be there before.  Its measures are
rates, where more is better, or latencies, where less is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.servers.load import Consuming, Load, LoadResult, Pinging, PublishLoad

TOPIC = "martlet-bench"
CHANNEL = "bench"
PINGS_OF_NSQLOAD = 5000


@dataclass(frozen=True, kw_only=True)
class Row(ABC):
    """A line of the table.

    Attributes:
        name: for the command line and for programs.
        work: for people.
        connections: how many do it at the same time.
        sync: whether the servers are those that flush before they answer.
        backlog: whether the topic is filled before.
        measures: what is measured, for people; empty where it is the rate alone.
    """

    name: str
    work: str
    connections: int = 2
    sync: bool = False
    backlog: bool = False
    measures: tuple[str, ...] = ("",)

    @property
    def unit(self) -> str:
        """Of the measures."""
        return "msg/s"

    @property
    def more_is_better(self) -> bool:
        """Whether a larger measure is the better one."""
        return self.unit == "msg/s"

    @abstractmethod
    def load(self, number: int, seconds: float) -> Load:
        """What connection `number` does."""

    @abstractmethod
    def nsqload(self, host: str, port: int, seconds: float) -> list[str]:
        """The arguments with which ``nsqload`` does the same."""

    def evaluate(self, tallies: Sequence[LoadResult]) -> list[float]:
        """The measures of a run: messages a second from the first start to the last end."""
        started_ns = min(tally.started_ns for tally in tallies)
        ended_ns = max(tally.ended_ns for tally in tallies)
        messages = sum(tally.messages for tally in tallies)
        return [messages / (max(1, ended_ns - started_ns) / 1e9)]


@dataclass(frozen=True, kw_only=True)
class PublishRow(Row):
    """Publishing; see `bench.servers.load.Publishing`."""

    batch: int = 1
    smallest_bytes: int = 200
    largest_bytes: int = 200
    window: int = 1

    def load(self, number: int, seconds: float) -> Load:
        """What connection `number` does: the same as the others, with sizes of its own."""
        return PublishLoad(
            topic=TOPIC,
            seconds=seconds,
            batch=self.batch,
            smallest_bytes=self.smallest_bytes,
            largest_bytes=self.largest_bytes,
            window=self.window,
            seed=number,
        )

    def nsqload(self, host: str, port: int, seconds: float) -> list[str]:
        """``nsqload pub``."""
        size = f"{self.smallest_bytes}"
        if self.largest_bytes != self.smallest_bytes:
            size += f"-{self.largest_bytes}"
        numbers = [self.connections, f"{seconds:g}", size, self.batch, self.window]
        return ["pub", host, str(port), TOPIC, *map(str, numbers)]


@dataclass(frozen=True, kw_only=True)
class ConsumeRow(Row):
    """Consuming and finishing a backlog; see `bench.servers.load.Consuming`."""

    ready: int
    finish_batch: int = 256

    def load(self, number: int, seconds: float) -> Load:
        """What each connection does."""
        return Consuming(
            topic=TOPIC,
            channel=CHANNEL,
            seconds=seconds,
            ready=self.ready,
            finish_batch=self.finish_batch,
        )

    def nsqload(self, host: str, port: int, seconds: float) -> list[str]:
        """``nsqload sub``."""
        numbers = [self.connections, f"{seconds:g}", self.ready, self.finish_batch]
        return ["sub", host, str(port), TOPIC, CHANNEL, *map(str, numbers)]


@dataclass(frozen=True, kw_only=True)
class PingRow(Row):
    """From publish to receive; see `bench.servers.load.Pinging`."""

    body_bytes: int = 200

    @property
    def unit(self) -> str:
        """Of the measures."""
        return "us"

    def load(self, number: int, seconds: float) -> Load:
        """What the one process does."""
        return Pinging(topic=TOPIC, channel=CHANNEL, seconds=seconds, body_bytes=self.body_bytes)

    def nsqload(self, host: str, port: int, seconds: float) -> list[str]:
        """``nsqload ping``, which counts messages and not seconds."""
        numbers = [PINGS_OF_NSQLOAD, self.body_bytes]
        return ["ping", host, str(port), TOPIC, CHANNEL, *map(str, numbers)]

    def evaluate(self, tallies: Sequence[LoadResult]) -> list[float]:
        """The 50th and the 99th percentile, in microseconds."""
        latencies_ns = np.concatenate([tally.latencies_ns for tally in tallies])
        return [float(value) / 1000 for value in np.percentile(latencies_ns, [50, 99])]


BACKLOG = PublishRow(name="backlog", work="the backlog for consuming", batch=200)

_ROWS: tuple[Row, ...] = (
    PublishRow(name="mpub", work="MPUB of 200", batch=200),
    PublishRow(
        name="mpub-mixed",
        work="MPUB of 200, sizes 100 to 300",
        batch=200,
        smallest_bytes=100,
        largest_bytes=300,
    ),
    PublishRow(
        name="mpub-1000",
        work="MPUB of 100 x 1,000 bytes",
        batch=100,
        smallest_bytes=1000,
        largest_bytes=1000,
    ),
    ConsumeRow(name="consume", work="consume + FIN, RDY 2500", backlog=True, ready=2500),
    PublishRow(name="pub-50", work="PUB, 50 in flight a connection", window=50),
    PublishRow(name="pub", work="PUB, one at a time"),
    PingRow(name="ping", work="publish to receive", connections=1, measures=("p50", "p99")),
    PublishRow(name="mpub-sync", work="MPUB of 200, flushed before OK", batch=200, sync=True),
)
ROWS = {row.name: row for row in _ROWS}
"""All rows by name, in the order of the table."""
