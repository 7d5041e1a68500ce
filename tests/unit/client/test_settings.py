"""Settings: as objects, as keywords, and refusals."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

import pytest

from martlet.client import (
    Backoff,
    BroadcastConsumer,
    ConnectionSettings,
    Consumer,
    DeliverySettings,
    FlowLimits,
    HandlerSettings,
    Identity,
    MembershipSettings,
    ProgressSettings,
    PullConsumer,
    Rotation,
)
from martlet.client import sync as blocking
from martlet.client.consumer.settings import ConsumerOptions
from martlet.client.group.settings import MemberOptions, PullOptions
from martlet.client.keywords import apply_options
from martlet.client.settings import ConnectionOptions


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (ConnectionOptions, [ConnectionSettings]),
        (ConsumerOptions, [ConnectionSettings, DeliverySettings, HandlerSettings]),
        (PullOptions, [ConnectionSettings, ProgressSettings, FlowLimits, HandlerSettings]),
        (
            MemberOptions,
            [ConnectionSettings, MembershipSettings, ProgressSettings, FlowLimits, HandlerSettings],
        ),
    ],
)
def test_each_field_is_a_keyword_and_no_field_is_in_two_settings(
    options: Any, settings: list[Any]
) -> None:
    names = [field.name for settings_object in settings for field in fields(settings_object)]
    assert sorted(options.__annotations__) == sorted(names)


def test_a_keyword_replaces_its_field_and_none_leaves_it() -> None:
    options = {"tls": True, "max_in_flight": 5, "identity": None, "rotation": None}
    rotation = Rotation(low_rdy_timeout_s=7)
    connection, delivery = apply_options(
        Consumer,
        options,
        ConnectionSettings(connect_timeout_s=2, identity=Identity(client_id="me")),
        DeliverySettings(rotation=rotation, tags="red || blue"),
    )
    assert connection.tls is True
    assert connection.connect_timeout_s == 2
    assert connection.secured_identity == Identity(client_id="me", tls=True)
    assert delivery == DeliverySettings(max_in_flight=5, rotation=rotation, tags=["red", "blue"])
    assert delivery.policy == {"tags": ["red", "blue"]}


async def test_consumers_take_settings_and_keywords() -> None:
    consumer = Consumer(
        "t", "c", delivery=DeliverySettings(max_in_flight=7), handling=HandlerSettings(retry=None)
    )
    assert consumer.max_in_flight == 7
    assert Consumer("t", "c", max_in_flight=8, backoff=None).max_in_flight == 8
    pull = PullConsumer("t", "g", limits=FlowLimits(max_messages=3), max_bytes=9)
    assert (pull._settings.limits.max_messages, pull._settings.limits.max_bytes) == (3, 9)
    each = BroadcastConsumer("t", offsets=None, retry=Backoff(), auto_commit=False)
    assert not each._settings.auto_commit
    assert blocking.Consumer("t", "c", max_in_flight=6)._model.max_in_flight == 6


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: Consumer("t", "c", max_in_flight=0),
            ValueError,
            "max_in_flight=0: must be at least 1",
        ),
        (lambda: Consumer("t", "c", order="up"), ValueError, "order='up' must be 'key' or 'queue'"),  # type: ignore[arg-type]
        (lambda: Consumer("t", "c", stall_after_s=-1), ValueError, "stall_after_s=-1: must be"),
        (lambda: Consumer("t", "c", max_attempts=-1), ValueError, "max_attempts=-1: must be"),
        (lambda: Consumer("t", "c", max_attempts=70_000), ValueError, "max_attempts=70000 must be"),
        (lambda: Consumer("t", "c", connect_timeout_s=0), ValueError, "timeout_s=0 must be above"),
        (lambda: Consumer("t", "c", close_timeout_s=-1), ValueError, "close_timeout_s=-1: must"),
        (lambda: Consumer("t", "c", lookup="a", lookup_poll_s=0), ValueError, "lookup_poll_s=0"),
        (lambda: Consumer("t", ""), ValueError, "'' is no name of a channel"),
        (lambda: PullConsumer("t", ""), ValueError, "'' is no name of a channel"),
        (lambda: PullConsumer("t", "g", start=datetime.now()), ValueError, "time zone"),
        (lambda: PullConsumer("t", "g", start=-1), ValueError, "must be at least 0"),
        (
            lambda: PullConsumer("t", "g", strategy="by-config"),
            ValueError,
            "by-config needs the qu",
        ),
        (lambda: PullConsumer("t", "g", queues=[1]), ValueError, "no other strategy takes any"),
        (
            lambda: PullConsumer("t", "g", strategy="by-config", queues=[1], rooms=object()),  # type: ignore[arg-type]
            ValueError,
            "by-config goes by no rooms",
        ),
        (lambda: PullConsumer("t", "g", max_messages=0), ValueError, "max_messages=0"),
        (lambda: PullConsumer("t", "g", fetch_bytes=1 << 30), ValueError, "must be at most"),
        (lambda: PullConsumer("t", "g", leave_timeout_s=-1), ValueError, "leave_timeout_s=-1: mu"),
        (lambda: PullConsumer("t", "g", commit_every_s=-1), ValueError, "commit_every_s=-1: must"),
        (
            lambda: Consumer("t", "c", max_inflight=1),  # type: ignore[call-arg]
            TypeError,
            r"Consumer\(\) has no keyword argument 'max_inflight'; did you mean 'max_in_flight'\?",
        ),
        (
            lambda: blocking.Consumer("t", "c", tag="red"),  # type: ignore[call-arg]
            TypeError,
            r"Consumer\(\) has no keyword argument 'tag'; did you mean 'tags'\?",
        ),
        (
            lambda: BroadcastConsumer("t", offsets=None, lease_s=5),  # type: ignore[call-arg]
            TypeError,
            r"BroadcastConsumer\(\) has no keyword argument 'lease_s'",
        ),
    ],
)
async def test_senseless_settings_are_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("made", [Consumer, PullConsumer])
@pytest.mark.parametrize(
    ("text", "why"),
    [("", "leave it out"), ("  ", "leave it out"), ("body = 'x'", "not the body")],
)
def test_a_filter_that_can_select_nothing_is_refused(
    made: type[Consumer] | type[PullConsumer], text: str, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        made("t", "c", filter=text)
    for fine in ("\"body\" = 'x'", "name = 'body'"):
        made("t", "c", filter=fine)


def test_lookup_daemons_have_one_name_and_that_of_nsq() -> None:
    for keyword in ("lookup", "lookupd_http_addresses"):
        (settings,) = apply_options(Consumer, {keyword: "one:4161"}, ConnectionSettings())
        assert settings.lookup_daemons == ("one:4161",)
