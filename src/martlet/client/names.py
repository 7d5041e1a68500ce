"""Check names before they are sent, since a broker closes the connection on a wrong one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from martlet.client.errors import InvalidName
from martlet.names import NAME_RULE, is_valid_name
from martlet.properties.model import BadProperties, Properties


@lru_cache(maxsize=4096)
def check_name(name: str, kind: str) -> str:
    """Check the name of a topic or channel (the kind).

    Raises:
        InvalidName: it is invalid.
    """
    if not is_valid_name(name):
        raise InvalidName(f"{name!r} is no name of a {kind}: {NAME_RULE}")
    return name


def check_tags(tags: str | Iterable[str]) -> tuple[str, ...]:
    """Read tags from a list, or from an expression of RocketMQ's: ``a || b``, ``*`` for all.

    Raises:
        BadProperties: one of them is not a valid tag.
    """
    if isinstance(tags, str):
        tags = [] if tags.strip() in ("", "*") else [tag.strip() for tag in tags.split("||")]
    found = tuple(dict.fromkeys(tags))
    for tag in found:
        if not tag:
            raise BadProperties("an empty tag; leave the tags out for all messages")
        Properties(tag=tag).pack()
    return found


def check_filter(text: str) -> str:
    """Check a condition on headers, in SQL; empty for all messages.

    Raises:
        BadFilter: it cannot be read.
    """
    found = text.strip()
    if found:
        from martlet.properties.filter.parser import parse  # Here, as few consumers filter.

        parse(found)
    return found
