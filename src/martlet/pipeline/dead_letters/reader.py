"""Read dead letters from the brokers as a table, in Spark tasks.

``docs/pipelines/dead-letters.md`` has the columns.  Dead letters in flight, redriven or dropped are
not in the table.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from martlet.pipeline.options import JobOptions
from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import Endpoint
from martlet.reader.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("topic", "channel", "reason", "error")),
        *((name, pa.string()) for name in ("first_error", "last_error")),
        *((name, pa.int32()) for name in ("attempts", "failures", "redriven")),
        *((name, pa.timestamp("us", "UTC")) for name in ("died_at", "published_at")),
        ("value", pa.binary()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        *((name, pa.string()) for name in ("message_id", "id", "dead_letter_topic", "broker")),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
IN_FLIGHT = "in_flight"
_PAGE_LETTERS = 1000
_MAX_BODY_BYTES = 8 << 20
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"\b(?:0x)?(?=[a-fA-F]*\d)[0-9a-fA-F]++\b")
_MAX_KIND_LENGTH = 120


class DeadLetterTopic(NamedTuple):
    """A dead-letter topic at a broker."""

    endpoint: Endpoint
    topic: str


def dead_letter_topics(options: JobOptions) -> list[DeadLetterTopic]:
    """List the dead-letter topics of all brokers that are not empty. Raises as `Endpoint.call`."""
    source = ReadOptions.parse({**options.source, "topicPattern": ".*"}, "batch")
    with closing(QueryBrokers(source)) as brokers:
        brokers.poll(patient=True)
        return [
            DeadLetterTopic(endpoint, topic["dead_letter_topic"])
            for endpoint in map(brokers.endpoint, brokers.ids)
            for topic in endpoint.call("dead_letters.list", {})["dead_letter_topics"]
            if topic["count"]
        ]


def read_dead_letters(spark: SparkSession, topics: Sequence[DeadLetterTopic]) -> DataFrame:
    """Read all dead letters of some topics, each topic in one task."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from _pages(topics[number])

    count = len(topics)
    return spark.range(0, count, 1, max(1, count)).mapInArrow(read, from_arrow_schema(_SCHEMA))


def _pages(topic: DeadLetterTopic) -> Iterator[pa.RecordBatch]:
    cursor: dict[str, int] | None = {}
    fields = {
        "dead_letter_topic": topic.topic,
        "limit": _PAGE_LETTERS,
        "max_body_bytes": _MAX_BODY_BYTES,
    }
    try:
        while cursor is not None:
            page = topic.endpoint.call("dead_letters.show", {**fields, **cursor})
            waiting = (letter for letter in page["messages"] if letter["state"] != IN_FLIGHT)
            yield pa.RecordBatch.from_pylist([_row(topic, letter) for letter in waiting], _SCHEMA)
            cursor = page["next"]
    finally:
        topic.endpoint.close()


def _row(topic: DeadLetterTopic, letter: dict[str, Any]) -> dict[str, Any]:
    last = letter.get("last_error", "")
    body = letter["body"]
    return {
        "topic": letter.get("topic"),
        "channel": letter.get("channel"),
        "reason": letter.get("reason") or "unknown",
        "error": kind_of(last or letter.get("first_error", "")),
        "first_error": letter.get("first_error"),
        "last_error": last or None,
        "attempts": _number(letter.get("attempts")),
        "failures": _number(letter.get("failures")),
        "redriven": _number(letter.get("redrives")) or 0,
        "died_at": _time(letter["at_ms"]),
        "published_at": _time(letter.get("stored_ms")),
        "value": base64.b64decode(letter["body_base64"]) if body is None else body.encode(),
        "tag": letter["tag"] or None,
        "keys": letter["keys"] or None,
        "key": base64.b64decode(letter.get("order_key_base64", ""))
        or letter["order_key"].encode()
        or None,
        "headers": [
            *({"key": name, "value": value.encode()} for name, value in letter["headers"].items()),
            *(
                {"key": name, "value": base64.b64decode(value)}
                for name, value in letter.get("headers_base64", {}).items()
            ),
        ]
        or None,
        "message_id": letter["message_id"],
        "id": letter["id"],
        "dead_letter_topic": topic.topic,
        "broker": topic.endpoint.address,
        "partition": letter["queue"],
        "offset": letter["offset"],
    }


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdecimal() else None


def _time(value: object) -> datetime | None:
    milliseconds = _number(value)
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def kind_of(error: str) -> str:
    """Reduce an error to its kind: its first line without numbers, ids and quoted text."""
    line = error.strip().partition("\n")[0]
    return _NUMBER.sub("#", _QUOTED.sub("'...'", line))[:_MAX_KIND_LENGTH]
