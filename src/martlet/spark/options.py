"""What a user may say with ``.option(...)``, checked before anything is read.

===================== ================ ===========================================================
option                default          meaning
===================== ================ ===========================================================
addresses             required         HTTP addresses of brokers, ``host:port``, comma separated
topic, subscribe      required         topics, comma separated (two names of one option)
startingOffsets       latest (streams) ``earliest``, ``latest`` or JSON, ``{"topic": {"0": 17}}``,
                      earliest (batch) with -2 for earliest and -1 for latest
endingOffsets         latest           the same, for batch queries
startingTimestamp     none             from the first message stored at or after it: milliseconds
                                       since 1970 or ISO 8601 with a zone
endingTimestamp       none             up to the same, for batch queries
maxOffsetsPerTrigger  none             how many messages a micro-batch may hold
failOnDataLoss        true             false: go on behind what is gone, and log it
splitBytes            128 MiB          bytes of the log that one Spark task reads
channel               none             a channel that is advanced as a stream's batches are
                                       committed, so the broker keeps what was not yet read
timeoutMs             60000            how long a broker may be out of reach
===================== ================ ===========================================================

With several brokers the JSON is by broker first: ``{"<broker id>": {"topic": {"0": 17}}}``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

EARLIEST = -2
LATEST = -1
"""As in the JSON of Spark's Kafka source."""

_NAMES = (
    "addresses",
    "topic",
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "splitBytes",
    "channel",
    "timeoutMs",
)
_DEFAULT_SPLIT_BYTES = 128 << 20
_LEAST_SPLIT_BYTES = 64 << 10
_MOST_SPLIT_BYTES = 4 << 30
_DEFAULT_TIMEOUT_MS = 60_000
_STREAMS_ONLY = ("maxOffsetsPerTrigger", "channel")
_BATCHES_ONLY = ("endingOffsets", "endingTimestamp")


@dataclass(frozen=True)
class Bound:
    """Where to start or to end: at one end of each queue, at given offsets, or at a time.

    Exactly one of `everywhere` (EARLIEST or LATEST), `offsets` and `timestamp_ns` is set.
    `offsets` is by topic and queue, or by broker, topic and queue.
    """

    everywhere: int | None = None
    offsets: Mapping[str, Any] | None = None
    timestamp_ns: int | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of one query, valid."""

    addresses: tuple[str, ...]
    topics: tuple[str, ...]
    start: Bound
    end: Bound
    max_offsets: int | None
    fail_on_data_loss: bool
    split_bytes: int
    channel: str | None
    timeout_ms: int

    @classmethod
    def parse(cls, given: Mapping[str, str], kind: Literal["batch", "stream"]) -> ReadOptions:
        """Read the options of a query; their names may be of any case.

        Raises:
            ValueError: an option is unknown, missing, wrong, or not for this kind of query.
        """
        names = {name.lower(): name for name in _NAMES}
        options: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, 1)
                hint = f"did you mean {names[near[0]]}? " if near else ""
                raise ValueError(
                    f"unknown option {name!r}: {hint}the martlet source knows {', '.join(_NAMES)}"
                )
            options[names[name.lower()]] = value
        for name in _BATCHES_ONLY if kind == "stream" else _STREAMS_ONLY:
            if name in options:
                other = "spark.read" if kind == "stream" else "spark.readStream"
                raise ValueError(f"option {name} is for {other}, not for a {kind} query")
        default = LATEST if kind == "stream" else EARLIEST
        max_offsets = options.get("maxOffsetsPerTrigger")
        return cls(
            addresses=_addresses(options),
            topics=_topics(options),
            start=_bound(options, "starting", default),
            end=_bound(options, "ending", LATEST),
            max_offsets=None
            if max_offsets is None
            else _number("maxOffsetsPerTrigger", max_offsets, 1, 2**62),
            fail_on_data_loss=_boolean("failOnDataLoss", options.get("failOnDataLoss", "true")),
            split_bytes=_number(
                "splitBytes",
                options.get("splitBytes", str(_DEFAULT_SPLIT_BYTES)),
                _LEAST_SPLIT_BYTES,
                _MOST_SPLIT_BYTES,
            ),
            channel=options.get("channel"),
            timeout_ms=_number(
                "timeoutMs", options.get("timeoutMs", str(_DEFAULT_TIMEOUT_MS)), 0, 2**31
            ),
        )


def _list(name: str, text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ValueError(f"option {name} is empty")
    return parts


def _addresses(options: Mapping[str, str]) -> tuple[str, ...]:
    if "addresses" not in options:
        raise ValueError(
            "option addresses is missing: the HTTP addresses of the brokers to read from, "
            "such as 127.0.0.1:4151"
        )
    addresses = _list("addresses", options["addresses"])
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(
                f"option addresses: {address!r} is not host:port (the broker's HTTP port, "
                "usually 4151)"
            )
    return addresses


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    given = [name for name in ("topic", "subscribe") if name in options]
    if len(given) != 1:
        raise ValueError(
            "options topic and subscribe are two names of one: give one of them"
            if given
            else "option topic is missing: the topics to read, comma separated"
        )
    return _list(given[0], options[given[0]])


def _bound(options: Mapping[str, str], which: str, default: int) -> Bound:
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp in options:
        if offsets in options:
            raise ValueError(f"options {offsets} and {timestamp} exclude each other")
        return Bound(timestamp_ns=_timestamp_ns(timestamp, options[timestamp]))
    text = options.get(offsets)
    if text is None:
        return Bound(everywhere=default)
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if word == "earliest" else LATEST)
    wrong = (
        f'option {offsets}: {text!r} is neither earliest nor latest nor JSON such as {{"topic": '
        '{"0": 17}}, with -2 for earliest and -1 for latest'
    )
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(wrong) from error
    if not _is_offsets(parsed):
        raise ValueError(wrong)
    return Bound(offsets=parsed)


def _is_offsets(parsed: object) -> bool:
    """Whether this is {topic: {queue: offset}}, with or without brokers around it."""

    def by_queue(value: object) -> bool:
        return (
            isinstance(value, dict)
            and bool(value)
            and all(
                key.isdecimal() and type(offset) is int and offset >= EARLIEST
                for key, offset in value.items()
            )
        )

    def by_topic(value: object) -> bool:
        return isinstance(value, dict) and bool(value) and all(map(by_queue, value.values()))

    return by_topic(parsed) or (
        isinstance(parsed, dict) and bool(parsed) and all(map(by_topic, parsed.values()))
    )


def _timestamp_ns(name: str, text: str) -> int:
    if text.strip().isdecimal():
        return int(text) * 1_000_000
    wrong = f"option {name}: {text!r} is neither milliseconds since 1970 nor ISO 8601 with a zone"
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ValueError(wrong) from error
    if moment.tzinfo is None:
        raise ValueError(f"{wrong}; for UTC write {text.strip()}Z")
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _number(name: str, text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise ValueError(f"option {name}: {text!r} is not a whole number") from error
    if not least <= number <= most:
        raise ValueError(f"option {name}: {number} is not between {least} and {most}")
    return number


def _boolean(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"option {name}: {text!r} is neither true nor false")
    return word == "true"
