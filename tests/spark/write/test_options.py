"""Options and columns of a query that writes, checked before anything is sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from martlet.spark.read.schema import SCHEMA
from martlet.spark.write.options import NullValues, WriteOptions
from martlet.spark.write.schema import check_columns

pytestmark = pytest.mark.spark

HERE = {"addresses": "127.0.0.1:4151"}


def test_defaults() -> None:
    options = WriteOptions.parse(HERE | {"Topic": "t", "checkpointLocation": "/c"}, "stream")
    assert options == WriteOptions(addresses=("127.0.0.1:4151",), topic="t")
    assert options.tls is None


def test_all_of_them(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).touch()
    texts = {
        "addresses": "https://a:4152, b:4151,b:4151",
        "applicationId": "app",
        "batchId": "7",
        "blockBytes": "4096",
        "delayStepMs": "100",
        "nullValue": "Tombstone",
        "usePartition": "false",
        "abandonAfterMs": "5000",
        "timeoutMs": "100",
        "tlsCaFile": str(tmp_path / "ca"),
        "tlsCertFile": str(tmp_path / "cert"),
        "tlsKeyFile": str(tmp_path / "key"),
        "tlsVerify": "false",
        "authSecret": "s3cret",
    }
    options = WriteOptions.parse(texts, "batch")
    assert options.addresses == ("https://a:4152", "b:4151")
    assert (options.application_id, options.batch_id) == ("app", 7)
    assert (options.block_bytes, options.delay_step_ms) == (4096, 100)
    assert (options.null_values, options.uses_partition) == (NullValues.TOMBSTONE, False)
    assert (options.abandon_after_ms, options.timeout_ms) == (5000, 100)
    assert options.tls is not None
    assert options.tls.verify is False
    assert "s3cret" not in repr(options)


@pytest.mark.parametrize(
    ("texts", "error_text"),
    [
        ({"addresses": ""}, "option addresses is empty"),
        ({"addresses": "here"}, "'here' is not host:port"),
        ({"addresses": "here:0"}, "'here:0' is not host:port"),
        ({"path": "t"}, "a path, 't', means nothing here: option topic"),
        ({"topics": "t"}, "unknown option 'topics': did you mean topic.* the martlet sink knows"),
        ({"lookup": "here:4161"}, "stays at one broker.* give option addresses"),
        ({"lookup": "here:4161", "broker": "b"}, "give one of them"),
        ({"broker": "b"}, "option broker needs option lookup"),
        ({"topic": "no name"}, "'no name' is not a topic name"),
        ({"applicationId": ""}, "applicationId: '' is not 1 to 255 printable"),
        ({"applicationId": "x" * 256}, "is not 1 to 255 printable"),
        ({"batchId": "1"}, "option batchId is for df.write"),
        ({"nullValue": "none"}, "nullValue: 'none' is not one of error, drop, tombstone"),
        ({"usePartition": "no"}, "usePartition: 'no' is neither true nor false"),
        ({"timeoutMs": "soon"}, "option timeoutMs: 'soon' is not a whole number"),
        ({"timeoutMs": "0"}, "option timeoutMs: 0 is not between 1 and"),
        ({"blockBytes": "1"}, "option blockBytes: 1 is not between 1024 and"),
        ({"tls": "perhaps"}, "option tls: 'perhaps' is neither true nor false"),
        ({"tlsCaFile": "/x"}, "option tlsCaFile needs option tls too"),
        ({"tls": "true", "tlsCaFile": "/x/y"}, "option tlsCaFile: there is no file '/x/y'"),
    ],
)
def test_bad_options_are_refused(texts: dict[str, str], error_text: str) -> None:
    with pytest.raises(ValueError, match=error_text):
        WriteOptions.parse(HERE | texts, "stream")


def test_options_that_need_each_other() -> None:
    with pytest.raises(ValueError, match="option addresses is missing"):
        WriteOptions.parse({}, "stream")
    with pytest.raises(ValueError, match="give option applicationId too"):
        WriteOptions.parse(HERE | {"batchId": "1"}, "batch")
    with pytest.raises(ValueError, match="needs option batchId"):
        WriteOptions.parse(HERE | {"applicationId": "a"}, "batch")


TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "BINARY": BinaryType(),
    "INT": IntegerType(),
    "BIGINT": LongType(),
    "TIMESTAMP": TimestampType(),
    "INTERVAL": DayTimeIntervalType(),
    "STRINGS": ArrayType(StringType()),
    "MAP": MapType(StringType(), StringType()),
    "PAIRS": ArrayType(StructType().add("key", StringType()).add("value", StringType())),
}


def schema(**types: str) -> StructType:
    made = StructType()
    for name, type in types.items():
        made = made.add(name, TYPES[type])
    return made


def test_rows_that_were_read_can_be_written() -> None:
    check_columns(SCHEMA, None)


@pytest.mark.parametrize(
    "columns",
    [
        {"value": "STRING", "key": "STRING", "partition": "BIGINT", "delay": "INT"},
        {"value": "BINARY", "headers": "MAP", "delay": "INTERVAL"},
        {"value": "BINARY", "headers": "PAIRS"},
        {"value": "BINARY", "tag": "STRING", "keys": "STRINGS", "deliver_at": "TIMESTAMP"},
    ],
)
def test_columns_of_all_types(columns: dict[str, str]) -> None:
    check_columns(schema(**columns), "t")


@pytest.mark.parametrize(
    ("columns", "topic", "error_text"),
    [
        ({"topic": "STRING"}, None, "column 'value' is missing, there are topic: it is the body"),
        ({"value": "STRING"}, None, "give option topic, or a column 'topic'"),
        ({"value": "STRING", "tpic": "STRING"}, "t", "no column 'tpic': did you mean topic"),
        ({"value": "STRING", "amount": "INT"}, "t", "no column 'amount': it has value, topic"),
        ({"value": "INT"}, "t", "'value' is int, the martlet sink wants BINARY or STRING: CAST"),
        ({"value": "STRING", "headers": "STRING"}, "t", "'headers' is string.*MAP<STRING"),
        ({"value": "STRING", "delay": "STRING"}, "t", "'delay' is string.*INTERVAL"),
        (
            {"value": "STRING", "delay": "INT", "deliver_at": "TIMESTAMP"},
            "t",
            "'deliver_at' and 'delay' exclude each other",
        ),
    ],
)
def test_columns_that_cannot_be_written(
    columns: dict[str, Any], topic: str | None, error_text: str
) -> None:
    with pytest.raises(ValueError, match=error_text):
        check_columns(schema(**columns), topic)
