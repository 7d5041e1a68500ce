"""``martlet topic configure`` and ``martlet channel configure``: set and show policies.

`martlet.broker.policy` has the fields and their limits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NoReturn

from martlet.broker.policy import (
    BadPolicy,
    ChannelPolicy,
    Policy,
    TopicPolicy,
    read_words,
    value_text,
)
from martlet.cli import start, tool
from martlet.cli.broker_http import ChannelOptions, TopicOptions
from martlet.cli.operations.manage import how_to_create, names_of
from martlet.client.admin import Answers
from martlet.client.admin import Policy as PolicyFields

log = logging.getLogger(__name__)
_KINDS = {"topic": TopicOptions, "channel": ChannelOptions}


def topic(argv: Sequence[str]) -> int:
    """Configure a topic; return the exit code of the process."""
    return _run("topic", TopicPolicy(), argv, ["topic"])


def channel(argv: Sequence[str]) -> int:
    """Configure a channel; return the exit code of the process."""
    return _run("channel", ChannelPolicy(), argv, ["topic", "channel"])


def _run(what: str, policy: Policy, argv: Sequence[str], names: list[str]) -> int:
    kind = _KINDS[what]
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
        changes = read_words(policy, settings)
    except BadPolicy as error:
        _fail(str(error))
    target = names_of(options)

    async def configure() -> Answers[PolicyFields]:
        async with options.admin() as admin:
            methods = admin.channels if "channel" in target else admin.topics
            act: Callable[..., Awaitable[Answers[PolicyFields]]] = methods.configure
            return await act(**target, **changes)

    return tool.run_at_each(
        configure,
        lambda answer: f"{what} {'/'.join(target.values())}: {_shown(answer)}",
        lambda error: how_to_create(error, target),
    )


def _fail(text: str) -> NoReturn:
    log.critical("%s", text)
    raise SystemExit(start.WRONG)


def _description(what: str, policy: Policy) -> str:
    texts = [
        f"Set the policy of a {what} beyond NSQ's rules, on each broker named, or on all that a"
        " lookup daemon knows; without any NAME=VALUE, show it. It applies at once, and after a"
        " restart. The value 'default' resets a field. There are",
    ]
    for field in policy.settable():
        choices = field.metadata.get("choices", ())
        one_of = f" ({', '.join(choices)})" if choices else ""
        texts.append(f"{field.name}{one_of}: {field.metadata['help']};")
    return " ".join(texts).rstrip(";") + "."


def _shown(policy: Mapping[str, object]) -> str:
    if not policy:
        return "nothing is set"
    return ", ".join(f"{name}={value_text(value)}" for name, value in policy.items())
