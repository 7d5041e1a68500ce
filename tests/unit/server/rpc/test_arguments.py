"""Former names of a call's arguments."""

import pytest

from martlet.server.rpc.arguments import CallArguments, CallError


def test_former_names_are_taken() -> None:
    arguments = CallArguments({"most": 3, "key": "k"}).renamed(
        {"most": "limit", "limit_ms": "time_limit_ms"}
    )
    arguments.only("limit", "key", "time_limit_ms")
    assert arguments.number("limit") == 3
    assert "time_limit_ms" not in arguments


def test_both_names_at_once_are_refused() -> None:
    with pytest.raises(CallError, match="'most' is 'limit' now: give one of them"):
        CallArguments({"most": 3, "limit": 4}).renamed({"most": "limit"})
