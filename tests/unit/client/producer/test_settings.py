"""The settings of a producer: objects, and keywords for each of their fields."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.scripted_broker import ScriptedBroker, silent_at

from martlet.client import (
    ConnectionSettings,
    Limits,
    Producer,
    PublishSettings,
    PublishTimeout,
    sync,
)


async def test_a_keyword_is_in_the_place_of_a_settings_field() -> None:
    connection = ConnectionSettings(connect_timeout_s=2)
    publishing = PublishSettings(timeout_s=20, limits=Limits(max_message_bytes=100))
    async with (
        ScriptedBroker(silent_at("PUB")) as broker,
        Producer(
            broker.address, connection=connection, publishing=publishing, timeout_s=0.3
        ) as producer,
    ):
        with pytest.raises(PublishTimeout, match=r"0\.3 s"):
            await producer.publish("t", b"x")
        assert producer._max_bytes == 100
    assert publishing.timeout_s == 20


@pytest.mark.parametrize("kind", [Producer, sync.Producer])
def test_none_is_the_default_of_each_keyword_but_retries(kind: Any) -> None:
    producer = kind(backoff=None, limits=None, hooks=None, retries=None, send_retries=None)
    inner = getattr(producer, "_model", producer)
    assert inner._limits == Limits()
    assert (inner._publishing.retries, inner._sending.retries) == (None, None)
    assert getattr(kind(), "_model", kind())._sending.retries == 2


@pytest.mark.parametrize(
    ("settings", "error", "why"),
    [
        ({"time_out_s": 1}, TypeError, "no keyword argument 'time_out_s'; did you mean"),
        ({"compression": "zip"}, ValueError, "compression='zip'"),
        ({"send_retries": -1}, ValueError, "send_retries=-1: must be at least 0"),
        ({"check": lambda _: None}, ValueError, "check=... needs group=..."),
        ({"group": "a\nb"}, ValueError, "must have printable characters alone"),
        ({"retries": -1}, ValueError, "retries=-1: must be at least 0"),
        ({"timeout_s": 0}, ValueError, "timeout_s=0 must be above 0"),
        ({"answer_timeout_s": -1}, ValueError, "answer_timeout_s=-1"),
        ({"lookup": []}, ValueError, "no lookup daemon given"),
        ({"lookup": "x", "lookup_poll_s": 0}, ValueError, "lookup_poll_s=0"),
        ({"addresses": []}, ValueError, "no address given"),
    ],
)
def test_settings_that_make_no_sense(
    settings: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        Producer(**settings)
