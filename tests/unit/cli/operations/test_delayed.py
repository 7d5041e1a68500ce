"""Wrong options of `martlet delayed`."""

from __future__ import annotations

import pytest

from martlet.cli.operations.delayed import DelayedOptions
from martlet.options.flag import OptionError


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"action": "list"}, "--topic is missing"),
        ({"topic": "t"}, "name an action: list or cancel"),
        ({"action": "forget", "topic": "t"}, "there is no action 'forget'; name list or cancel"),
        ({"action": "cancel", "topic": "t"}, "give --id of those to cancel"),
        (
            {"action": "cancel", "topic": "t", "ids": ("0" * 16,), "all": True},
            "give --id of those to cancel, .*, or --all",
        ),
        ({"action": "list", "topic": "t", "ids": ("xyz",)}, "--id=xyz: an id has 16 hexadecimal"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        DelayedOptions(nsqd_http_addresses=("127.0.0.1:4151",), **fields)  # type: ignore[arg-type]
