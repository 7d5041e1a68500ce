"""The options of a read query, checked before anything is read.

``docs/pipelines/source.md`` has their meaning and defaults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from martlet.http_requests import TOKEN_VARIABLE, TRUSTED_VARIABLE
from martlet.names import BadPattern, Pattern, compile_pattern, is_ephemeral, is_valid_name
from martlet.reader.brokers.addresses import (
    TRUSTED_OPTION,
    OperatorToken,
    SparkTls,
    parse_addresses,
    split_at_commas,
)
from martlet.reader.offset_bound import END, START, Bound, parse_bound, parse_timestamp
from martlet.reader.option_values import TLS_NAMES, boolean, number, spelled_options, tls
from martlet.text import parse_duration, parse_size

if TYPE_CHECKING:
    from martlet.reader.filters import RowFilter

NAMES = (
    "addresses",
    "lookup",
    "topic",
    "subscribe",
    "topicPattern",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minRows",
    "maxDelay",
    "failOnDataLoss",
    "splitBytes",
    "minPartitions",
    "view",
    "filter",
    "filterPushdown",
    "group",
    "retain",
    "channel",
    "timeoutMs",
    *TLS_NAMES,
    "operatorTokenFile",
    TRUSTED_OPTION,
)
VIEWS = ("messages", "batches")
_DEFAULT_SPLIT_BYTES = {"batch": 128 << 20, "stream": 64 << 20}
"""Chosen so that a micro-batch of 500,000 messages is 2 tasks, one for each of 2 processors."""
_DEFAULT_TIMEOUT_MS = {"batch": 60_000, "stream": 300_000}
_DEFAULT_MAX_DELAY = "1m"
_MAX_MS = 2**31
_MAX_PARTITIONS = 1_000_000
_STREAMS_ONLY = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minRows",
    "maxDelay",
    "channel",
    "group",
    "retain",
)
_BATCHES_ONLY = ("endingOffsets", "endingTimestamp", "filterPushdown")
_SPARKS_WORDS = re.compile(
    r"(\d+)\s*(ms|milliseconds?|s|sec|seconds?|m|min|minutes?|h|hours?)", re.IGNORECASE
)


@dataclass(frozen=True)
class Topics:
    """The topics that a query reads, by name or by pattern."""

    names: tuple[str, ...] = ()
    pattern: Pattern | None = None

    def has(self, topic: str) -> bool:
        """Whether the query reads the topic."""
        if self.pattern is None:
            return topic in self.names
        return self.pattern.fullmatch(topic) is not None

    def __str__(self) -> str:
        return ", ".join(self.names) if self.pattern is None else f"/{self.pattern.pattern}/"


@dataclass(frozen=True)
class ReadOptions:
    """The valid options of one query."""

    addresses: tuple[str, ...]
    lookup_addresses: tuple[str, ...]
    topics: Topics
    start: Bound
    end: Bound
    max_offsets: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay_s: float
    fail_on_data_loss: bool
    split_bytes: int
    min_partitions: int
    view: str
    row_filter: RowFilter | None
    takes_filters: bool
    """Whether a batch query's WHERE is pushed down."""
    group: str | None
    """The consumer group that shows a stream's position; None for none."""
    retain: bool
    """Whether the broker retains what the group has yet to read."""
    channel: str | None
    timeout_ms: int
    tls: SparkTls
    token: OperatorToken

    @classmethod
    def parse(cls, raw: Mapping[str, str], kind: Literal["batch", "stream"]) -> ReadOptions:
        """Parse the options of a query, whose names are case-insensitive. Raises ValueError."""
        options = spelled_options(raw, NAMES, "the martlet source")
        for name in _BATCHES_ONLY if kind == "stream" else _STREAMS_ONLY:
            if name in options:
                other = "spark.read" if kind == "stream" else "spark.readStream"
                raise ValueError(f"option {name} is for {other}, not for a {kind} query")
        for name, needs in (("maxDelay", "minRows"), ("retain", "group")):
            if name in options and needs not in options:
                raise ValueError(f"option {name} needs option {needs} too")
        addresses, lookup_addresses = (
            parse_addresses(name, options[name]) if name in options else ()
            for name in ("addresses", "lookup")
        )
        if not addresses and not lookup_addresses:
            raise ValueError(
                "option addresses is missing: the HTTP addresses of the brokers to read from, "
                "such as 127.0.0.1:4151; or lookup, those of lookup daemons, such as "
                "127.0.0.1:4161"
            )

        view = _view(options.get("view", VIEWS[0]))
        return cls(
            addresses=addresses,
            lookup_addresses=lookup_addresses,
            topics=_topics(options),
            start=_bound(options, "starting", END if kind == "stream" else START),
            end=_bound(options, "ending", END),
            max_offsets=number(options, "maxOffsetsPerTrigger", None, 1, 2**62),
            max_bytes=number(options, "maxBytesPerTrigger", None, 1, 2**62, parse_size),
            min_rows=number(options, "minRows", None, 1, 2**62),
            max_delay_s=_delay_s("maxDelay", options.get("maxDelay", _DEFAULT_MAX_DELAY)),
            fail_on_data_loss=boolean(options, "failOnDataLoss", True),
            split_bytes=number(
                options, "splitBytes", _DEFAULT_SPLIT_BYTES[kind], 64 << 10, 4 << 30, parse_size
            ),
            min_partitions=number(options, "minPartitions", 1, 1, _MAX_PARTITIONS),
            view=view,
            row_filter=_row_filter(options.get("filter"), view),
            takes_filters=boolean(options, "filterPushdown", False),
            group=_channel_name(options, "group"),
            retain=boolean(options, "retain", False),
            channel=_channel_name(options, "channel"),
            timeout_ms=number(options, "timeoutMs", _DEFAULT_TIMEOUT_MS[kind], 0, _MAX_MS),
            tls=tls(options),
            token=OperatorToken.checked(
                options.get("operatorTokenFile") or os.environ.get(TOKEN_VARIABLE, ""),
                addresses,
                split_at_commas(
                    options.get(TRUSTED_OPTION) or os.environ.get(TRUSTED_VARIABLE, "")
                ),
            ),
        )


def view_of(raw: Mapping[str, str]) -> str:
    """Parse the option view alone, of options not yet checked. Raises ValueError."""
    values = [value for name, value in raw.items() if name.lower() == "view"]
    return _view(values[0]) if values else VIEWS[0]


def _view(text: str) -> str:
    word = text.strip().lower()
    if word not in VIEWS:
        raise ValueError(f"option view: {text!r} is neither {' nor '.join(VIEWS)}")
    return word


def _row_filter(text: str | None, view: str) -> RowFilter | None:
    if text is None:
        return None
    from martlet.reader.filters import parse_filter  # Arrow's datasets take a while to load.

    return parse_filter(text, view)


def _topics(options: Mapping[str, str]) -> Topics:
    named_by = [name for name in ("topic", "subscribe") if name in options]
    patterns = [name for name in ("topicPattern", "subscribePattern") if name in options]
    for two in (named_by, patterns):
        if len(two) > 1:
            raise ValueError(f"options {two[0]} and {two[1]} mean the same: give one")
    if named_by and patterns:
        raise ValueError(
            f"options {named_by[0]} and {patterns[0]} exclude each other: a pattern may name topics"
            " too, as in orders|flights"
        )
    if patterns:
        name = patterns[0]
        try:
            return Topics(pattern=compile_pattern(options[name]))
        except BadPattern as error:
            raise ValueError(
                f"option {name}: {options[name]!r} is not a regular expression: {error}"
            ) from error
    if not named_by:
        raise ValueError(
            "option topic is missing: the topics to read, comma separated; or topicPattern, a"
            " regular expression"
        )
    names = split_at_commas(options[named_by[0]])
    if not names:
        raise ValueError(f"option {named_by[0]} is empty")
    for name in names:
        if not is_valid_name(name):
            raise ValueError(
                f"option {named_by[0]}: {name!r} is not a topic name; for a regular expression use"
                " topicPattern"
            )
    return Topics(names)


def _channel_name(options: Mapping[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is not None and not is_valid_name(value):
        raise ValueError(
            f"option {name}: {value!r} is not a channel name: 1 to 64 of . a-z A-Z 0-9 _ -"
        )
    if name == "group" and value is not None and is_ephemeral(value):
        raise ValueError(f"option group: {value!r} is ephemeral, and a group keeps its offsets")
    return value


def _bound(options: Mapping[str, str], which: str, default: Bound) -> Bound:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp in options:
        if offsets in options:
            raise ValueError(f"options {offsets} and {timestamp} exclude each other")
        return parse_timestamp(timestamp, options[timestamp])
    return parse_bound(offsets, options[offsets]) if offsets in options else default


def _delay_s(name: str, text: str) -> float:
    """Parse 90s, 1m30s, 500 ms or, in Spark's form, 10 seconds."""
    spark = _SPARKS_WORDS.fullmatch(text.strip())
    if spark is not None:
        unit = spark[2].lower()
        text = spark[1] + ("ms" if unit.startswith(("ms", "milli")) else unit[0])
    try:
        duration_ns = parse_duration(text.strip())
    except ValueError as error:
        raise ValueError(f"option {name}: {error}") from None
    if duration_ns < 0:
        raise ValueError(f"option {name}: {text!r} is below 0")
    return duration_ns / 1e9
