"""The JSON filter: which messages pass, and what of them.

What is no JSON object does not pass, nor one without the required field.  A required value is a
text, or a number however it is written (``1``, ``1.0``, ``1e0``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn


class JsonFilter:
    """A filter.

    Args:
        field: must be there; empty for none.
        value: and have this value; empty for any.
        fields: what passes of an object; all of it where there are none.
    """

    def __init__(self, field: str = "", value: str = "", fields: Sequence[str] = ()) -> None:
        self._field = field
        self._value = value
        self._fields = fields
        self._number = _number(value)

    def passes(self, body: bytes) -> bytes | None:
        """What passes of a message; None where nothing does.

        Raises:
            ValueError: it is no JSON object.
        """
        found = _read(body)
        if self._field and not (self._field in found and self._fits(found[self._field])):
            return None
        if not self._fields:
            return body
        left = {field: _plain(found[field]) for field in self._fields if field in found}
        return json.dumps(left, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    def _fits(self, value: object) -> bool:
        if not self._value or value == self._value:
            return True
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and value == self._number


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if found is None:  # nsq_to_nsq takes it for an object without fields
        return {}
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return found


def _plain(value: object) -> object:
    """A value as nsq_to_nsq writes it: a whole number without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
