"""What an audit tells: lines of counts by the hour, and findings."""

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
"""In place of an hour: before what the log still holds."""


@dataclass
class CountLine:
    """What is told of a channel, or of the topic itself where it has no name, in one hour.

    Attributes:
        counts: by the name of a column.
        buckets: how many messages were finished within each bound.
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
    """Something that is wrong.

    Attributes:
        kind: ``lost`` messages, a ``finish`` record that is missing, ``doubled`` messages, or
            ``damage`` that nothing else explains.
        broker, topic, queue: whose.
        channel: of a finish record.
        stretches: which offsets, the first ones of very many.
        count: how many messages; of finish records, how many of those.
        unfinished: by channel, how many of them it had yet to finish.
        places: where in the log.
        text: what else is to be said.
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
