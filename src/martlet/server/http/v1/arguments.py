"""Requests of the HTTP API, checked: their JSON, and the numbers in their queries."""

from __future__ import annotations

import json
from collections.abc import Collection

from martlet.names import NAME_RULE, is_valid_name
from martlet.server.http.access import names_in
from martlet.server.http.request import HttpError, Request
from martlet.server.rpc.registry import CallError

_MAX_SHOWN = 40


def valid_names(request: Request) -> list[str]:
    """Return the topic and, if there is one, the channel that a path names. Raises HttpError."""
    names = names_in(request.path)
    for what, name in zip(("topic", "channel"), names, strict=False):
        if not is_valid_name(name):
            raise HttpError(
                400,
                f"BAD_NAME: {what} {name[:80]!a} is not a valid name: {NAME_RULE}",
            )
    return names


def only_arguments(request: Request, names: Collection[str]) -> None:
    """Refuse other arguments in the query, which would have no effect. Raises HttpError."""
    unknown = sorted(set(request.query) - set(names))
    if unknown:
        there = ", ".join(names) or "none"
        raise HttpError(
            400, f"BAD_ARGUMENT: unknown argument {unknown[0][:_MAX_SHOWN]!a}; there are: {there}"
        )


def whole_number(request: Request, name: str, default: int, limits: tuple[int, int]) -> int:
    """Return a whole number of the query within limits. Raises HttpError."""
    text = request.query.get(name)
    if text is None:
        return default
    least, greatest = limits
    if text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= greatest:
        return int(text)
    raise HttpError(
        400,
        f"BAD_ARGUMENT: {name!r} must be a whole number from {least} to {greatest},"
        f" not {text[:_MAX_SHOWN]!a}",
    )


def flag(request: Request, name: str, default: bool) -> bool:
    """Return true or false of the query. Raises HttpError."""
    text = request.query.get(name)
    if text not in (None, "true", "false"):
        raise HttpError(
            400, f"BAD_ARGUMENT: {name!r} must be true or false, not {text[:_MAX_SHOWN]!a}"
        )
    return default if text is None else text == "true"


def seconds(value: object, name: str, limits: tuple[float, float], flag: str = "") -> float:
    """Return a number of seconds within limits, given as a number or as text. Raises HttpError.

    Args:
        limits: the least and the greatest.
        flag: the broker's flag for the greatest, if there is one.
    """
    least, greatest = limits
    try:
        number = float(value) if isinstance(value, str | int | float) else -1.0
        is_number = not isinstance(value, bool) and (not isinstance(value, str) or value.isascii())
    except (ValueError, OverflowError):
        number, is_number = -1.0, False
    if is_number and least <= number <= greatest:
        return number
    limit = f"{greatest:g} ({flag})" if flag else f"{greatest:g}"
    shown = str(value)[:_MAX_SHOWN] if isinstance(value, str | int | float) else "no number"
    raise HttpError(
        400,
        f"BAD_ARGUMENT: {name!r} must be a number of seconds from {least:g} to {limit},"
        f" not {shown!r}",
    )


def media_type(request: Request) -> str:
    """Return the type of a request's body, without its parameters; empty if it is not given."""
    types = request.headers("Content-Type")
    return types[0].partition(";")[0].strip().lower() if types else ""


def require_media_type(request: Request, *types: str) -> str:
    """Return the type of a request's body, which must be one of some. Raises HttpError."""
    kind = media_type(request)
    if kind not in types:
        raise HttpError(
            415,
            f"MEDIA_TYPE: the body must be {' or '.join(types)}, not"
            f" {kind[:_MAX_SHOWN] or 'of unknown type'!r}: send the header Content-Type",
        )
    return kind


def json_fields(data: bytes, what: str) -> dict[str, object]:
    """Return the fields of a JSON object; null is refused, since it may be a mistake. Raises
    HttpError.

    Args:
        what: names the object in errors.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = str(error)[:80]
        if why.startswith("Extra data"):
            why += "; several objects are sent as application/x-ndjson, one in each line"
        raise HttpError(400, f"INVALID_JSON: {what} is not valid: {why}") from None
    if not isinstance(fields, dict):
        hint = "; several are sent as application/x-ndjson, an object in each line"
        raise HttpError(
            400, f"INVALID_JSON: {what} must be a JSON object, not {_json_kind(fields)}{hint}"
        )
    for name, value in fields.items():
        if value is None:
            raise HttpError(
                400, f"BAD_ARGUMENT: {name[:_MAX_SHOWN]!a} of {what} is null: leave it out"
            )
    return fields


def refusal(error: CallError, what: str) -> HttpError:
    """Return the answer to a request with a wrong argument."""
    return HttpError(400, f"BAD_ARGUMENT: {what}: {error}")


def _json_kind(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
