"""Policies of topics and channels, set and shown from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from martlet.broker.policy import BadPolicy, ChannelPolicy, TopicPolicy, read_words
from martlet.cli.main import main
from martlet.cli.operations.configure import _shown
from martlet.testing import BrokerProcess


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c"):
            with urlopen(Request(f"http://{process.http_address}{path}", method="POST")):
                pass
        yield process


def test_policies_are_set_shown_and_taken_back_and_survive_a_kill(
    broker: BrokerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    where = f"--address={broker.http_address}"

    def said(*arguments: str, code: int = 0) -> str:
        got: object
        try:
            got = main(arguments)
        except SystemExit as ended:
            got = ended.code
        out, error = capfd.readouterr()
        assert got == code, error
        return error if code else out

    topic, channel = ("topic", "configure", "t"), ("channel", "configure", "t", "c")
    assert "topic t: nothing is set" in said(*topic, where)
    output = said(*topic, "retention-ms=72h", "retention_bytes=10GiB", "trace=on", where)
    assert "topic t: retention_ms=259200000, retention_bytes=10737418240, trace=on" in output
    output = said(*channel, "max_attempts=5", "retry_delays_ms=1s,1m,1000", where)
    assert "channel t/c: max_attempts=5, retry_delays_ms=1000,60000,1000" in output
    broker.kill()
    broker.start()
    output = said(*topic, "retention_ms=default", where)
    assert "topic t: retention_bytes=10737418240, trace=on" in output
    assert "retry_delays_ms=1000,60000,1000" in said(*channel, where)

    assert "there is no setting 'retension'" in said(*topic, "retension=1", where, code=2)
    assert "trace must be one of default, on, off" in said(*topic, "trace=yes", where, code=2)
    assert "has the unknown unit 'd'" in said(*topic, "retention_ms=3d", where, code=2)
    assert "the topic is missing" in said("topic", "configure", where, code=2)
    assert "there is no topic 'x'" in said("topic", "configure", "x", where, code=1)
    way_out = f"to create it: martlet channel create t x {where}\n"
    assert way_out in said("channel", "configure", "t", "x", where, code=1)
    way_out = f"to create it: martlet topic create y {where}\n"
    assert way_out in said("channel", "configure", "y", "x", where, code=1)
    assert "write NAME=VALUE, such as lock_ms=default" in said(*channel, "lock_ms", where, code=2)
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
