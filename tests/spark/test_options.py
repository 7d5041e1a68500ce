"""What a user may ask for, and what is said where it makes no sense."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from martlet.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from martlet.spark.schema import arrow_schema

NEEDED = {"addresses": "127.0.0.1:4151", "topic": "t"}


def parse(kind: str = "batch", **options: str) -> ReadOptions:
    given = CaseInsensitiveDict(NEEDED | options)
    return ReadOptions.parse(given, "stream" if kind == "stream" else "batch")


def test_defaults() -> None:
    options = parse()
    assert options.addresses == ("127.0.0.1:4151",)
    assert options.topics == ("t",)
    assert options.start == Bound(everywhere=EARLIEST)
    assert options.end == Bound(everywhere=LATEST)
    assert options.fail_on_data_loss
    assert parse("stream").start == Bound(everywhere=LATEST)


def test_lists() -> None:
    options = parse(addresses="a:1, [::1]:2,a:1", topic=" x ,y")
    assert options.addresses == ("a:1", "[::1]:2")
    assert options.topics == ("x", "y")


@pytest.mark.parametrize(
    ("text", "timestamp_ns"),
    [
        ("1700000000123", 1_700_000_000_123_000_000),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123_000_000),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123_000_000),
    ],
)
def test_timestamps(text: str, timestamp_ns: int) -> None:
    assert parse(startingTimestamp=text).start == Bound(timestamp_ns=timestamp_ns)


def test_offsets_as_json() -> None:
    assert parse(startingOffsets='{"t": {"0": 17}}').start.offsets == {"t": {"0": 17}}
    by_broker = '{"b": {"t": {"0": -2}}}'
    assert parse(endingOffsets=by_broker).end.offsets == {"b": {"t": {"0": -2}}}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("batch", {"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ("batch", {"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers'"),
        ("batch", {"addresses": "localhost"}, "'localhost' is not host:port"),
        ("batch", {"addresses": "localhost:99999"}, "not host:port"),
        ("batch", {"addresses": " , "}, "addresses is empty"),
        ("batch", {"subscribe": "u"}, "two names of one"),
        ("batch", {"startingOffsets": "first"}, "neither earliest nor latest nor JSON"),
        ("batch", {"startingOffsets": '{"t": 3}'}, "neither earliest nor latest nor JSON"),
        ("batch", {"startingOffsets": '{"t": {"0": -3}}'}, "neither earliest"),
        ("batch", {"startingOffsets": '{"t": {"0": true}}'}, "neither earliest"),
        ("batch", {"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        (
            "batch",
            {"startingTimestamp": "2023-11-14T22:13:20"},
            "for UTC write 2023-11-14T22:13:20Z",
        ),
        ("batch", {"startingTimestamp": "yesterday"}, "neither milliseconds"),
        ("batch", {"failOnDataLoss": "maybe"}, "neither true nor false"),
        ("batch", {"splitBytes": "64m"}, "not a whole number"),
        ("batch", {"splitBytes": "1"}, "not between"),
        ("batch", {"channel": "c"}, "spark.readStream, not for a batch"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "spark.readStream"),
        ("stream", {"endingOffsets": "latest"}, "spark.read, not for a stream"),
        ("stream", {"maxOffsetsPerTrigger": "0"}, "not between 1"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse(kind, **options)


@pytest.mark.parametrize("missing", ["addresses", "topic"])
def test_what_is_needed(missing: str) -> None:
    given = {name: value for name, value in NEEDED.items() if name != missing}
    with pytest.raises(ValueError, match=f"option {missing} is missing"):
        ReadOptions.parse(given, "batch")


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'body'; it has key binary, value binary"):
        arrow_schema(StructType().add("body", "binary"))


def test_another_type_of_a_column_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'value' of the martlet source is binary and not string"):
        arrow_schema(StructType().add("value", "string"))
