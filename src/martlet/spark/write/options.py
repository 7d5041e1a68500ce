"""The options of a writing query, checked before it writes, and what its tasks report.

``docs/pipelines/sink.md`` has their meaning and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

from pyspark.sql.datasource import WriterCommitMessage

from martlet.names import is_valid_name
from martlet.reader.brokers.addresses import SparkTls, parse_addresses
from martlet.reader.option_values import TLS_NAMES, boolean, number, spelled_options, tls

_NAMES = (
    "addresses",
    "lookup",
    "broker",
    "topic",
    "applicationId",
    "batchId",
    "blockBytes",
    "delayStepMs",
    "nullValue",
    "usePartition",
    "abandonAfterMs",
    "timeoutMs",
    "tls",
    *TLS_NAMES,
    "authSecret",
)
_SPARKS = frozenset({"checkpointlocation", "queryname"})
"""The options that Spark itself reads, and passes on."""
_DAY_MS = 24 * 3600 * 1000
_MAX_APPLICATION_ID_LENGTH = 255
_MAX_NUMBER = 2**63 - 1


class WriteFailed(Exception):
    """Rows could not be staged or published; the text has the cause and the way out."""


class BatchId(NamedTuple):
    """The identity of a batch, by which the broker deduplicates it."""

    name: str
    """The option applicationId, or the query's id."""
    number: int


class NullValues(StrEnum):
    """The ways of the sink to treat a row whose value is null or empty."""

    ERROR = "error"
    DROP = "drop"
    TOMBSTONE = "tombstone"


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The rows that a task has staged."""

    transaction: str
    batch_id: BatchId | None
    """None for a write that is never repeated."""
    branch: str
    """The name of the task's rows within the transaction."""
    message_count: int
    is_repeated: bool = False
    """Whether the broker has published this batch before."""


@dataclass(frozen=True)
class WriteOptions:
    """The options of one query that writes, valid."""

    addresses: tuple[str, ...]
    """As given, the HTTP or TCP doors of brokers; none with lookup daemons."""
    lookup_addresses: tuple[str, ...] = ()
    broker: str = ""
    """The id of the broker that lookup daemons find."""
    topic: str | None = None
    """The topic of all rows; None if each row names its own."""
    application_id: str | None = None
    """None for the query's id."""
    batch_id: int | None = None
    """The number of a batch query; None if it is never repeated."""
    block_bytes: int = 1 << 20
    delay_step_ms: int = 1
    null_values: NullValues = NullValues.ERROR
    uses_partition: bool | None = None
    """Whether column `partition` chooses queues; None if the other columns decide."""
    abandon_after_ms: int = _DAY_MS
    timeout_ms: int = 60_000
    tls: SparkTls | None = None
    auth_secret: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, str], kind: Literal["batch", "stream"]) -> WriteOptions:
        """Read the options of a query; their names may be of any case. Raises ValueError."""
        options = _read(raw)
        if kind == "stream" and "batchId" in options:
            raise ValueError(
                "option batchId is for df.write: a stream's batches have their numbers from Spark"
            )
        if "batchId" in options and "applicationId" not in options:
            raise ValueError(
                "option batchId numbers the writes of an application: give option applicationId too"
            )
        if kind == "batch" and "applicationId" in options and "batchId" not in options:
            raise ValueError(
                "option applicationId of df.write needs option batchId, the number of this write:"
                " what is above the last one is published, and what is not was published before"
            )
        addresses, lookup_addresses = _doors(options)
        return cls(
            addresses=addresses,
            lookup_addresses=lookup_addresses,
            broker=options.get("broker", ""),
            topic=_topic(options),
            application_id=_application_id(options),
            batch_id=number(options, "batchId", None, 0, _MAX_NUMBER),
            block_bytes=number(options, "blockBytes", 1 << 20, 1024, 1 << 30),
            delay_step_ms=number(options, "delayStepMs", 1, 1, _DAY_MS),
            null_values=_null_values(options),
            uses_partition=(
                boolean(options, "usePartition", True) if "usePartition" in options else None
            ),
            abandon_after_ms=number(options, "abandonAfterMs", _DAY_MS, 1000, 400 * _DAY_MS),
            timeout_ms=number(options, "timeoutMs", 60_000, 1, 2**31),
            tls=_tls(options, addresses),
            auth_secret=options.get("authSecret") or None,
        )


def _read(raw: Mapping[str, str]) -> dict[str, str]:
    """The options as they are spelled here, without those that Spark reads. Raises ValueError."""
    options = {name: value for name, value in raw.items() if name.lower() not in _SPARKS}
    for name, value in options.items():
        if name.lower() == "path":
            raise ValueError(
                f"a path, {value!r}, means nothing here: option topic or column topic says where"
                " rows go; end with save() or start()"
            )
    return spelled_options(options, _NAMES, "the martlet sink")


def _doors(options: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The addresses of brokers, or those of lookup daemons."""
    if "lookup" not in options:
        if "addresses" not in options:
            raise ValueError(
                "option addresses is missing: the HTTP addresses of the brokers to write to, such"
                " as 127.0.0.1:4151"
            )
        if "broker" in options:
            raise ValueError("option broker needs option lookup too")
        return parse_addresses("addresses", options["addresses"]), ()
    if not options.get("broker"):
        raise ValueError(
            "option lookup needs option broker, an id as in column broker of the source:"
            " all that a query writes stays at one broker; or give option addresses"
        )
    if "addresses" in options:
        raise ValueError("options addresses and lookup: give one of them")
    return (), parse_addresses("lookup", options["lookup"])


def _topic(options: Mapping[str, str]) -> str | None:
    topic = options.get("topic")
    if topic is not None and not is_valid_name(topic):
        raise ValueError(
            f"option topic: {topic[:80]!r} is not a topic name: 1 to 64 of . a-z A-Z 0-9 _ -;"
            " for several give each row a column 'topic'"
        )
    return topic


def _application_id(options: Mapping[str, str]) -> str | None:
    application_id = options.get("applicationId")
    if application_id is not None and not (
        0 < len(application_id) <= _MAX_APPLICATION_ID_LENGTH and application_id.isprintable()
    ):
        raise ValueError(
            f"option applicationId: {application_id[:80]!r} is not 1 to"
            f" {_MAX_APPLICATION_ID_LENGTH} printable characters"
        )
    return application_id


def _null_values(options: Mapping[str, str]) -> NullValues:
    text = options.get("nullValue", NullValues.ERROR)
    try:
        return NullValues(text.strip().lower())
    except ValueError:
        raise ValueError(
            f"option nullValue: {text!r} is not one of {', '.join(NullValues)}"
        ) from None


def _tls(options: Mapping[str, str], addresses: tuple[str, ...]) -> SparkTls | None:
    is_tls = boolean(options, "tls", any(address.startswith("https://") for address in addresses))
    tls_options = [name for name in options if name.startswith("tls") and name != "tls"]
    if not is_tls:
        if tls_options:
            raise ValueError(f"option {tls_options[0]} needs option tls too")
        return None
    return tls(options)
