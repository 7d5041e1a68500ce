"""The parts of an audit's result: hourly counts, findings, and summaries of the logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Stretch
from martlet.broker.tracing.counters import COUNTS, FIRST_BUCKET
from martlet.pipeline.audit.coverage import LogRange

EARLIER = -1
"""In place of an hour: before the first message that the log still has."""


@dataclass
class CountLine:
    """The counts of a channel in one hour, or of the topic itself if `channel` is empty."""

    topic: str
    channel: str
    hour: int
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The counts by the name of a column."""
    buckets: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(COUNTS - FIRST_BUCKET, np.int64)
    )
    """The histogram of the times from publish to finish."""


@dataclass
class Finding:
    """A problem in a log."""

    kind: str
    """``lost`` messages, missing ``finish`` records, ``doubled`` messages, or ``damage`` that
    explains none of these."""
    broker: str
    topic: str
    queue: int
    channel: str
    """The channel of finish records."""
    stretches: Sequence[Stretch]
    """The offsets, or the first ones of very many."""
    count: int
    """The number of messages or finish records."""
    unfinished: dict[str, int]
    """By channel, the number of messages that it had not finished."""
    places: Sequence[LogRange]
    """The ranges of the log."""
    text: str = ""


@dataclass(frozen=True)
class LogSummary:
    """The summary of one broker's log."""

    broker: str
    place: str
    """The broker's address or data folder."""
    segments: int
    bytes: int
    records: int
    messages: int
    starts: int
    since_ns: int
    until_ns: int
    """`since_ns` and `until_ns`: the timestamps of the first and the last record."""
    is_whole: bool
    """Whether the log still begins at position 0."""
    trouble: str = ""
    """Why an existing checkpoint could not be read."""
