"""Policies as people write them: ``retention_ms=72h``, ``retry_delays_ms=1000,5000``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from martlet.broker.policy import BadPolicy, Policy
from martlet.text import MILLISECOND_NS, parse_duration, parse_size


def read(policy: Policy, words: Sequence[str]) -> dict[str, object]:
    """Read the fields that words such as ``retention_ms=72h`` set. Raises BadPolicy."""
    known = {each.name: each.metadata for each in policy.settable()}
    changes: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise BadPolicy(f"there is no setting {name!r}; the settings are {', '.join(known)}")
        changes[name] = None if text == "default" else _value(name, text, known[name])
    policy.changed(changes)  # Their limits.
    return changes


def _value(name: str, text: str, limits: Mapping[str, Any]) -> object:
    if "choices" in limits or limits.get("is_name") or limits.get("is_filter"):
        return text
    if text.startswith("["):
        return _listed(name, text)
    pieces = [each.strip() for each in text.replace("||", ",").split(",")] if text else []
    if limits.get("is_tags"):
        return pieces
    if "count" in limits:
        return [_number(name, piece) for piece in pieces]
    return _number(name, text)


def _listed(name: str, text: str) -> list[object]:
    """Refuse a list in JSON, whose brackets would become part of the words."""
    try:
        values: list[object] = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPolicy(f"{name}={text}: write a list with commas, as a,b") from None
    return values


def _number(name: str, text: str) -> int:
    """Read a whole number or, depending on the name, a duration such as 72h or a size."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        if name.endswith("_ms"):
            return parse_duration(text) // MILLISECOND_NS
        if name.endswith("_bytes"):
            return parse_size(text)
    except ValueError as error:
        raise BadPolicy(f"{name}={text}: {error}") from None
    raise BadPolicy(f"{name}={text}: it must be a whole number")


def written(value: object) -> str:
    """Format a value as a user types it."""
    if not isinstance(value, list):
        return str(value)
    texts = [str(each) for each in value]
    return json.dumps(value) if any("," in each for each in texts) else ",".join(texts)
