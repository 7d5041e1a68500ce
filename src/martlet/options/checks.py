"""Checks of values that several commands have in common; each raises OptionError."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime

from martlet.addresses import Address
from martlet.names import NAME_RULE, is_valid_name
from martlet.options.flag import OptionError
from martlet.text import SECOND_NS, parse_duration

_SECONDS = re.compile(r"\d+(\.\d+)?")


def require_name(flag: str, name: str) -> None:
    """Check the name of a topic or a channel. Raises OptionError."""
    if not is_valid_name(name):
        raise OptionError(f"--{flag}={name} is not valid: {NAME_RULE}")


def require_names(flag: str, names: Iterable[str]) -> None:
    """Check the names of topics or channels. Raises OptionError."""
    for name in names:
        require_name(flag, name)


def require_addresses(flag: str, addresses: Iterable[str]) -> None:
    """Check the addresses of brokers. Raises OptionError, which begins with the flag."""
    for address in addresses:
        try:
            Address.parse(address)
        except ValueError as error:
            raise OptionError(f"{flag}={address}: {error}") from None


def require_action(action: str, actions: Collection[str]) -> None:
    """Check that an action is given, and is one of those there are. Raises OptionError."""
    if action not in actions:
        raise OptionError(unknown_word("action", action, actions))


def unknown_word(kind: str, word: str, words: Collection[str]) -> str:
    """Return an error about the first word of a command, which is unknown or missing."""
    *others, last = words
    listed = f"{', '.join(others)} or {last}"
    if not word:
        return f"name {'an' if kind[0] in 'aeiou' else 'a'} {kind}: {listed}"
    from difflib import get_close_matches  # Here, as a right command line does without.

    near = get_close_matches(word, words, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"name {listed}"
    return f"there is no {kind} {word!r}; {hint}"


def parse_time(flag: str, text: str, now_ns: int) -> int:
    """Read a time, or how long ago it was, in nanoseconds since 1970. Raises OptionError."""
    try:
        if _SECONDS.fullmatch(text):
            return round(float(text) * SECOND_NS)
        with suppress(ValueError):
            return max(0, now_ns - abs(parse_duration(text)))
        return max(0, round(datetime.fromisoformat(text).timestamp() * SECOND_NS))
    except (ValueError, OverflowError):
        raise OptionError(
            f"--{flag}={text} is no time; write 2026-01-31T12:00:00, or how long ago, as 90m"
        ) from None
