"""Options as they were given to a query, by name: read, and refused in words that name them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from martlet.spark.brokers.addresses import SparkTls

T = TypeVar("T")
TLS_NAMES = ("tlsCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify")


def known(given: Mapping[str, str], names: Sequence[str], who: str) -> dict[str, str]:
    """Options by their names as they are spelled in `names`; they may be given in any case.

    Raises:
        ValueError: `who` knows no such option.
    """
    spelled = {name.lower(): name for name in names}
    options: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in spelled:
            near = difflib.get_close_matches(name.lower(), spelled, 1)
            hint = f"did you mean {spelled[near[0]]}? " if near else ""
            raise ValueError(f"unknown option {name!r}: {hint}{who} knows {', '.join(names)}")
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
    """A whole number within limits; with another `parse` than int, a size. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    try:
        found = parse(text)
    except ValueError as error:
        what = "a whole number" if parse is int else "a size such as 1048576 or 64MiB"
        raise ValueError(f"option {name}: {text!r} is not {what}") from error
    if not min_value <= found <= max_value:
        raise ValueError(f"option {name}: {found} is not between {min_value} and {max_value}")
    return found


def boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    """True or false. Raises ValueError."""
    text = options.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(f"option {name}: {text!r} is neither true nor false")
    return word == "true"


def tls(options: Mapping[str, str]) -> SparkTls:
    """How brokers are spoken to that take TLS. Raises ValueError."""
    return SparkTls.parse(
        options.get("tlsCaFile", ""),
        options.get("tlsCertFile", ""),
        options.get("tlsKeyFile", ""),
        verify=boolean(options, "tlsVerify", True),
    )
