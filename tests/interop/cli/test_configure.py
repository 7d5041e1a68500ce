"""Policies of topics and channels, set and shown from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.interop.cli.tools import Tool, create

from martlet.broker.policy import BadPolicy, ChannelPolicy, TopicPolicy, read_words
from martlet.cli.operations.configure import _shown
from martlet.testing import BrokerProcess


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        create(process, "t")
        yield process


def test_policies_are_set_shown_and_taken_back_and_survive_a_kill(
    broker: BrokerProcess, at_broker: Tool
) -> None:
    def said(*arguments: str) -> str:
        done = at_broker(*arguments)
        assert done.code == 0, done.err
        return done.out

    topic, channel = ("topic", "configure", "t"), ("channel", "configure", "t", "c")
    assert "topic t: nothing is set" in said(*topic)
    output = said(*topic, "retention-ms=72h", "retention_bytes=10GiB", "trace=on")
    assert "topic t: retention_ms=259200000, retention_bytes=10737418240, trace=on" in output
    output = said(*channel, "max_attempts=5", "retry_delays_ms=1s,1m,1000")
    assert "channel t/c: max_attempts=5, retry_delays_ms=1000,60000,1000" in output
    broker.kill()
    broker.start()
    output = said(*topic, "retention_ms=default")
    assert "topic t: retention_bytes=10737418240, trace=on" in output
    assert "retry_delays_ms=1000,60000,1000" in said(*channel)
    assert "martlet channel configure TOPIC CHANNEL" in said("channel", "--help")


def test_words_are_read_as_the_policy_has_them() -> None:
    words = ["retry_delays_ms=", "dead_letter_topic=lost", "tags=red,blue", "order=key"]
    assert read_words(ChannelPolicy(), words) == {
        "retry_delays_ms": [],
        "dead_letter_topic": "lost",
        "tags": ["red", "blue"],
        "order": "key",
    }
    # However a list is written, it is the same, and the shown text can be typed again.
    for word in ("tags=red || blue", 'tags=["red", "blue"]', "tags=red, blue"):
        assert read_words(ChannelPolicy(), [word]) == {"tags": ["red", "blue"]}
    assert read_words(ChannelPolicy(), ["retry_delays_ms=[1000, 5000]"]) == {
        "retry_delays_ms": [1000, 5000]
    }
    assert read_words(ChannelPolicy(), ['tags=["a,b"]']) == {"tags": ["a,b"]}
    assert _shown({"tags": ["red", "blue"], "lock_ms": 5}) == "tags=red,blue, lock_ms=5"
    assert _shown({"tags": ["a,b"]}) == 'tags=["a,b"]'
    with pytest.raises(BadPolicy, match="write a list"):
        read_words(ChannelPolicy(), ['tags=["red", blue]'])
    assert read_words(TopicPolicy(), ["retention_ms=1500ms", "trace=default"]) == {
        "retention_ms": 1500,
        "trace": None,
    }
    for word in ("max_attempts=many", "lock_ms=1x", "retention_bytes=1"):
        with pytest.raises(BadPolicy, match=word.partition("=")[0]):
            read_words(ChannelPolicy(), [word])
    assert json.dumps(TopicPolicy().to_json()) == "{}"
