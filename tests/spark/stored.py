"""Stored messages of a topic as any reader sees them, without Spark."""

from __future__ import annotations

from typing import Any

from tests.spark.publish import ask

from martlet.reader.options import ReadOptions
from martlet.spark.read.batch import BatchReader
from martlet.spark.read.schema import SCHEMA, arrow_schema


def rows_of(address: str, topic: str) -> list[dict[str, Any]]:
    """Its messages with all that they carry, by queue and offset; none where it does not exist."""
    topics = [listed["topic"] for listed in ask(address, "/log/topics")["topics"]]
    if topic not in topics:
        return []
    return rows_at(address, topic)


def rows_at(addresses: str, topic: str) -> list[dict[str, Any]]:
    """The same of a topic that exists, given the addresses of all replicas of its broker."""
    options = ReadOptions.parse({"addresses": addresses, "topic": topic}, "batch")
    reader = BatchReader(options, arrow_schema(SCHEMA))
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def values_of(address: str, topic: str) -> list[str]:
    """Their bodies, as text."""
    return [row["value"].decode() for row in rows_of(address, topic)]
