"""Where a group is reset: one way on the wire, another for clients and commands."""

from __future__ import annotations

from typing import Any

import pytest

from martlet.schema.groups import ResetGroup, ResetGroupTo
from martlet.schema.read import Refusal, checked, read_request

TG = {"topic": "t", "group": "g"}


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({"to_first": True}, {"to": "first"}),
        ({"to_last": True, "to_first": False}, {"to": "last"}),
        ({"to_time_ms": 0}, {"to": "time", "time_ms": 0}),
        ({"to_offset": 0, "queue": 0}, {"to": "offset", "offset": 0, "queue": 0}),
        ({"to_last": True, "force": True, "dry_run": False}, {"to": "last", "force": True}),
    ],
)
def test_a_client_sends_where_to_as_brokers_know_it(
    parameters: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert checked(ResetGroup, ResetGroupTo("t", "g", **parameters)) == {**TG, **fields}


@pytest.mark.parametrize(
    "parameters",
    [{}, {"to_first": False}, {"to_time_ms": None}, {"to_first": True, "to_offset": 0}],
)
def test_a_reset_goes_to_exactly_one_place(parameters: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="one of to_first, to_last, to_time_ms and to_offset"):
        ResetGroupTo("t", "g", **parameters)


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({}, "MISSING_ARGUMENT", "the argument to is missing"),
        ({"to": "time"}, "MISSING_ARGUMENT", "the argument time_ms is missing"),
        ({"to": "offset", "time_ms": 1}, "MISSING_ARGUMENT", "the argument offset is missing"),
        ({"to": "FIRST"}, "BAD_ARGUMENT", "to 'FIRST': it is one of first, last, time, offset"),
        ({"to": "first", "queue": None}, "BAD_ARGUMENT", "queue is empty: leave it out"),
        ({"to": "first", "force": 1, "dry_run": True}, "BAD_ARGUMENT", "force must be true or"),
        ({"to": "first", "offset": -1}, "BAD_ARGUMENT", "offset must be a whole number from 0"),
        ({"to": "first", "group": ""}, "BAD_NAME", "group is empty"),
    ],
)
def test_a_wrong_field_is_refused_though_it_has_no_effect(
    fields: dict[str, Any], code: str, why: str
) -> None:
    with pytest.raises(Refusal, match=why) as refusal:
        read_request(ResetGroup, {**TG, **fields})
    assert refusal.value.code == code
