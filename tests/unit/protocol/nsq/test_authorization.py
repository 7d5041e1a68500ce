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
        ("#ephemeral$", "orders#ephemeral", True),
    ],
)
def test_a_topic_is_matched_as_go_does(expression: str, topic: str, allowed: bool) -> None:
    assert read_answer(answer(topic=expression)).allow(topic, "c") is allowed


def test_to_publish_is_asked_with_the_empty_channel() -> None:
    given = read_answer(answer(channels=["^billing$"]))
    assert given.allow("t", "billing")
    assert not given.allow("t", "")
    assert read_answer(answer(channels=["^$"])).allow("t", "")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (answer(topic="[[:nonsense:]]"), "invalid character class range"),
        (answer(topic=r"\Qorders\E"), "unable to compile topic"),
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
        assert given.allow(f"t{number}", "") is (number % 10 == 1)
    assert len(given._known) <= 1024
