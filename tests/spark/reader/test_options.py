"""Options of a user, and the errors of senseless ones."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from martlet.reader.offset_bound import EARLIEST, END, LATEST, START, Bound, BoundOffset
from martlet.reader.options import ReadOptions, Topics
from martlet.spark.read.schema import arrow_schema

EPOCH_NS = 1_700_000_000_000_000_000
NEEDED = {"addresses": "127.0.0.1:4151", "topic": "t"}


def parse(kind: str = "batch", **options: str) -> ReadOptions:
    texts = CaseInsensitiveDict(NEEDED | options)
    return ReadOptions.parse(texts, "stream" if kind == "stream" else "batch")


def test_defaults() -> None:
    options = parse()
    assert options.addresses == ("127.0.0.1:4151",)
    assert options.topics == Topics(("t",))
    assert (options.start, options.end) == (START, END)
    assert options.fail_on_data_loss
    assert not options.retain
    assert parse("stream").start == END


def test_lists() -> None:
    options = parse(addresses="a:1, [::1]:2,a:1", topic=" x ,y")
    assert options.addresses == ("a:1", "[::1]:2")
    assert options.topics == Topics(("x", "y"))


@pytest.mark.parametrize(
    ("text", "timestamp_ns"),
    [
        ("1700000000123", 1_700_000_000_123_000_000),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123_000_000),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123_000_000),
    ],
)
def test_timestamps(text: str, timestamp_ns: int) -> None:
    assert parse(startingTimestamp=text).start == Bound(BoundOffset(time_ns=timestamp_ns))


def test_offsets_as_json() -> None:
    assert parse(startingOffsets='{"t": {"0": 17}}').start.by_queue == {"t": {"0": BoundOffset(17)}}
    by_broker = '{"b": {"t": {"0": -2, "topic_id": 9}, "u": "latest-5"}}'
    places = {"b": {"t": {"0": BoundOffset(end=EARLIEST)}, "u": BoundOffset(end=LATEST, shift=-5)}}
    assert parse(endingOffsets=by_broker).end.by_queue == places
    everywhere = '{"t": "now-1h", "u": {"1": "2023-11-14T22:13:20Z", "2": "earliest+3"}}'
    assert parse(endingOffsets=everywhere).end.by_queue == {
        "t": BoundOffset(ago_ns=3_600_000_000_000),
        "u": {"1": BoundOffset(time_ns=EPOCH_NS), "2": BoundOffset(end=EARLIEST, shift=3)},
    }


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", BoundOffset(end=EARLIEST)),
        ("Latest", BoundOffset(end=LATEST)),
        ("latest-1000", BoundOffset(end=LATEST, shift=-1000)),
        ("earliest + 7", BoundOffset(end=EARLIEST, shift=7)),
        ("2023-11-14T22:13:20Z", BoundOffset(time_ns=EPOCH_NS)),
        ("now-1m30s", BoundOffset(ago_ns=90_000_000_000)),
        ("now", BoundOffset(ago_ns=0)),
    ],
)
def test_a_place_for_all_queues(text: str, place: BoundOffset) -> None:
    assert parse(startingOffsets=text).start == Bound(place)
    assert parse("stream", startingOffsets=text).start == Bound(place)


def test_names_of_any_case_and_two_names_of_one() -> None:
    options = parse("stream", MAXOFFSETSPERTRIGGER="5", maxbytespertrigger="64m", minrows="9")
    assert (options.max_offsets, options.max_bytes, options.min_rows) == (5, 64 << 20, 9)
    texts = {"addresses": "a:1", "subscribePattern": "or.*|x"}
    topics = ReadOptions.parse(texts, "batch").topics
    assert [topics.has(name) for name in ("orders", "x", "xy", "nor")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1m30s", 90), ("500 ms", 0.5), ("10 seconds", 10)]
)
def test_delays(text: str, seconds: float) -> None:
    assert parse("stream", minRows="9", maxDelay=text).max_delay_s == seconds


def test_where_brokers_are() -> None:
    texts = {"lookup": "127.0.0.1:4161", "topic": "t"}
    options = ReadOptions.parse(texts, "stream")
    assert (options.addresses, options.lookup_addresses) == ((), ("127.0.0.1:4161",))
    old = {"lookupAddresses": "127.0.0.1:4161", "topic": "t"}
    assert ReadOptions.parse(CaseInsensitiveDict(old), "stream") == options, "of earlier versions"
    assert parse(addresses="http://a:1/, https://b:2").addresses == ("a:1", "https://b:2")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("batch", {"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ("batch", {"kafka.bootstrap.servers": "x"}, "unknown option 'kafka.bootstrap.servers'"),
        ("batch", {"addresses": "localhost"}, "'localhost' is not host:port"),
        ("batch", {"addresses": "localhost:99999"}, "not host:port"),
        ("batch", {"addresses": " , "}, "addresses is empty"),
        ("batch", {"subscribe": "u"}, "mean the same"),
        ("batch", {"startingOffsets": "first"}, "'first' is neither a position"),
        ("batch", {"startingOffsets": "latest+5"}, "neither a position"),
        ("batch", {"startingOffsets": "earliest-5"}, "neither a position"),
        ("batch", {"startingOffsets": "17"}, 'write {"topic": {"0": 17}}, for a time starting'),
        ("batch", {"startingOffsets": "now-5"}, "neither a position"),
        ("batch", {"startingOffsets": "now--1h"}, "neither a position"),
        ("batch", {"startingTimestamp": "9" * 5000}, "' is neither milliseconds"),
        ("batch", {"startingOffsets": "latest-" + "9" * 5000}, "neither a position"),
        ("batch", {"startingOffsets": '{"t": {"0": %s}}' % ("9" * 5000)}, "neither a position"),
        ("batch", {"startingOffsets": '{"t": ' * 100_000}, "neither a position"),
        ("batch", {"addresses": "localhost:" + "9" * 5000}, "not host:port"),
        ("batch", {"startingOffsets": "{}"}, "neither a position"),
        ("batch", {"startingOffsets": '{"t": {}}'}, "neither a position"),
        ("batch", {"startingOffsets": '{"t": '}, "nor JSON such as.*Expecting value"),
        ("batch", {"startingOffsets": '{"t": {"0": -3}}'}, "neither a position"),
        ("batch", {"startingOffsets": '{"t": {"0": true}}'}, "neither a position"),
        ("batch", {"topicPattern": "t.*"}, "topic and topicPattern exclude each other"),
        ("batch", {"topic": "a*"}, "'a*' is not a topic name; for a regular"),
        ("batch", {"view": "rows"}, "'rows' is neither messages nor batches"),
        ("batch", {"group": "g"}, "spark.readStream"),
        ("batch", {"tlsCaFile": "/nowhere"}, "there is no file '/nowhere'"),
        ("batch", {"tlsKeyFile": "/nowhere"}, "needs option tlsCertFile too"),
        ("batch", {"minPartitions": "0"}, "not between 1"),
        ("stream", {"retain": "true"}, "retain needs option group too"),
        ("stream", {"maxDelay": "1s"}, "maxDelay needs option minRows too"),
        ("stream", {"minRows": "5", "maxDelay": "soon"}, "'soon' is not a duration"),
        ("stream", {"maxBytesPerTrigger": "lots"}, "'lots' is not a size"),
        ("stream", {"group": "a b"}, "'a b' is not a channel name"),
        ("stream", {"group": "g#ephemeral"}, "is ephemeral"),
        ("batch", {"startingOffsets": "latest", "startingTimestamp": "1"}, "exclude each other"),
        (
            "batch",
            {"startingTimestamp": "2023-11-14T22:13:20"},
            "for UTC write 2023-11-14T22:13:20Z",
        ),
        ("batch", {"startingTimestamp": "yesterday"}, "neither milliseconds"),
        ("batch", {"failOnDataLoss": "maybe"}, "neither true nor false"),
        ("batch", {"splitBytes": "64x"}, "not a size such as"),
        ("batch", {"splitBytes": "1"}, "not between"),
        ("batch", {"channel": "c"}, "spark.readStream, not for a batch"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "spark.readStream"),
        ("stream", {"endingOffsets": "latest"}, "spark.read, not for a stream"),
        ("stream", {"maxOffsetsPerTrigger": "0"}, "not between 1"),
    ],
)
def test_senseless_options_are_refused(kind: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        parse(kind, **options)


@pytest.mark.parametrize(
    ("column", "kind", "view", "message"),
    [
        ("body", "binary", "messages", "no column 'body'; it has key binary, value binary"),
        ("value", "string", "messages", "'value' of the martlet source is binary and not string"),
        ("value", "binary", "batches", "no column 'value'; it has broker string, topic string"),
    ],
)
def test_a_column_that_there_is_not_is_refused(
    column: str, kind: str, view: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        arrow_schema(StructType().add(column, kind), view)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"topic": "t"}, "option addresses is missing"),
        ({"addresses": "a:1"}, "option topic is missing"),
        ({"addresses": "a:1", "topicPattern": "("}, r"topicPattern: '\(' is not a regular express"),
    ],
)
def test_required_options(texts: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReadOptions.parse(texts, "batch")


def test_a_pattern_meets_names_of_strangers_in_time_by_their_length() -> None:
    topics = ReadOptions.parse({"addresses": "a:1", "topicPattern": "(a+)+"}, "batch").topics
    assert topics.has("a" * 64)
    assert not topics.has("a" * 63 + "-")
    assert not topics.has("-" + "a" * 63)
