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
    """The counts of a channel in one hour, or of the topic itself if `channel` is empty.

    Attributes:
        counts: by the name of a column.
        buckets: the histogram of the times from publish to finish.
    """

    topic: str
    channel: str
    hour: int
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    buckets: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(COUNTS - FIRST_BUCKET, np.int64)
    )


@dataclass
class Finding:
    """A problem in a log.

    Attributes:
        kind: ``lost`` messages, missing ``finish`` records, ``doubled`` messages, or ``damage``
            that explains none of these.
        broker, topic, queue: the affected queue.
        channel: the channel of finish records.
        stretches: the offsets, or the first ones of very many.
        count: the number of messages or finish records.
        unfinished: by channel, the number of messages that it had not finished.
        places: the ranges of the log.
        text: more details.
    """

    kind: str
    broker: str
    topic: str
    queue: int
    channel: str
    stretches: Sequence[Stretch]
    count: int
    unfinished: dict[str, int]
    places: Sequence[LogRange]
    text: str = ""


@dataclass(frozen=True)
class LogSummary:
    """The summary of one broker's log.

    Attributes:
        broker: the broker's id.
        place: the broker's address or data folder.
        segments, bytes, records, messages: the size of the log.
        starts: the number of starts of the broker in the log.
        since_ns, until_ns: the timestamps of the first and the last record.
        is_whole: whether the log still begins at position 0.
        trouble: why an existing checkpoint could not be read.
    """

    broker: str
    place: str
    segments: int
    bytes: int
    records: int
    messages: int
    starts: int
    since_ns: int
    until_ns: int
    is_whole: bool
    trouble: str = ""
