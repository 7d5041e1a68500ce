"""The registry of calls: who may make one, and the former names of arguments."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from martlet.schema.access import CallAccess, CallerClass
from martlet.server.rpc.registry import CallArguments, CallError, CallRegistry


def test_a_call_is_for_operators_by_its_class_however_it_says_so() -> None:
    method: Any = Mock(return_value=None)
    method.access = CallAccess(CallerClass.OPERATORS, "operators, about a channel", "channel")
    calls = CallRegistry(lambda: {"channel.close": method}, Mock())
    with pytest.raises(CallError, match=r"^channel\.close is for operators") as refused:
        calls.begin(Mock(is_operator=False), "channel.close", {"channel": "c"})
    assert refused.value.code == "FORBIDDEN"
    assert not method.called
    calls.begin(Mock(is_operator=True), "channel.close", {"channel": "c"})
    assert method.called


def test_former_names_of_arguments_are_taken_but_not_beside_present_ones() -> None:
    names = {"most": "limit", "limit_ms": "time_limit_ms"}
    arguments = CallArguments({"most": 3, "key": "k"}).renamed(names)
    arguments.only("limit", "key", "time_limit_ms")
    assert arguments.number("limit") == 3
    assert "time_limit_ms" not in arguments
    with pytest.raises(CallError, match="'most' is 'limit' now: give one of them"):
        CallArguments({"most": 3, "limit": 4}).renamed(names)


def test_a_long_name_of_an_unknown_argument_is_cut() -> None:
    with pytest.raises(CallError) as refused:
        CallArguments({"k" * 1000: 1}).only("limit")
    assert str(refused.value) == f"unknown argument '{'k' * 80}'; there are limit"
