"""``martlet topic configure`` and ``martlet channel configure``: set and show policies.

`martlet.broker.policy` has the fields and their limits.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

from martlet.broker.policy import BadPolicy, ChannelPolicy, Policy, TopicPolicy
from martlet.cli import start, tool
from martlet.cli.admin.manage import place_of, way_out
from martlet.cli.broker_http import ChannelOptions, TopicOptions
from martlet.client.admin import Answers
from martlet.client.admin import Policy as PolicyFields
from martlet.durations import MILLISECOND_NS, parse_duration, parse_size

log = logging.getLogger(__name__)
_PLACES = {"topic": TopicOptions, "channel": ChannelOptions}


def topic(argv: Sequence[str]) -> int:
    """Configure a topic; return the exit code of the process."""
    return _run("topic", TopicPolicy(), argv, ["topic"])


def channel(argv: Sequence[str]) -> int:
    """Configure a channel; return the exit code of the process."""
    return _run("channel", ChannelPolicy(), argv, ["topic", "channel"])


def _run(what: str, policy: Policy, argv: Sequence[str], names: list[str]) -> int:
    kind = _PLACES[what]
    flags, others = tool.split(kind, argv)
    settings = [word for word in others if "=" in word]
    named = [word for word in others if "=" not in word]
    options: TopicOptions | ChannelOptions = tool.options(
        f"{what} configure",
        _description(what, policy),
        kind,
        [*flags, *(f"--{n}={v}" for n, v in zip(names, named, strict=False))],
        " ".join([*(name.upper() for name in names), "[NAME=VALUE ...]"]),
    )
    if stray := named[len(names) :]:
        _fail(f"{stray[0]!r} has no value: write NAME=VALUE, such as {stray[0]}=default")
    try:
        changes = read(policy, settings)
        policy.changed(changes)
    except BadPolicy as error:
        _fail(str(error))
    place = place_of(options)

    async def configure() -> Answers[PolicyFields]:
        async with options.admin() as admin:
            methods = admin.channels if "channel" in place else admin.topics
            act: Callable[..., Awaitable[Answers[PolicyFields]]] = methods.configure
            return await act(**place, **changes)

    return tool.run_at_each(
        configure,
        lambda answer: f"{what} {'/'.join(place.values())}: {_shown(answer)}",
        lambda error: way_out(error, place),
    )


def _fail(text: str) -> NoReturn:
    log.critical("%s", text)
    raise SystemExit(start.WRONG)


def read(policy: Policy, words: Sequence[str]) -> dict[str, object]:
    """Read the fields that words such as ``retention_ms=72h`` set. Raises BadPolicy."""
    known = {each.name: each.metadata for each in policy.settable()}
    changes: dict[str, object] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise BadPolicy(f"there is no setting {name!r}; the settings are {', '.join(known)}")
        changes[name] = None if text == "default" else _value(name, text, known[name])
    return changes


def _value(name: str, text: str, limits: Mapping[str, Any]) -> object:
    if "choices" in limits or limits.get("is_name"):
        return text
    if text.startswith("["):
        return _listed(name, text)
    pieces = [each.strip() for each in text.replace("||", ",").split(",")] if text else []
    if limits.get("is_tags"):
        return pieces
    if "count" in limits:
        return [_number(name, piece) for piece in pieces]
    return _number(name, text)


def _listed(name: str, text: str) -> list[object]:
    """Refuse a list in JSON, whose brackets would become part of the words."""
    try:
        values: list[object] = json.loads(text)
    except ValueError:
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


def _description(what: str, policy: Policy) -> str:
    texts = [
        f"Set the policy of a {what} beyond NSQ's rules, on each broker named, or on all that a"
        " lookup daemon knows; without any NAME=VALUE, show it. It applies at once, and after a"
        " restart. The value 'default' resets a field. There are",
    ]
    for each in policy.settable():
        choices = each.metadata.get("choices", ())
        one_of = f" ({', '.join(choices)})" if choices else ""
        texts.append(f"{each.name}{one_of}: {each.metadata['help']};")
    return " ".join(texts).rstrip(";") + "."


def _shown(policy: Mapping[str, object]) -> str:
    if not policy:
        return "nothing is set"
    return ", ".join(f"{name}={_written(value)}" for name, value in policy.items())


def _written(value: object) -> str:
    """Format a value as a user types it."""
    if not isinstance(value, list):
        return str(value)
    texts = [str(each) for each in value]
    return json.dumps(value) if any("," in each for each in texts) else ",".join(texts)
