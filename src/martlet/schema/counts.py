"""The counts of topics and channels, each declared once.

The classes hold counts at the client. From the `Count` of each field derive ``/stats`` in both
layouts, the lines for statsd, Prometheus's metrics and the columns of ``martlet stat``. Counts
stand in the order of ``/stats`` as JSON: nsqd's, and then Martlet's own.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from operator import add, attrgetter
from typing import Any, NamedTuple

COUNTER = "counter"
"""Grows from 0 at the broker's start."""
GAUGE = "gauge"


def kind_of(metric: str) -> str:
    """Return the kind of a metric, which its name tells."""
    return COUNTER if metric.endswith("_total") else GAUGE


class Count(NamedTuple):
    """A count, and how each format shows it; where a text is empty, the format is without it."""

    help: str
    """What it counts."""
    metric: str = ""
    """Its name for Prometheus."""
    statsd: str = ""
    """Its name for statsd; that of the field for nsqd's."""
    text: str = ""
    """Its name and format in ``/stats`` as text."""
    column: str = ""
    """Its title in the table of ``martlet stat``."""
    is_own: bool = False
    """Whether nsqd lacks it."""
    path: str = ""
    """The attribute of a broker's topic or channel; that of the field's name by default."""
    name: str = ""
    """The name of the field, and in ``/stats`` as JSON."""

    @property
    def kind(self) -> str:
        """COUNTER or GAUGE."""
        return kind_of(self.metric)

    def field(self, default: object = 0) -> Any:
        """Declare the field of a class of counts."""
        return field(default=default, metadata={"count": self})


def _counts(kind: type) -> tuple[Count, ...]:
    """Return the counts of a class, which gets their meaning as its documentation."""
    named = [(declared.name, declared.metadata["count"]) for declared in fields(kind)]
    counts = tuple(
        count._replace(
            name=name,
            path=count.path or name,
            statsd=count.statsd or ("" if count.is_own else name),
        )
        for name, count in named
    )
    texts = "".join(f"\n    {count.name}: {count.help}" for count in counts)
    kind.__doc__ = f"{kind.__doc__}\n\nAttributes:{texts}\n"
    return counts


@dataclass(frozen=True, kw_only=True)
class ChannelCounts:
    """Counts of a channel, of one broker or, added with ``+``, of several."""

    depth: int = Count(
        "Messages that wait to be delivered, without deferred ones.",
        "martlet_channel_depth_messages",
        text="depth: %-5d",
        column="depth",
    ).field()
    backend_depth: int = Count(
        "Of those, the ones on disk; at a Martlet broker all.", text="be-depth: %-5d", path="depth"
    ).field()
    in_flight_count: int = Count(
        "Messages in flight.",
        "martlet_channel_in_flight_messages",
        text="inflt: %-4d",
        column="in flight",
    ).field()
    deferred_count: int = Count(
        "Deferred messages.",
        "martlet_channel_deferred_messages",
        text="def: %-4d",
        column="deferred",
    ).field()
    message_count: int = Count(
        "Messages that the channel has received.",
        "martlet_channel_received_messages_total",
        text="msgs: %-8d",
        column="messages",
    ).field()
    requeue_count: int = Count(
        "Messages that consumers requeued with REQ.",
        "martlet_channel_requeued_messages_total",
        text="re-q: %-5d",
        column="requeued",
    ).field()
    timeout_count: int = Count(
        "Messages requeued because they timed out.",
        "martlet_channel_timed_out_messages_total",
        text="timeout: %-5d",
        column="timed out",
    ).field()
    client_count: int = Count(
        "Clients subscribed to the channel.",
        "martlet_channel_consumers",
        statsd="clients",
        column="clients",
    ).field()
    dropped_count: int = Count(
        "Messages removed before they were finished: to free space, or since an ephemeral channel"
        " keeps no more.",
        "martlet_channel_dropped_messages_total",
        is_own=True,
    ).field()
    filtered_count: int = Count(
        "Messages finished without delivery, since the channel's tags or filter reject them.",
        "martlet_channel_filtered_messages_total",
        is_own=True,
    ).field()
    dead_letter_count: int = Count(
        "Messages that went to the channel's dead-letter topic.",
        "martlet_channel_dead_letters_total",
        is_own=True,
    ).field()

    @property
    def counts(self) -> ChannelCounts:
        """The counts alone."""
        return ChannelCounts(**dict(zip(_NAMES, _values(self), strict=True)))

    def __add__(self, other: ChannelCounts) -> ChannelCounts:
        sums = map(add, _values(self), _values(other))
        return ChannelCounts(**dict(zip(_NAMES, sums, strict=True)))


@dataclass(frozen=True, kw_only=True)
class TopicCounts:
    """Counts of a topic."""

    depth: int = Count(
        "Messages that wait for a first channel, or for a paused topic to resume.",
        "martlet_topic_depth_messages",
        text="depth: %-5d",
    ).field(MISSING)
    backend_depth: int = Count(
        "Of those, the ones on disk; at a Martlet broker all.", text="be-depth: %-5d", path="depth"
    ).field(MISSING)
    message_count: int = Count(
        "Messages published to the topic.",
        "martlet_topic_published_messages_total",
        text="msgs: %-8d",
    ).field(MISSING)
    message_bytes: int = Count(
        "Bytes of their bodies.", "martlet_topic_published_bytes_total"
    ).field()
    dropped_count: int = Count(
        "Messages removed before every channel had finished them: to free space, or since an"
        " ephemeral topic keeps no more.",
        "martlet_topic_dropped_messages_total",
        is_own=True,
    ).field()
    refused_count: int = Count(
        "Messages refused at publishing, the log being full or failed.",
        "martlet_topic_refused_messages_total",
        is_own=True,
    ).field()


CHANNEL_COUNTS = _counts(ChannelCounts)
TOPIC_COUNTS = _counts(TopicCounts)
_NAMES = [count.name for count in CHANNEL_COUNTS]
_values = attrgetter(*_NAMES)
"""Return the counts as a tuple."""
