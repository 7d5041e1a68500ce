"""The arguments of `Admin` and its methods, and its blocking twin."""

from __future__ import annotations

import inspect
import time
from typing import Any
from unittest.mock import Mock

import pytest

from martlet.broker.policy import ChannelPolicy, TopicPolicy
from martlet.client import Admin, Closed, InvalidName
from martlet.client.admin import AdminSettings, NodeStats
from martlet.client.admin.channels import ChannelPolicyChanges
from martlet.client.admin.stats import node_stats
from martlet.client.admin.topics import TopicPolicyChanges
from martlet.client.sync import Admin as BlockingAdmin

ADDRESS = "127.0.0.1:4151"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "say which brokers to ask"),
        ({"nsqd_http_addresses": "a:1", "lookupd_http_addresses": "b:2"}, "say which brokers"),
        ({"nsqd_http_addresses": "a:1", "request_timeout_s": 0}, "request_timeout_s=0"),
        ({"nsqd_http_addresses": "a:1", "operator_token": ""}, "operator_token must be"),
        ({"nsqd_http_addresses": "a:1", "operator_token": "a\nb"}, "operator_token must be"),
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any], why: str) -> None:
    for kind in (Admin, BlockingAdmin):
        with pytest.raises(ValueError, match=why):
            kind(**arguments)


def test_a_misspelt_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="did you mean 'operator_token'"):
        Admin(ADDRESS, operator_tokens="x")  # type: ignore[call-arg]


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(AdminSettings(operator_token="secret"))


@pytest.mark.parametrize("address", ["", " ", "http://", "https:///"])
def test_an_empty_address_is_refused_before_a_request(address: str) -> None:
    for brokers in (address, [ADDRESS, address]):
        with pytest.raises(ValueError, match="is no address: it must be like"):
            Admin(brokers)
    with pytest.raises(ValueError, match="is no address"):
        Admin(lookup=[address])


async def test_wrong_names_are_refused_before_a_request_by_methods_of_their_own() -> None:
    admin = Admin(ADDRESS)
    with pytest.raises(InvalidName, match="'a b' is no name of a topic"):
        await admin.topics.delete("a b")
    with pytest.raises(InvalidName, match="'' is no name of a channel"):
        await admin.channels.empty("t", "")
    with pytest.raises(ValueError, match="say where to"):
        await admin.channels.replay("t", "c", beginning=True, to_offset=1)
    with pytest.raises(ValueError, match="ids is empty"):
        await admin.delayed.cancel("t", [])
    with pytest.raises(ValueError, match="16 hexadecimal digits"):
        await admin.trace.find(b"id")


@pytest.mark.parametrize(
    ("changes", "policy"),
    [(TopicPolicyChanges, TopicPolicy), (ChannelPolicyChanges, ChannelPolicy)],
)
def test_policies_have_the_settings_of_the_broker(
    changes: Any, policy: type[TopicPolicy] | type[ChannelPolicy]
) -> None:
    assert list(changes.__annotations__) == [setting.name for setting in policy.settable()]


def methods(thing: object) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(getattr(thing, name))
        for name in dir(thing)
        if not name.startswith("_")
    }


def test_the_blocking_twin_has_the_same_methods() -> None:
    there, here = Admin(ADDRESS), BlockingAdmin(ADDRESS)
    groups = [name for name in vars(there) if not name.startswith("_")]
    assert groups == [name for name in vars(here) if not name.startswith("_")]
    assert len(groups) == 11
    for name in groups:
        assert methods(getattr(there, name)) == methods(getattr(here, name))


def test_the_blocking_twin_is_used_in_its_block() -> None:
    admin = BlockingAdmin(ADDRESS)
    with pytest.raises(Closed, match="with Admin"):
        admin.topics.list()
    with pytest.raises(Closed, match="with Admin"):
        next(admin.channels.peek_pages("t", "c"))


async def test_counts_are_taken_in_the_middle_of_the_request_whatever_the_wall_clock_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_s, passed_s = 1e9, 100.0
    monkeypatch.setattr(time, "time", lambda: wall_s)
    monkeypatch.setattr(time, "monotonic", lambda: passed_s)

    async def get(*_: object) -> NodeStats:
        nonlocal wall_s, passed_s
        wall_s, passed_s = 2e9, passed_s + 4
        return NodeStats(topics=())

    counted = await node_stats(Mock(get=get), "http://a")
    assert (counted.counted_s, counted.taken_at_s) == (102.0, 2e9 - 2)
