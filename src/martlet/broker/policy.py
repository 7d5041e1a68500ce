"""Policies: an operator's settings for one topic or one channel, beyond NSQ's rules.

The journal has them with their topic or channel, without default values, so that a default may
change later. Each field declares its help and its limits once; commands, calls and documentation
derive from that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

from martlet.names import EPHEMERAL, is_ephemeral, is_system, is_valid_name
from martlet.properties.model import BadProperties, Properties
from martlet.rate_limit import MAX_RATE_PER_S
from martlet.text import MILLISECOND_NS, parse_duration, parse_size, shown_value

PolicyT = TypeVar("PolicyT", bound="Policy")
MAX_TAGS = 256
_MAX_MS = 400 * 24 * 3600 * 1000
FOR_EVER = -1
"""The value of `max_attempts` for unlimited redelivery."""


class BadPolicy(ValueError):
    """An invalid policy; the text names the field, its limits and the given value."""


def setting(default: object, help: str, **limits: object) -> Any:
    """Declare a field that may be set, within limits: one of some `choices`, a name, tags, or a
    filter in SQL; empty for none.
    """
    return field(default=default, metadata={"help": help, **limits})


def number(default: object, help: str, min_value: int = 0, max_value: int = _MAX_MS) -> Any:
    """Declare a field that is a whole number; None where the broker's own setting applies."""
    return setting(default, help, min_value=min_value, max_value=max_value)


def internal(default: object) -> Any:
    """Declare a field that only the broker sets; it is shown."""
    return field(default=default, metadata={"is_internal": True})


@dataclass(frozen=True, slots=True)
class Policy:
    """The base of both kinds of policy."""

    @classmethod
    def settable(cls) -> list[Field[Any]]:
        """Return the fields that may be set."""
        return [f for f in fields(cls) if "is_internal" not in f.metadata]

    def to_json(self) -> dict[str, object]:
        """Return the values that differ from the default, for the journal and for people."""
        kind: Any = type(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, default in _defaults(kind)
            if (value := getattr(self, name)) != default
        }

    @classmethod
    def read(cls: type[PolicyT], values: Mapping[str, Any]) -> PolicyT:
        """Read a policy from the journal; fields that a later version has added are left out."""
        names = {f.name for f in fields(cls)}
        kept = {name: value for name, value in values.items() if name in names}
        return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in kept.items()})

    def changed(self: PolicyT, changes: Mapping[str, object]) -> PolicyT:
        """Return the policy with changed values; None stands for the default. Raises BadPolicy."""
        settings = {f.name: f for f in self.settable()}
        values: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in settings:
                raise BadPolicy(
                    f"there is no setting {shown_value(name, 80)}; the settings are"
                    f" {', '.join(settings)}"
                )
            declared = settings[name]
            values[name] = (
                declared.default if value is None else _checked(name, value, declared.metadata)
            )
        return replace(self, **values)


@cache
def _defaults(kind: Any) -> list[tuple[str, object]]:
    """Return each field of a kind of policy, and its default."""
    return [(f.name, f.default) for f in fields(kind)]


def _checked(name: str, value: object, limits: Mapping[str, Any]) -> object:
    if "choices" in limits:
        if value not in limits["choices"]:
            choices = ", ".join(limits["choices"])
            raise BadPolicy(f"{name} must be one of {choices}, not {shown_value(value)}")
        return value
    if limits.get("is_name"):
        if not isinstance(value, str) or (value and not is_valid_name(value)):
            raise BadPolicy(f"{name} must be the name of a topic, not {shown_value(value, 80)}")
        return value
    if limits.get("is_tags"):
        return _tags(name, value)
    if limits.get("is_filter"):
        return _filter(name, value)
    if "count" in limits:
        if not isinstance(value, list | tuple) or len(value) > limits["count"]:
            raise BadPolicy(f"{name} must be a list of at most {limits['count']} numbers")
        return tuple(_within(name, item, limits) for item in value)
    return _within(name, value, limits)


def _tags(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > MAX_TAGS:
        raise BadPolicy(f"{name} must be a list of at most {MAX_TAGS} tags")
    for tag in value:
        if not isinstance(tag, str) or not tag:
            raise BadPolicy(f"{name}: {shown_value(tag, 80)} is no tag")
        try:
            Properties(tag=tag).pack()
        except BadProperties as error:
            raise BadPolicy(f"{name}: {error}") from None
    return tuple(sorted(set(value)))


def _filter(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadPolicy(f"{name} must be a condition in SQL, not {shown_value(value, 80)}")
    text = value.strip()
    if text:
        # Imported here, as a broker whose channels have no filter starts without.
        from martlet.properties.filter.parser import BadFilter, parse

        try:
            parse(text)
        except BadFilter as error:
            raise BadPolicy(f"{name}: {error}") from None
    return text


def _within(name: str, value: object, limits: Mapping[str, Any]) -> int:
    if type(value) is not int or not limits["min_value"] <= value <= limits["max_value"]:
        raise BadPolicy(
            f"{name} must be a whole number from {limits['min_value']} to {limits['max_value']},"
            f" not {shown_value(value)}"
        )
    return value


@dataclass(frozen=True, slots=True)
class TopicPolicy(Policy):
    """The policy of a topic."""

    retention_ms: int | None = number(
        None, "how long finished messages are kept to be replayed; 0 for no longer than needed"
    )
    retention_bytes: int | None = number(
        None,
        "of those, how many bytes are kept at most, the newest; 0 for no such limit",
        max_value=1 << 60,
    )
    trace: str = setting(
        "default",
        "whether the log says what has become of each message; default is the broker's --trace",
        choices=("default", "on", "off"),
    )

    def traces(self, topic: str, usually: bool) -> bool:
        """Whether a topic's messages are traced: never those of ephemeral or internal topics."""
        is_traced = self.trace == "on" or (self.trace == "default" and usually)
        return is_traced and not is_ephemeral(topic) and not is_system(topic)


@dataclass(frozen=True, slots=True)
class ChannelPolicy(Policy):
    """The policy of a channel.

    The broker applies a retry policy to failed messages as soon as one of `max_attempts`,
    `retry_delays_ms` and `dead_letter_topic` is set (see `martlet.broker.retry`).
    """

    kind: str = setting(
        "shared",
        "whether consumers subscribe to it and share its messages, or are members of a group that"
        " fetch from the queues allocated to them and commit offsets; a group stays one. A follower"
        " stands for a reader that keeps its own place, such as a query of Spark, which makes it",
        choices=("shared", "offsets", "follower"),
    )
    retain: str = setting(
        "on",
        "whether the log keeps what a follower has yet to read; for all others it does",
        choices=("on", "off"),
    )
    max_attempts: int = number(
        0,
        "how often a message may fail before it goes to the dead-letter topic; -1 for ever, 0"
        " for 16 where one of the next two is set, and else for NSQ's rules, without any limit",
        FOR_EVER,
        65_000,
    )
    retry_delays_ms: tuple[int, ...] = setting(
        (),
        "how long a message waits after its first failure, its second, and so on, the last counting"
        " for all others; where empty, RocketMQ's levels from the third on: 10 s to 2 h",
        min_value=0,
        max_value=_MAX_MS,
        count=64,
    )
    dead_letter_topic: str = setting(
        "",
        "where messages go that have failed too often; where empty, <topic>.<channel>.dead",
        is_name=True,
    )
    tags: tuple[str, ...] = setting(
        (), "it gets only messages with one of these tags", is_tags=True
    )
    filter: str = setting(
        "",
        "it gets only messages for which this condition on their headers is true, as in"
        " region = 'eu' AND price > 3",
        is_filter=True,
    )
    order: str = setting(
        "none",
        "whether messages are dealt with one after the other: of each queue, or of each order key",
        choices=("none", "queue", "key"),
    )
    lock_ms: int = number(
        60_000,
        "how long a queue stays with a consumer that does not go on, where order is queue",
        min_value=1,
        max_value=3_600_000,
    )
    rate_per_s: int = number(
        0,
        "how many messages its consumers get in a second, all of them together and redeliveries"
        " included; 0 for no limit",
        max_value=MAX_RATE_PER_S,
    )
    rate_burst: int = number(
        0,
        "how many messages may come at once after a pause, where there is a rate_per_s; 0 for a"
        " tenth of it, at least 1",
        max_value=MAX_RATE_PER_S,
    )
    from_consumers: tuple[str, ...] = internal(())
    """The fields that a consumer has set; the others are set by an operator, or default."""
    from_lookup: bool = internal(False)
    """Whether the broker created it only because lookup daemons name it: it may be a group there.
    """

    def configured(self, changes: Mapping[str, object]) -> ChannelPolicy:
        """Return the policy with values changed by an operator. Raises BadPolicy."""
        left = tuple(name for name in self.from_consumers if name not in changes)
        return replace(self.changed(changes), from_consumers=left, from_lookup=False)


def check_dead_letter_topic(name: str, topic: str) -> None:
    """Check that a topic's channels may have that dead-letter topic. Raises BadPolicy."""
    if is_ephemeral(name):
        raise BadPolicy(
            f"dead_letter_topic {name!r} would not keep its messages: name one that is not"
            f" {EPHEMERAL}"
        )
    if name == topic:
        raise BadPolicy(
            f"dead_letter_topic {name!r} is the topic itself, which would bring every dead letter"
            " to its channels again: name another one"
        )


def read_words(policy: Policy, words: Sequence[str]) -> dict[str, object]:
    """Read the fields that words such as ``retention_ms=72h`` set. Raises BadPolicy."""
    settings = {f.name: f.metadata for f in policy.settable()}
    changes: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in settings:
            raise BadPolicy(f"there is no setting {name!r}; the settings are {', '.join(settings)}")
        changes[name] = None if text == "default" else _value(name, text, settings[name])
    policy.changed(changes)  # Their limits.
    return changes


def _value(name: str, text: str, limits: Mapping[str, Any]) -> object:
    if "choices" in limits or limits.get("is_name") or limits.get("is_filter"):
        return text
    if text.startswith("["):
        return _listed(name, text)
    pieces = [piece.strip() for piece in text.replace("||", ",").split(",")] if text else []
    if limits.get("is_tags"):
        return pieces
    if "count" in limits:
        return [_number(name, piece) for piece in pieces]
    return _number(name, text)


def _listed(name: str, text: str) -> list[object]:
    """Read a list in JSON, as `value_text` writes words with commas."""
    try:
        values: list[object] = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPolicy(f"{name}={text}: write a list with commas, as a,b") from None
    return values


def _number(name: str, text: str) -> int:
    """Read a whole number or, depending on the name, a duration such as 72h or a size."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        if name.endswith("_ms"):
            return parse_duration(text) // MILLISECOND_NS
        if name.endswith("_bytes"):
            return parse_size(text)
    except ValueError as error:
        raise BadPolicy(f"{name}={text}: {error}") from None
    raise BadPolicy(f"{name}={text}: it must be a whole number")


def value_text(value: object) -> str:
    """Format a value as a user types it."""
    if not isinstance(value, list):
        return str(value)
    texts = [str(item) for item in value]
    return json.dumps(value) if any("," in text for text in texts) else ",".join(texts)
