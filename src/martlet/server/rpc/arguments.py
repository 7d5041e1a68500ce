"""Arguments: the fields of a call, checked for type and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from martlet.broker.errors import NotFound
from martlet.names import is_valid_name
from martlet.text import MILLISECOND_NS, shown_value

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.topic.topic import Topic

_MAX_NUMBER = (1 << 63) - 1
LATEST_MS = 1 << 43
"""The latest delivery time, in the year 2248: nanoseconds until then fit into 63 bits."""


class CallError(Exception):
    """The refusal of a call."""

    def __init__(self, code: str, text: str, **fields: object) -> None:
        super().__init__(text)
        self.code = code
        """One word in capitals, for programs."""
        self.fields = fields
        """Further fields of the answer."""


class CallArguments:
    """The fields of one call. A missing field, or one of the wrong type, is an error when read."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields

    def __contains__(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def only(self, *names: str) -> None:
        """Refuse other fields: a misspelt one would silently have no effect. Raises CallError."""
        unknown = [name for name in self.fields if name not in names]
        if unknown:
            name, declared = shown_value(min(unknown), 80), ", ".join(sorted(names)) or "none"
            raise CallError("BAD_ARGUMENT", f"unknown argument {name}; there are {declared}")

    def without(self, *names: str) -> CallArguments:
        """Return the arguments without some of them."""
        return CallArguments({name: v for name, v in self.fields.items() if name not in names})

    def renamed(self, names: Mapping[str, str]) -> CallArguments:
        """Return the arguments with present names in place of former ones. Raises CallError."""
        fields = dict(self.fields)
        for former, name in names.items():
            if former in fields:
                if name in fields:
                    raise CallError("BAD_ARGUMENT", f"{former!r} is {name!r} now: give one of them")
                fields[name] = fields.pop(former)
        return CallArguments(fields)

    def _required(self, name: str) -> object:
        value = self.fields.get(name)
        if value is None:
            raise CallError("MISSING_ARGUMENT", f"the argument {name!r} is missing")
        return value

    def text(self, name: str, default: str | None = None, *, max_value: int | None = 1024) -> str:
        """Return a text, of any length if `max_value` is None. Raises CallError."""
        if default is not None and name not in self:
            return default
        value = self._required(name)
        if not isinstance(value, str) or (max_value is not None and len(value) > max_value):
            limit = "" if max_value is None else f" of at most {max_value} characters"
            raise CallError("BAD_ARGUMENT", f"{name!r} must be a text{limit}")
        if value != _characters(value):
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} is no text that UTF-8 can encode: {value!a:.80}"
            )
        return value

    def remark(self, name: str, *, max_value: int) -> str:
        """Return a text to show; empty for none. An invalid character, as in a file's name, becomes
        a question mark. Raises CallError.
        """
        value = self.fields.get(name)
        if isinstance(value, str):
            return CallArguments({name: _characters(value)}).text(name, max_value=max_value)
        return self.text(name, "")

    def number(
        self,
        name: str,
        default: int | None = None,
        *,
        min_value: int = 0,
        max_value: int = _MAX_NUMBER,
    ) -> int:
        """Return a whole number within limits. Raises CallError."""
        if default is not None and name not in self:
            return default
        value = self._required(name)
        if type(value) is not int or not min_value <= value <= max_value:
            raise CallError(
                "BAD_ARGUMENT",
                f"{name!r} must be a whole number from {min_value} to {max_value},"
                f" not {shown_value(value)}",
            )
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false. Raises CallError."""
        if name not in self:
            return default
        value = self._required(name)
        if not isinstance(value, bool):
            raise CallError("BAD_ARGUMENT", f"{name!r} must be true or false")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str | None = None) -> str:
        """Return one of some words. Raises CallError."""
        value = self.text(name, default)
        if value not in choices:
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} must be one of {', '.join(choices)}, not {value[:40]!r}"
            )
        return value

    def sequence(self, name: str, *, max_value: int = 10_000) -> Sequence[object]:
        """Return a list. Raises CallError."""
        value = self._required(name)
        if not isinstance(value, list) or len(value) > max_value:
            raise CallError("BAD_ARGUMENT", f"{name!r} must be a list of at most {max_value}")
        return value

    def mapping(self, name: str, *, max_value: int = 10_000) -> Mapping[str, object]:
        """Return an object. Raises CallError."""
        value = self._required(name)
        if not isinstance(value, dict) or len(value) > max_value:
            raise CallError(
                "BAD_ARGUMENT", f"{name!r} must be an object of at most {max_value} fields"
            )
        strange = [field for field in value if field != _characters(field)]
        if strange:
            field = f"{strange[0]!a:.80}"
            raise CallError("BAD_ARGUMENT", f"{name!r} has {field}, which UTF-8 cannot encode")
        return value

    def name(self, name: str) -> str:
        """Return the valid name of a topic or a channel. Raises CallError."""
        value = self.text(name)
        if not is_valid_name(value):
            raise CallError("BAD_NAME", f"{name} {value[:80]!r} is not a valid name")
        return value

    def topic(self, broker: BrokerCore, name: str = "topic") -> Topic:
        """Return an existing topic. Raises CallError."""
        try:
            return broker.find_topic(self.name(name))
        except NotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None


def deliver_at_ns(arguments: CallArguments, now_ns: int, max_delay_ns: int) -> int:
    """Return ``deliver_at_ms`` in nanoseconds: 0 for now or a past time. Raises CallError."""
    at_ms = arguments.number("deliver_at_ms", 0, max_value=LATEST_MS)
    at_ns = at_ms * MILLISECOND_NS
    if at_ns > now_ns + max_delay_ns:
        raise CallError(
            "BAD_ARGUMENT",
            f"'deliver_at_ms' is {(at_ns - now_ns) // 10**9} s from now; the longest delay is"
            f" {max_delay_ns // 10**9} s (--max-delay)",
        )
    return at_ns if at_ns > now_ns else 0


def _characters(text: str) -> str:
    """Return a text without invalid characters: JSON can hold half a pair of surrogates."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
