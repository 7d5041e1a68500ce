"""The registry of calls: who may make one."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from martlet.schema.access import CallAccess, CallerClass
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.registry import CallRegistry


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
