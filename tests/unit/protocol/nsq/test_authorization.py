"""Permissions of an auth server's answer; answers as a client sees them are in tests/interop."""

from __future__ import annotations

import json

import pytest

from martlet.protocol.nsq.authorization import BadAnswer, read_answer


def answer(**rule: object) -> bytes:
    rule = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]} | rule
    return json.dumps({"ttl": 1, "authorizations": [rule]}).encode()


@pytest.mark.parametrize(
    ("expression", "topic", "allowed"),
    [
        ("", "orders", True),
        ("der", "orders", True),
        ("^der", "orders", False),
        ("^orders$", "orders", True),
        (r"\Aorders\z", "orders", True),
        (r"\Aorder\z", "orders", False),
        (r"^\\z", "orders", False),
        ("^[[:alpha:]]+$", "orders", True),
        ("^[[:alpha:]_.]+$", "my_orders.eu", True),
        ("^[[:alpha:]]+$", "orders2", False),
        (r"^[\w-]+$", "my-orders", True),
        ("(?i)ORDERS", "orders", True),
        (r"\Qorders\E", "orders", True),
        (r"^\Q\C\E", "orders", False),
        (r"^\\C", "orders", False),
        ("^(?U)o+?rders$", "orders", True),
        (r"^\pL+$", "orders", True),
        ("^orders$", "orders\n", False),
        ("(a+)+$", "a" * 60 + "-a-", False),
        (r"([a-z]+-?)*\.x", "a" * 30 + "-a" * 8, False),
        ("^(a?){30}a{30}$", "a" * 29, False),
        ("#ephemeral$", "orders#ephemeral", True),
    ],
)
def test_a_topic_is_matched_as_go_does(expression: str, topic: str, allowed: bool) -> None:
    assert read_answer(answer(topic=expression)).may_consume(topic, "c") is allowed


def test_text_that_is_no_unicode_is_matched_as_the_replacement_character() -> None:
    given = read_answer(answer(channels=["^\ud800$"]))
    assert given.may_consume("t", "\ufffd")
    assert not given.may_consume("t", "c")


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(["x" * 100_000]).encode(),
        answer(topic="(" * 100_000),
        answer(permissions=["x" * 100_000]),
    ],
)
def test_a_reason_shows_the_beginning_of_a_long_value(data: bytes) -> None:
    with pytest.raises(BadAnswer) as error:
        read_answer(data)
    assert len(str(error.value)) < 600


def test_to_publish_is_asked_with_the_empty_channel() -> None:
    given = read_answer(answer(channels=["^billing$"]))
    assert given.may_consume("t", "billing")
    assert not given.may_publish("t")
    assert read_answer(answer(channels=["^$"])).may_publish("t")


def test_no_channel_is_asked_of_a_subscriber_and_none_makes_it_a_publisher() -> None:
    """An empty channel once meant to publish, so that a publisher could read."""
    publisher = read_answer(answer(permissions=["publish"]))
    assert publisher.may_publish("t")
    assert not publisher.may_read("t")
    assert not publisher.may_consume("t", "")
    assert not publisher.may_consume("t", "c")
    reader = read_answer(answer(topic="^t$", channels=["^c$"], permissions=["subscribe"]))
    assert reader.may_read("t")
    assert reader.may_consume("t", "c")
    assert not reader.may_consume("t", "d")
    assert not reader.may_consume("t", "")
    assert not reader.may_read("other")
    assert not reader.may_publish("t")
    nowhere = read_answer(answer(channels=[], permissions=["subscribe"]))
    assert not nowhere.may_read("t")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (answer(topic="[[:nonsense:]]"), "invalid character class range"),
        (answer(topic="(?=orders)"), "unable to compile topic '.*': invalid perl operator"),
        (answer(topic=r"(a)\1"), "invalid escape sequence"),
        (answer(topic=r"orders\C"), "invalid escape sequence"),
        (answer(topic=r"orders\Z"), "invalid escape sequence"),
        (answer(topic="a{1001}"), "invalid repetition size"),
        (answer(topic=r"(\pL{100}){10}"), "pattern too large"),
        (answer(channels=[".{900}"] * 20), "more than 100000 instructions at channel '.*900}'"),
        (answer(channels=[""] * 100_000), "more than 100000 instructions"),
        (b'{"ttl": 9223372036854775808}', "ttl is above 9223372036854775807"),
        (answer(topic=1), "topic is 1, no text"),
        (answer(channels=["(" * 10_000]), "unable to compile channel"),
        (answer(permissions=["publish", 1]), "unknown permission 1"),
        (b'{"ttl": true}', "ttl is True, no whole number"),
        (b'{"ttl": -1}', r"invalid TTL -1 \(must be >0\)"),
    ],
)
def test_a_bad_answer_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason):
        read_answer(data)


def test_only_so_much_is_remembered() -> None:
    given = read_answer(answer(topic="1$"))
    for number in range(5000):
        assert given.may_publish(f"t{number}") is (number % 10 == 1)
    assert len(given._known) <= 1024
