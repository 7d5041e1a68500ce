"""Parse option values of a query, with errors that name the option."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from martlet.reader.brokers.addresses import SparkTls

T = TypeVar("T")
TLS_NAMES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify")


def spelled_options(raw: Mapping[str, str], names: Sequence[str], user: str) -> dict[str, str]:
    """Spell options, whose names may be of any case, as in `names`. Raises ValueError."""
    spelled = {name.lower(): name for name in names}
    if "lookup" in spelled:
        spelled["lookupaddresses"] = "lookup"  # Its name in versions before 0.2.
    options: dict[str, str] = {}
    for name, value in raw.items():
        if name.lower() not in spelled:
            near = difflib.get_close_matches(name.lower(), spelled, 1)
            hint = f"did you mean {spelled[near[0]]}? " if near else ""
            raise ValueError(f"unknown option {name!r}: {hint}{user} knows {', '.join(names)}")
        options[spelled[name.lower()]] = value
    return options


def number(
    options: Mapping[str, str],
    name: str,
    default: T,
    min_value: int,
    max_value: int,
    parse: Callable[[str], int] = int,
) -> int | T:
    """Parse an integer within limits, or a size if `parse` is not int. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    try:
        value = parse(text)
    except ValueError as error:
        form = "a whole number" if parse is int else "a size such as 1048576 or 64MiB"
        raise ValueError(f"option {name}: {text!r} is not {form}") from error
    if not min_value <= value <= max_value:
        raise ValueError(f"option {name}: {value} is not between {min_value} and {max_value}")
    return value


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """Parse true or false. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"option {name}: {text!r} is neither true nor false")
    return word == "true"


def tls(options: Mapping[str, str]) -> SparkTls:
    """Parse the TLS options. Raises ValueError."""
    return SparkTls.parse(
        options.get("tlsCaFile", ""),
        options.get("tlsCertFile", ""),
        options.get("tlsKeyFile", ""),
        verify=boolean(options, "tlsVerify", True),
    )
