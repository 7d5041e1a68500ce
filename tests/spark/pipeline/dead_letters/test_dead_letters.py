"""Dead letters by Spark: grouped by why they died, brought back and dropped by a condition."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.spark.publish import ask, post

from martlet.client.sync import Consumer, Producer
from martlet.options.flag import OptionError
from martlet.pipeline.dead_letters import DeadLetterJobOptions, dead_letters, reader
from martlet.pipeline.dead_letters.reader import DeadLetterTopic, kind_of
from martlet.pipeline.job import JobFailed
from martlet.properties.model import Properties
from martlet.reader.brokers.endpoint import Endpoint
from martlet.testing import BrokerProcess

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("KeyError: 'order 17'", "KeyError: '...'"),
        ("timeout after 30 s at 10.0.0.7:25", "timeout after # s at #.#.#.#:#"),
        ("id e7d662491237fac2 is none", "id # is none"),
        ("two\nlines", "two"),
        ("0x1f and 0xg, beef and bee5", "# and 0xg, beef and #"),
        ("1" * 500_000 + "_", "1" * 120),
        ("", ""),
    ],
)
def test_errors_that_are_alike_are_of_one_kind(error: str, kind: str) -> None:
    assert kind_of(error) == kind


def test_a_row_has_an_order_key_and_headers_of_any_bytes() -> None:
    carried = Properties(headers={"a": b"\xff", "b": "text"}, order_key=b"\xfe").published_json()
    place = {"id": "d", "message_id": "m", "queue": 0, "offset": 7, "at_ms": 0, "body": "x"}
    topic = DeadLetterTopic(Endpoint("127.0.0.1:1", 1000), "t.c.dead")
    row = reader._row(topic, json.loads(json.dumps(place | carried)))
    assert row["key"] == b"\xfe"
    assert row["headers"] == [{"key": "b", "value": b"text"}, {"key": "a", "value": b"\xff"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"action": "purge"}, "none of list, redrive, drop"),
        ({"action": "drop"}, "say which to drop"),
        ({"action": "drop", "all": True, "where": "true"}, "say which to drop"),
        ({"action": "drop", "all": True, "to_topic": "t"}, "is for redrive"),
        ({"dry_run": True}, "are for redrive and drop"),
        ({"by": " "}, "--by is empty"),
        ({"addresses": ()}, "no brokers"),
    ],
)
def test_options_that_cannot_be_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        DeadLetterJobOptions(addresses=("a:1",)).replace(**change)


def test_commas_in_parentheses_or_quotes_separate_no_expressions() -> None:
    by = "reason, substr(error, 1, 3), tag || ', (', `a,b`"
    options = DeadLetterJobOptions(addresses=("a:1",), by=by)
    assert options.expressions == ["reason", "substr(error, 1, 3)", "tag || ', ('", "`a,b`"]


@pytest.fixture(scope="module")
def brokers() -> Iterator[list[BrokerProcess]]:
    """Two brokers: 40 orders died at the first, of 4 kinds, and 3 at the second."""
    with BrokerProcess() as first, BrokerProcess() as second:
        for broker, count in ((first, 40), (second, 3)):
            die(broker, count)
        yield [first, second]


def die(broker: BrokerProcess, count: int) -> None:
    policy = {"topic": "orders", "channel": "mail", "policy": {"max_attempts": 2}}
    post(broker.http_address, "/topic/create?topic=orders")
    post(broker.http_address, "/channel/create?topic=orders&channel=mail")
    post(broker.http_address, "/call/channel.configure", json.dumps(policy).encode())
    with Producer(broker.tcp_address) as producer:
        producer.publish_many("orders", [b'{"number": %d}' % n for n in range(count)])
    with Consumer("orders", "mail", broker.tcp_address) as consumer:
        for number, message in enumerate(consumer, 1):
            kind = json.loads(message.body)["number"] % 4
            message.reject(f"{['KeyError', 'ValueError'][kind % 2]}: no {'xy'[kind // 2]} {number}")
            if number == count:
                break


def waiting(broker: BrokerProcess) -> int:
    """How many dead letters the broker has still."""
    answer = json.loads(post(broker.http_address, "/call/dead_letters.list", b"{}"))
    return sum(topic["count"] for topic in answer["dead_letter_topics"])


def test_dead_letters_are_grouped_shown_redriven_and_dropped(
    spark: SparkSession, brokers: list[BrokerProcess]
) -> None:
    first, second = brokers
    options = DeadLetterJobOptions(addresses=(first.http_address, second.http_address))
    grouped = dead_letters(options, spark=spark)
    assert grouped.count == 43
    assert grouped.groups[-1]["count"] == 10  # the largest first
    assert sorted((row["error"], row["count"]) for row in grouped.groups) == [
        ("KeyError: no x #", 11),
        ("KeyError: no y #", 11),
        ("ValueError: no x #", 11),
        ("ValueError: no y #", 10),
    ]
    assert {(row["reason"], row["topic"], row["channel"]) for row in grouped.groups} == {
        ("rejected", "orders", "mail")
    }
    assert all(row["oldest"] <= row["newest"] for row in grouped.groups)

    some = options.replace(
        action="redrive", where="error LIKE 'KeyError%' AND number < 10", json_schema="number INT"
    )
    shown = dead_letters(some.replace(dry_run=True), spark=spark)
    assert (shown.count, shown.done) == (7, None)  # 0, 2, 4, 6, 8 of the first; 0, 2
    assert (waiting(first), waiting(second)) == (40, 3)
    done = dead_letters(some, spark=spark).done
    assert done is not None
    assert (done.count, done.kept) == (7, {})
    assert (waiting(first), waiting(second)) == (35, 1)
    for broker, count in ((first, 5), (second, 2)):
        (topic,) = [
            t
            for t in ask(broker.http_address, "/stats?format=json")["topics"]
            if t["topic_name"] == "orders"
        ]
        assert topic["channels"][0]["depth"] == count

    dropped = dead_letters(options.replace(action="drop", where="error LIKE 'V%'"), spark=spark)
    assert dropped.done is not None
    assert dropped.done.count == 21
    assert (waiting(first), waiting(second)) == (15, 0)
    moved = dead_letters(
        options.replace(action="redrive", all=True, to_topic="by-hand"), spark=spark
    )
    assert moved.done is not None
    assert moved.done.count == 15
    assert waiting(first) == 0
    assert dead_letters(options, spark=spark).groups == []


@pytest.mark.parametrize("option", ["where", "by"])
def test_a_bad_expression_is_named(
    spark: SparkSession, brokers: list[BrokerProcess], option: str
) -> None:
    options = DeadLetterJobOptions(addresses=(brokers[0].http_address,)).replace(
        **{option: "nosuch = 1"}
    )
    with pytest.raises(JobFailed, match=f"--{option}=nosuch = 1: .*`nosuch`"):
        dead_letters(options, spark=spark)
