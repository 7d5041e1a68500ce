r"""Authorization: the permissions of a client, as an auth server answers them in JSON::

    {"ttl": 3600, "identity": "anna", "identity_url": "https://...",
     "authorizations": [{"topic": "orders.*", "channels": [".*"],
                         "permissions": ["subscribe", "publish"]}]}

Names are regular expressions, which match anywhere in a name unless they are anchored.  Publishing
is checked with the empty channel, so an authorization to publish needs a channel expression that
matches it.  All this is as in nsqd. An answer that nsqd refuses is refused here too, and the client
is then denied as if the server did not answer.

The expressions are matched as Go does, in linear time (`martlet.names`); together they have at
most `_MAX_INSTRUCTIONS`, since each name that a client thinks up meets all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from martlet.names import BadPattern, Pattern, compile_pattern
from martlet.text import go_json

PERMISSIONS = ("subscribe", "publish")
_MAX_KNOWN = 1024
_MAX_INSTRUCTIONS = 100_000
"""Of all expressions of an answer: these compile, and match one name, within some 100 ms."""
_MAX_SHOWN = 200
_MAX_TTL_S = (1 << 63) - 1


class BadAnswer(Exception):
    """The auth server's answer is invalid; the text says why."""


@dataclass(frozen=True)
class Authorization:
    """The permissions for some topics and channels."""

    topic: Pattern
    channels: tuple[Pattern, ...]
    permissions: tuple[str, ...]

    def allows(self, permission: str, topic: str, channel: str | None) -> bool:
        """Whether it gives a permission for a channel of a topic, or for some channel: None."""
        return (
            permission in self.permissions
            and self.topic.search(topic) is not None
            and any(channel is None or pattern.search(channel) for pattern in self.channels)
        )


@dataclass
class Authorizations:
    """The permissions of a client, and how long they are valid."""

    ttl_s: int
    identity: str
    identity_url: str
    rules: tuple[Authorization, ...]
    _known: dict[tuple[str, str, str | None], bool] = field(default_factory=dict)

    def may_publish(self, topic: str) -> bool:
        """Whether the client may publish to a topic. nsqd matches the empty channel for it."""
        return self._allows("publish", topic, "")

    def may_consume(self, topic: str, channel: str) -> bool:
        """Whether the client may subscribe to a channel."""
        return self._allows("subscribe", topic, channel)

    def may_read(self, topic: str) -> bool:
        """Whether the client may subscribe to some channel of a topic, and so read the topic."""
        return self._allows("subscribe", topic, None)

    def _allows(self, permission: str, topic: str, channel: str | None) -> bool:
        key = permission, topic, channel
        allowed = self._known.get(key)
        if allowed is None:
            allowed = any(rule.allows(*key) for rule in self.rules)
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[key] = allowed
        return allowed

    def answer(self) -> bytes:
        """Encode the answer to the client's AUTH."""
        answer = {
            "identity": self.identity,
            "identity_url": self.identity_url,
            "permission_count": len(self.rules),
        }
        return go_json(answer).encode()


def read_answer(data: bytes) -> Authorizations:
    """Read an auth server's answer. Raises BadAnswer."""
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BadAnswer(f"no JSON: {error}") from None
    fields = {} if value is None else _fields(value, "the answer")
    expressions = _Expressions()
    rules = tuple(_rule(rule, expressions) for rule in _list(fields, "authorizations"))
    ttl_s = fields.get("ttl") or 0
    if type(ttl_s) is not int:
        raise BadAnswer(f"ttl is {_shown(ttl_s)}, no whole number")
    if ttl_s > _MAX_TTL_S:
        raise BadAnswer(f"ttl is above {_MAX_TTL_S}")
    if ttl_s <= 0:
        raise BadAnswer(f"invalid TTL {ttl_s} (must be >0)")
    return Authorizations(ttl_s, _text(fields, "identity"), _text(fields, "identity_url"), rules)


def _rule(value: object, expressions: _Expressions) -> Authorization:
    fields = _fields(value, "an authorization")
    permissions = tuple(_list(fields, "permissions"))
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise BadAnswer(f"unknown permission {_shown(permission)}")
    topic = expressions.compile("topic", _text(fields, "topic"))
    channels = tuple(
        expressions.compile("channel", _as_text("channel", pattern))
        for pattern in _list(fields, "channels")
    )
    return Authorization(topic, channels, tuple(map(str, permissions)))


class _Expressions:
    """The expressions of one answer."""

    def __init__(self) -> None:
        self._size = 0

    def compile(self, what: str, text: str) -> Pattern:
        """Compile an expression. Raises BadAnswer."""
        try:
            pattern = compile_pattern(text)
        except BadPattern as error:
            raise BadAnswer(f"unable to compile {what} {_shown(text)}: {error}") from None
        self._size += pattern.programsize
        if self._size > _MAX_INSTRUCTIONS:
            raise BadAnswer(
                f"its expressions together have more than {_MAX_INSTRUCTIONS} instructions at"
                f" {what} {_shown(text)}: use fewer or simpler ones"
            )
        return pattern


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _fields(value: object, what: str) -> dict[str, object]:
    """Return the fields of an object, whose names may be in any case, as Go reads them."""
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} is {_shown(value)}, no JSON object")
    return {str(name).lower(): item for name, item in value.items()}


def _list(fields: dict[str, object], name: str) -> list[object]:
    value = fields.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadAnswer(f"{name} is {_shown(value)}, no list")
    return value


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    return "" if value is None else _as_text(name, value)


def _as_text(name: str, value: object) -> str:
    """Read a text; half of a surrogate pair in it reads as U+FFFD."""
    if not isinstance(value, str):
        raise BadAnswer(f"{name} is {_shown(value)}, no text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
