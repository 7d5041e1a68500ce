"""Wrong options of `martlet delayed` and `martlet dead-letters`."""

from __future__ import annotations

import pytest

from martlet.cli.admin.dead_letters import DeadLetterOptions
from martlet.cli.admin.delayed import DelayedOptions
from martlet.options.flag import OptionError


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"action": "list"}, "--topic is missing"),
        ({"action": "list", "topic": ""}, "--topic is empty"),
        ({"topic": "t"}, "name an action: list or cancel"),
        ({"action": "forget", "topic": "t"}, "there is no action 'forget'; name list or cancel"),
        ({"action": "cancel", "topic": "t"}, "give --id of those to cancel"),
        (
            {"action": "cancel", "topic": "t", "ids": ("0" * 16,), "all": True},
            "give --id of those to cancel, .*, or --all",
        ),
        ({"action": "cancel", "topic": "t", "ids": ("xyz",)}, "--id=xyz: an id has 16 hexadecimal"),
        ({"action": "cancel", "topic": "t", "ids": ("",)}, "--id=: an id has 16 hexadecimal"),
        ({"action": "list", "topic": "t", "ids": ("xyz",)}, "--id=xyz: an id has 16 hexadecimal"),
        ({"action": "list", "topic": "a b"}, "--topic=a b is not valid: 1 to 64 of"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        DelayedOptions(nsqd_http_addresses=("127.0.0.1:4151",), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"reason": "reject"}, "--reason=reject: it is one of max_attempts, timeout"),
        ({"ids": ("xyz",)}, "--id=xyz: an id has 16 hexadecimal"),
        ({}, "the selection is missing: add --all"),
        ({"ids": ("",), "all": True}, "--id=: an id has 16 hexadecimal"),
        ({"dead_letter_topic": "d", "topic": "", "all": True}, "--topic is empty"),
        ({"dead_letter_topic": "d", "channel": "", "all": True}, "--channel is empty"),
        ({"dead_letter_topic": "", "all": True}, "--dead-letter-topic is empty"),
        ({"to_topic": "", "all": True}, "--to-topic is empty"),
        ({"reason": "", "all": True}, "--reason is empty"),
        ({"error": "", "since": "1h"}, "--error is empty"),
        ({"since": "", "all": True}, "--since is empty"),
        ({"until": "", "all": True}, "--until is empty"),
    ],
)
def test_which_dead_letters_are_meant_is_no_guess(given: dict[str, object], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        DeadLetterOptions(
            nsqd_http_addresses=("127.0.0.1:4151",),
            action="purge",
            **{"topic": "t", "channel": "c", **given},  # type: ignore[arg-type]
        )
