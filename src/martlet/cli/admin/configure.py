"""``martlet topic configure`` and ``martlet channel configure``: policies, from the command line.

What may be set, and within which limits, says `martlet.broker.policy`; so does the help.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from martlet.broker.policy import BadPolicy, ChannelPolicy, Policy, TopicPolicy
from martlet.cli import start, tool
from martlet.cli.admin.manage import with_way_out
from martlet.cli.broker_http import BrokerHttpClients, ChannelOptions, NoHttpAnswer, TopicOptions
from martlet.durations import MILLISECOND_NS, parse_duration, parse_size
from martlet.options import LogOptions


@dataclass(frozen=True, kw_only=True)
class TopicConfigureOptions(TopicOptions):
    """What ``martlet topic configure`` is started with."""


@dataclass(frozen=True, kw_only=True)
class ChannelConfigureOptions(ChannelOptions):
    """What ``martlet channel configure`` is started with."""


Options = TopicConfigureOptions | ChannelConfigureOptions


class Configuration:
    """Sets some fields of a policy.

    Args:
        options: which topic or channel, on which brokers.
        changes: the fields to set; None for the default. None at all: nothing is set.
    """

    def __init__(self, options: Options, changes: Mapping[str, object]) -> None:
        self._options = options
        self._changes = dict(changes)

    async def run(self) -> list[tuple[str, dict[str, Any] | NoHttpAnswer]]:
        """Do it on each broker; the policy that it has there then.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        options = self._options
        names = {"topic": options.topic}
        method = "topic.configure"
        if isinstance(options, ChannelConfigureOptions):
            names["channel"] = options.channel
            method = "channel.configure"
        fields: dict[str, Any] = {**names, "policy": self._changes}
        async with BrokerHttpClients(options) as doors:
            urls = await doors.brokers(options.topic)

            async def ask(url: str) -> dict[str, Any] | NoHttpAnswer:
                try:
                    policy: dict[str, Any] = (await doors.call(url, method, fields))["policy"]
                    return policy
                except NoHttpAnswer as error:
                    return with_way_out(error, url, names)

            return list(zip(urls, await asyncio.gather(*map(ask, urls)), strict=True))


log = logging.getLogger(__name__)


def topic(argv: Sequence[str]) -> int:
    """Configure a topic; the result is the exit code of the process."""
    return _run("topic", TopicConfigureOptions, TopicPolicy(), argv, ["topic"])


def channel(argv: Sequence[str]) -> int:
    """Configure a channel; the result is the exit code of the process."""
    return _run("channel", ChannelConfigureOptions, ChannelPolicy(), argv, ["topic", "channel"])


def _run(
    what: str,
    kind: type[TopicConfigureOptions] | type[ChannelConfigureOptions],
    policy: Policy,
    argv: Sequence[str],
    names: list[str],
) -> int:
    flags, others = tool.split(kind, argv)
    told = [word for word in others if "=" in word]
    named = [word for word in others if "=" not in word]
    options = tool.options(
        f"{what} configure",
        _description(what, policy),
        kind,
        [*flags, *(f"--{n}={v}" for n, v in zip(names, named, strict=False))],
        " ".join([*(name.upper() for name in names), "[NAME=VALUE ...]"]),
    )
    if stray := named[len(names) :]:
        _fail(f"what is to become of {stray[0]!r}? Write NAME=VALUE, such as {stray[0]}=default")
    try:
        changes = read(policy, told)
        policy.changed(changes)
    except BadPolicy as error:
        _fail(str(error))
    return tool.run_at_each(
        Configuration(options, changes).run,
        lambda answer: f"{what} {_name(options)}: {_shown(answer)}",
    )


def _fail(text: str) -> NoReturn:
    log.critical("%s", text)
    raise SystemExit(start.WRONG)


def read(policy: Policy, told: Sequence[str]) -> dict[str, object]:
    """The fields that words such as ``retention_ms=72h`` set. Raises BadPolicy."""
    known = {each.name: each.metadata for each in policy.settable()}
    changes: dict[str, object] = {}
    for word in told:
        name, _, text = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise BadPolicy(f"there is no policy {name!r}; there are {', '.join(known)}")
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
    """A list in JSON, as calls have it; else its brackets would belong to the words."""
    try:
        told: list[object] = json.loads(text)
    except ValueError:
        raise BadPolicy(f"{name}={text}: no list; write its parts with commas, as a,b") from None
    return told


def _number(name: str, text: str) -> int:
    """A whole number; where the name says so, also a duration such as 72h, or a size."""
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
    said = [
        f"Set what a {what} does beyond NSQ's rules, on each broker named, or on all that a lookup"
        " daemon knows; without any NAME=VALUE, show what is set. It counts at once, and after a"
        " restart. The value 'default' takes back what was set. There are",
    ]
    for each in policy.settable():
        choices = each.metadata.get("choices", ())
        one_of = f" ({', '.join(choices)})" if choices else ""
        said.append(f"{each.name}{one_of}: {each.metadata['help']};")
    return " ".join(said).rstrip(";") + "."


def _name(options: LogOptions) -> str:
    names = [getattr(options, name, "") for name in ("topic", "channel")]
    return "/".join(name for name in names if name)


def _shown(policy: Mapping[str, object]) -> str:
    if not policy:
        return "nothing is set"
    return ", ".join(f"{name}={_written(value)}" for name, value in policy.items())


def _written(value: object) -> str:
    """A value as it is typed."""
    if not isinstance(value, list):
        return str(value)
    texts = [str(each) for each in value]
    return json.dumps(value) if any("," in each for each in texts) else ",".join(texts)
