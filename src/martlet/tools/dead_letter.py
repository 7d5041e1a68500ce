"""The dead letter, as it is read again: a line of JSON that a broker wrote when it made room."""

from __future__ import annotations

import json
from binascii import a2b_base64

from martlet.client.errors import ClientError


def body_of(line: bytes) -> bytes:
    """The body of the message that a line tells. Raises ClientError where it is no such line."""
    try:
        return a2b_base64(json.loads(line)["body_base64"], strict_mode=True)
    except (ValueError, KeyError, TypeError) as error:
        raise ClientError(f"{line[:60]!r} is no line of dead letters: {error}") from None
