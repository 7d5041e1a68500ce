r"""Authorization: what an auth server allows a client, as it answers in JSON::

    {"ttl": 3600, "identity": "anna", "identity_url": "https://...",
     "authorizations": [{"topic": "orders.*", "channels": [".*"],
                         "permissions": ["subscribe", "publish"]}]}

Names are regular expressions, which match anywhere in a name unless they are anchored.  To publish
is asked with the empty channel, so an authorization to publish needs a channel expression that
matches it.  All that as nsqd has it; what it refuses in an answer is refused here, and then the
client is let in no more than when the server does not answer.

The expressions are written for Go.  What it writes otherwise than Python in this use, POSIX classes
and ``\z``, is translated; anything else that Python does not know is refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

PERMISSIONS = ("subscribe", "publish")
_MAX_KNOWN = 1024
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_GO = re.compile(r"\\(?P<escaped>.)|\[:(?P<name>\w+):\]", re.DOTALL)


class BadAnswer(Exception):
    """The auth server's answer is none; the text says why."""


@dataclass(frozen=True)
class Authorization:
    """What may be done with some topics and channels."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: tuple[str, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether one may subscribe to the channel or, where it is empty, publish."""
        return (
            ("subscribe" if channel else "publish") in self.permissions
            and self.topic.search(topic) is not None
            and any(each.search(channel) for each in self.channels)
        )


@dataclass
class Authorizations:
    """What a client is allowed, and for how long."""

    ttl_s: int
    identity: str
    identity_url: str
    rules: tuple[Authorization, ...]
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def allow(self, topic: str, channel: str) -> bool:
        """Whether one may subscribe to the channel or, where it is empty, publish."""
        known = self._known.get((topic, channel))
        if known is None:
            known = any(rule.allows(topic, channel) for rule in self.rules)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[topic, channel] = known
        return known

    def answer(self) -> bytes:
        """The answer to the client."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": len(self.rules),
        }
        text = json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
        for letter in "<>&\u2028\u2029":  # as Go writes them
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        return text.encode()


def read_answer(data: bytes) -> Authorizations:
    """Read an auth server's answer. Raises BadAnswer."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"no JSON: {error}") from None
    fields = {} if value is None else _fields(value, "the answer")
    rules = tuple(map(_rule, _list(fields, "authorizations")))
    ttl_s = fields.get("ttl") or 0
    if type(ttl_s) is not int:
        raise BadAnswer(f"ttl is {ttl_s!r}, no whole number")
    if ttl_s <= 0:
        raise BadAnswer(f"invalid TTL {ttl_s} (must be >0)")
    return Authorizations(ttl_s, _text(fields, "identity"), _text(fields, "identity_url"), rules)


def _rule(value: object) -> Authorization:
    fields = _fields(value, "an authorization")
    permissions = tuple(_list(fields, "permissions"))
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise BadAnswer(f"unknown permission {permission}")
    topic = _compiled("topic", _text(fields, "topic"))
    channels = tuple(_compiled("channel", each) for each in _list(fields, "channels"))
    return Authorization(topic, channels, tuple(map(str, permissions)))


def _compiled(what: str, text: object) -> re.Pattern[str]:
    if not isinstance(text, str):
        raise BadAnswer(f"{what} is {text!r}, no text")
    try:
        return re.compile(_GO.sub(_translated, text), re.ASCII)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadAnswer(f'unable to compile {what} "{text}" {error}') from None


def _translated(match: re.Match[str]) -> str:
    if match["escaped"]:
        return r"\Z" if match["escaped"] == "z" else match[0]
    if match["name"] not in _CLASSES:
        raise re.error(f"invalid character class range: {match[0]}")
    return _CLASSES[match["name"]]


def _fields(value: object, what: str) -> dict[str, object]:
    """An object's fields, whose names may be in any case, as Go reads them."""
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} is {value!r}, no JSON object")
    return {str(name).lower(): each for name, each in value.items()}


def _list(fields: dict[str, object], name: str) -> list[object]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAnswer(f"{name} is {value!r}, no list")
    return value


def _text(fields: dict[str, object], name: str) -> str:
    """A text; half of a surrogate pair in it is no character, and reads as U+FFFD."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer(f"{name} is {value!r}, no text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
