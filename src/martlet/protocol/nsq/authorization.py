r"""Authorization: the permissions of a client, as an auth server answers them in JSON::

    {"ttl": 3600, "identity": "anna", "identity_url": "https://...",
     "authorizations": [{"topic": "orders.*", "channels": [".*"],
                         "permissions": ["subscribe", "publish"]}]}

Names are regular expressions, which match anywhere in a name unless they are anchored.  Publishing
is checked with the empty channel, so an authorization to publish needs a channel expression that
matches it.  All this is as in nsqd. An answer that nsqd refuses is refused here too, and the client
is then denied as if the server did not answer.

The expressions are written for Go.  Go's syntax that differs from Python's in this use, POSIX
classes and ``\z``, is translated; any other syntax unknown to Python is refused.
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
    """The auth server's answer is invalid; the text says why."""


@dataclass(frozen=True)
class Authorization:
    """The permissions for some topics and channels."""

    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]
    permissions: tuple[str, ...]

    def allows(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to the channel or, where it is empty, publish."""
        return (
            ("subscribe" if channel else "publish") in self.permissions
            and self.topic.search(topic) is not None
            and any(each.search(channel) for each in self.channels)
        )


@dataclass
class Authorizations:
    """The permissions of a client, and how long they are valid."""

    ttl_s: int
    identity: str
    identity_url: str
    rules: tuple[Authorization, ...]
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def allow(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to the channel or, where it is empty, publish."""
        known = self._known.get((topic, channel))
        if known is None:
            known = any(rule.allows(topic, channel) for rule in self.rules)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[topic, channel] = known
        return known

    def answer(self) -> bytes:
        """Encode the answer to the client's AUTH."""
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
    """Return the fields of an object, whose names may be in any case, as Go reads them."""
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
    """Read a text; half of a surrogate pair in it reads as U+FFFD."""
    value = fields.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadAnswer(f"{name} is {value!r}, no text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
