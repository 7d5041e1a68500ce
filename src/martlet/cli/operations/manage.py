"""The actions of ``martlet topic`` and ``martlet channel``: create, pause, empty, delete.

The paths and the answers are nsqd's. If lookup daemons are named, a deleted topic is deleted there
too, and a created channel is registered, so that brokers that get the topic later create it at
once.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from martlet.cli import start, tool
from martlet.cli.broker_http import ChannelOptions, TopicOptions
from martlet.client.admin import (
    Admin,
    AdminError,
    AdminNotFound,
    Answers,
    ChannelStats,
    TopicStats,
)
from martlet.options.checks import unknown_word
from martlet.options.flag import option
from martlet.text import counted


def _force() -> Any:
    return option(
        False,
        "do it: messages are lost; without it, only show what would be lost",
    )


@dataclass(frozen=True, kw_only=True)
class TopicDropOptions(TopicOptions):
    """The options of ``martlet topic delete`` and ``empty``."""

    force: bool = _force()


@dataclass(frozen=True, kw_only=True)
class ChannelDropOptions(ChannelOptions):
    """The options of ``martlet channel delete`` and ``empty``."""

    force: bool = _force()


@dataclass(frozen=True)
class Verb:
    """An action on a topic or a channel."""

    name: str
    """Of the command, and in the path."""
    done: str
    """The state of the topic or channel afterwards."""
    drops: bool = False
    """Whether messages are lost."""


CREATE = Verb("create", "exists")
DELETE = Verb("delete", "is deleted", drops=True)
PAUSE = Verb("pause", "is paused")
UNPAUSE = Verb("unpause", "is no longer paused")
EMPTY = Verb("empty", "is emptied", drops=True)


def names_of(options: TopicOptions | ChannelOptions) -> dict[str, str]:
    """Return the names of the topic and, if it is one, of the channel."""
    names = {"topic": options.topic}
    return names | ({"channel": options.channel} if isinstance(options, ChannelOptions) else {})


async def _act(admin: Admin, verb: Verb, options: TopicOptions | ChannelOptions) -> Answers[None]:
    names = names_of(options)
    methods = admin.channels if "channel" in names else admin.topics
    act: Callable[..., Awaitable[Answers[None]]] = getattr(methods, verb.name)
    return await act(**names)


async def _losses(admin: Admin, verb: Verb, names: Mapping[str, str]) -> Answers[None]:
    """Return the losses at each broker as its error."""
    answers = await tool.settled(admin.topics.list(names["topic"]))
    errors = dict(answers.errors)
    for url, topics in answers.values.items():
        channels = [
            channel
            for topic in topics
            for channel in topic.channels
            if names.get("channel", channel.channel) == channel.channel
        ]
        if not topics:
            errors[url] = AdminNotFound(url, f"there is no topic {names['topic']!r}")
        elif "channel" in names and not channels:
            errors[url] = AdminNotFound(url, f"there is no {_words(names)}")
        else:
            lost = _describe(
                () if "channel" in names else topics,
                channels if "channel" in names or verb is DELETE else (),
            )
            errors[url] = AdminError(
                url, f"nothing is done without --force: {_words(names)} has {lost} there"
            )
    return Answers({}, errors)


def _words(names: Mapping[str, str]) -> str:
    """Return the topic or channel in words."""
    return " of ".join(f"{kind} {name!r}" for kind, name in reversed(list(names.items())))


def how_to_create(error: AdminError, names: Mapping[str, str]) -> str:
    """Add the command that creates a topic or channel to an error that it is missing."""
    if not isinstance(error, AdminNotFound):
        return error.why
    words = ["channel", "create", names["topic"], names.get("channel", "")]
    if "there is no topic" in error.why:
        words = ["topic", "create", names["topic"]]
    return f"{error.why}; to create it: {_command(words, error)}"


def how_to_list(error: AdminError, names: Mapping[str, str]) -> str:
    """Add the command that lists the topics or channels to an error that one is missing."""
    if not isinstance(error, AdminNotFound):
        return error.why
    is_of_topic = "channel" not in names or "there is no topic" in error.why
    words = ["topic", "list"] if is_of_topic else ["channel", "list", names["topic"]]
    return f"{error.why}; to list those there: {_command(words, error)}"


def _command(words: Sequence[str], error: AdminError) -> str:
    """Return a command that asks the broker of an error."""
    return f"martlet {' '.join(words)} --address={error.url.removeprefix('http://')}"


def _describe(topics: Sequence[TopicStats], channels: Sequence[ChannelStats]) -> str:
    """Count the messages and clients of a topic and its channels, or of a channel."""
    messages = sum(topic.depth for topic in topics) + sum(
        channel.depth + channel.in_flight_count + channel.deferred_count for channel in channels
    )
    clients = sum(channel.client_count for channel in channels)
    parts = [counted(messages, "message"), counted(clients, "client")]
    if topics and channels:
        parts.insert(0, counted(len(channels), "channel"))
    return " and ".join([", ".join(parts[:-1]), parts[-1]])


class ManageAction(NamedTuple):
    """An action of ``martlet topic`` or ``martlet channel``: the word after it."""

    run: Callable[[Sequence[str]], int]
    arguments: str
    help: str


def main(what: str, actions: Mapping[str, ManageAction], argv: Sequence[str]) -> int:
    """Run the action of the first word; return the exit code of the process."""
    action = actions.get(argv[0]) if argv else None
    if action is not None:
        return action.run(argv[1:])
    wants_help = bool(argv) and argv[0].lstrip("-") in ("help", "h")
    if wants_help:
        print(usage(what, actions))
        return 0
    wrong = unknown_word("action", argv[0] if argv else "", actions)
    print(f"martlet {what}: {wrong}; see martlet {what} --help", file=sys.stderr)
    return start.WRONG


def usage(what: str, actions: Mapping[str, ManageAction]) -> str:
    """Return what ``martlet topic --help`` prints."""
    forms = [f"martlet {what} {name} {action.arguments}" for name, action in actions.items()]
    width = max(map(len, actions))
    return "\n".join(
        [
            f"usage: {forms[0]}",
            *(f"       {form}" for form in forms[1:]),
            "",
            "Each takes --address=ADDR:PORT or --lookup=ADDR:PORT, several times too.",
            "",
            *(f"  {name:<{width}}  {action.help}" for name, action in actions.items()),
            "",
            f"See martlet {what} ACTION --help.",
        ]
    )


def change(
    verb: Verb, kind: type[TopicOptions] | type[ChannelOptions], summary: str
) -> ManageAction:
    """Make an action that changes a topic or a channel."""
    names = ["topic", "channel"] if issubclass(kind, ChannelOptions) else ["topic"]
    operands = " ".join(name.upper() for name in names)
    arguments = f"{operands} --force" if verb.drops else operands
    return ManageAction(partial(_change, verb, kind, names, summary), arguments, summary)


def _change(
    verb: Verb,
    kind: type[TopicOptions] | type[ChannelOptions],
    names: Sequence[str],
    summary: str,
    argv: Sequence[str],
) -> int:
    command = f"{names[-1]} {verb.name}"
    operands = " ".join(name.upper() for name in names)
    text = (
        f"{summary[0].upper()}{summary[1:]}. This is done on each broker named, or on all that"
        " a lookup daemon knows to have the topic. The names may stand without their flags:"
        f" martlet {command} {operands}."
    )
    options = tool.options(command, text, kind, argv, operands, names)
    target = names_of(options)
    is_safe = not verb.drops or getattr(options, "force", False)

    async def act() -> Answers[None]:
        async with options.admin() as admin:
            return await (_act(admin, verb, options) if is_safe else _losses(admin, verb, target))

    return tool.run_at_each(
        act,
        lambda _done: f"{_words(target)} {verb.done}",
        lambda error: (how_to_create if verb is CREATE else how_to_list)(error, target),
    )
