"""What schemathesis has to know of the HTTP API: how NDJSON is written, and that time is short."""

from __future__ import annotations

import json
from typing import Any

import schemathesis

_MAX_WAIT_S = 0.02


@schemathesis.hook
def before_call(context: Any, case: Any, **_: Any) -> None:
    """Shorten long polls, which nobody ends."""
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and not isinstance(wait, bool) and _MAX_WAIT_S < wait <= 60:
        case.query["wait"] = _MAX_WAIT_S


@schemathesis.serializer("application/x-ndjson")
def write_lines(context: Any, value: Any) -> bytes:
    """Write a message as the only line."""
    return json.dumps(value).encode()


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Take a channel that is there, for all names but those of a negative test."""
    valid = isinstance(path_parameters, dict) and all(
        isinstance(name, str) and name.isalnum() and name.isascii() and len(name) <= 64
        for name in path_parameters.values()
    )
    return dict.fromkeys(path_parameters, "there") if valid else path_parameters
