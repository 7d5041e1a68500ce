"""Checks of settings, and the conversion of keywords to settings.

A producer or consumer takes a few settings objects, and each field of theirs also as a keyword::

    Consumer("orders", "billing", connection=ConnectionSettings(tls=True, connect_timeout_s=2))
    Consumer("orders", "billing", tls=True, connect_timeout_s=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVarTuple

SettingsT = TypeVarTuple("SettingsT")


def check_at_least(name: str, value: float, min_value: float, hint: str = "") -> None:
    """Check a setting with a minimum; the hint names the alternative. Raises ValueError."""
    if not value >= min_value:
        raise ValueError(f"{name}={value}: must be at least {min_value}{hint and f'; {hint}'}")


def check_above_zero(name: str, value: float) -> None:
    """Check a setting that must be above 0. Raises ValueError."""
    if not value > 0:
        raise ValueError(f"{name}={value} must be above 0")


ALIASES = {"lookupd_http_addresses": "lookup"}
"""Names of NSQ's for settings that have another one here."""


def apply_options(
    owner: type, options: Mapping[str, Any], *settings: *SettingsT
) -> tuple[*SettingsT]:
    """Return settings with fields replaced by options of their names; None replaces nothing.

    Args:
        owner: the class that takes them, for the error.
        options: values by the names of fields.
        settings: dataclasses with distinct field names.

    Raises:
        TypeError: an option is not a field of these settings. ValueError: a value is out of its
        limits.
    """
    left = {ALIASES.get(name, name): value for name, value in options.items()}
    applied: list[Any] = []
    all_names: list[str] = []
    group: Any
    for group in settings:
        names = [one.name for one in fields(group)]
        all_names += names
        taken = {name: left.pop(name) for name in names if name in left}
        changes = {name: value for name, value in taken.items() if value is not None}
        applied.append(replace(group, **changes) if changes else group)
    if left:
        name = next(iter(left))
        from difflib import get_close_matches  # Here, as right keywords do without.

        close = get_close_matches(name, all_names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"{owner.__name__}() has no keyword argument {name!r}{hint}")
    return tuple(applied)
