"""Check names before they are sent, since a broker closes the connection on a wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from martlet.client.errors import InvalidName
from martlet.names import NAME_RULE, is_valid_name
from martlet.properties.model import BadProperties, Properties

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_BODY = re.compile(r"\bbody\b", re.IGNORECASE)


@lru_cache(maxsize=4096)
def check_name(name: str, kind: str) -> str:
    """Check the name of a topic or channel (the kind). Raises InvalidName: it is invalid."""
    if not is_valid_name(name):
        raise InvalidName(f"{name!r} is no name of a {kind}: {NAME_RULE}")
    return name


def check_tags(tags: str | Iterable[str]) -> tuple[str, ...]:
    """Read tags from a list, or from an expression of RocketMQ's: ``a || b``, ``*`` for all. Raises
    BadProperties: one of them is not a valid tag.
    """
    if isinstance(tags, str):
        tags = [] if tags.strip() in ("", "*") else [tag.strip() for tag in tags.split("||")]
    distinct = tuple(dict.fromkeys(tags))
    for tag in distinct:
        if not tag:
            raise BadProperties("an empty tag; leave the tags out for all messages")
        Properties(tag=tag).pack()
    return distinct


def check_filter(text: str) -> str:
    """Check a condition on headers, in SQL.

    Raises:
        BadFilter: it cannot be read.
        ValueError: it is empty, or names the body, which no filter sees.
    """
    condition = text.strip()
    if not condition:
        raise ValueError(f"filter={text!r} is empty: leave it out for all messages")
    from martlet.properties.filter.parser import parse  # Here, as few consumers filter.

    parse(condition)
    if _BODY.search(_QUOTED.sub("", condition)):
        raise ValueError(
            f"filter={text!r}: a filter sees tag, keys and headers, and not the body; set what it"
            ' compares as a header of the message (a header named body is written "body")'
        )
    return condition
