"""JSON as Go's encoder writes it, for answers that stand in for those of NSQ's servers."""

from __future__ import annotations

import json

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_ESCAPED = {letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}
"""Letters that mean something in HTML and JavaScript."""


def go_json(value: object) -> str:
    """Return a value as JSON: compact, in UTF-8, and harmless in a page; half of a surrogate pair
    becomes U+FFFD.
    """
    text = _encode(value)
    for letter, escaped in _ESCAPED.items():
        text = text.replace(letter, escaped)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
