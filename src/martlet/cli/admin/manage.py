"""The actions of ``martlet topic`` and ``martlet channel``: create, pause, empty, delete.

The paths and the answers are nsqd's. If lookup daemons are named, a deleted topic is deleted there
too, and a created channel is registered, so that brokers that get the topic later create it at
once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from martlet.cli import start, tool
from martlet.cli.admin.inventory import channel_of, look, topic_of
from martlet.cli.broker_http import (
    NOT_FOUND,
    BrokerHttpClient,
    ChannelOptions,
    Fields,
    NoHttpAnswer,
    TopicOptions,
)
from martlet.options.checks import unknown_word
from martlet.options.flag import option
from martlet.plural import counted


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
    """An action on a topic or a channel.

    Attributes:
        name: of the command, and in the path.
        done: the state of the topic or channel afterwards.
        drops: whether messages are lost.
        is_registered: whether it is repeated at lookup daemons.
    """

    name: str
    done: str
    drops: bool = False
    is_registered: bool = False


CREATE = Verb("create", "exists", is_registered=True)
DELETE = Verb("delete", "is deleted", drops=True, is_registered=True)
PAUSE = Verb("pause", "is paused")
UNPAUSE = Verb("unpause", "is no longer paused")
EMPTY = Verb("empty", "is emptied", drops=True)


class ManageRefused(NoHttpAnswer):
    """Nothing was done at a broker, since messages would be lost and --force is missing."""


class Change:
    """Change a topic or channel.

    Args:
        verb: the action.
        options: the topic or channel, and the brokers.
    """

    def __init__(self, verb: Verb, options: TopicOptions | ChannelOptions) -> None:
        self._verb = verb
        self._options = options
        self._names = {"topic": options.topic}
        if isinstance(options, ChannelOptions):
            self._names["channel"] = options.channel
        self._path = f"/{'channel' if 'channel' in self._names else 'topic'}/{verb.name}"
        self._is_forced = bool(getattr(options, "force", False))

    @property
    def what(self) -> str:
        """The topic or channel, in words."""
        return " of ".join(f"{kind} {name!r}" for kind, name in reversed(self._names.items()))

    async def run(self) -> list[tuple[str, NoHttpAnswer | None]]:
        """Do it on each broker, then at each lookup daemon; return the daemons' errors.

        Nothing is done at lookup daemons unless all brokers have done it.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        async with BrokerHttpClient(self._options) as client:
            urls = await self._brokers(client)
            if self._verb.drops and not self._is_forced:
                return await client.each(urls, lambda url: self._refuse(client, url))
            outcomes = await client.each(urls, lambda url: self._change(client, url))
            if self._verb.is_registered and not any(error for _, error in outcomes):
                outcomes += await client.each(
                    client.daemons(), lambda url: self._register(client, url)
                )
            return outcomes

    async def _brokers(self, client: BrokerHttpClient) -> list[str]:
        """Return the brokers that have the topic; none if only lookup daemons know it."""
        try:
            return await client.brokers(self._options.topic)
        except NoHttpAnswer as error:
            may_do = not self._verb.drops or self._is_forced
            if error.status == NOT_FOUND and self._verb.is_registered and may_do:
                return []
            raise

    async def _change(self, client: BrokerHttpClient, url: str) -> None:
        try:
            await client.post(url, self._path, self._names)
        except NoHttpAnswer as error:
            if self._verb is CREATE:
                raise with_way_out(error, url, self._names) from None
            raise

    async def _register(self, client: BrokerHttpClient, url: str) -> None:
        """Repeat it at a lookup daemon; one that does not know the topic is fine."""
        try:
            await self._change(client, url)
        except NoHttpAnswer as error:
            if error.status != NOT_FOUND:
                raise

    async def _refuse(self, client: BrokerHttpClient, url: str) -> None:
        """Raise with the losses at a broker."""
        try:
            stats = await look(client, url, self._options.topic)
            topic = topic_of(stats, self._options.topic)
            if topic is None:
                raise NoHttpAnswer(url, f"there is no topic {self._options.topic!r}", NOT_FOUND)
            if "channel" not in self._names:
                found = [topic, *(topic["channels"] if self._verb is DELETE else ())]
            else:
                channel = channel_of(topic, self._names["channel"])
                if channel is None:
                    raise NoHttpAnswer(url, f"there is no {self.what}", NOT_FOUND)
                found = [channel]
        except (KeyError, TypeError, AttributeError) as error:
            raise NoHttpAnswer(url, f"an unintelligible answer to /stats: {error!r}") from None
        raise ManageRefused(
            url, f"nothing is done without --force: {self.what} has {_describe(found)} there"
        )


def with_way_out(error: NoHttpAnswer, url: str, names: Mapping[str, str]) -> NoHttpAnswer:
    """Add the command that creates a topic or channel to an error that it is missing."""
    if error.status != NOT_FOUND:
        return error
    words = ["channel", "create", names["topic"], names.get("channel", "")]
    if "there is no topic" in error.why:
        words = ["topic", "create", names["topic"]]
    call = " ".join(["martlet", *words, f"--nsqd-http-address={url.removeprefix('http://')}"])
    return NoHttpAnswer(url, f"{error.why}; to create it: {call}", error.status)


def _describe(found: list[Fields]) -> str:
    """Count the messages and clients of a topic and its channels, or of a channel."""
    messages = sum(
        each["depth"] + each.get("in_flight_count", 0) + each.get("deferred_count", 0)
        for each in found
    )
    clients = sum(each.get("client_count", 0) for each in found)
    channels = len(found) - 1 if "topic_name" in found[0] else 0
    parts = [counted(messages, "message"), counted(clients, "client")]
    if channels:
        parts.insert(0, counted(channels, "channel"))
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
    forms = [f"martlet {what} {name} {each.arguments}" for name, each in actions.items()]
    width = max(map(len, actions))
    return "\n".join(
        [
            f"usage: {forms[0]}",
            *(f"       {form}" for form in forms[1:]),
            "",
            "Each takes --nsqd-http-address=ADDR:PORT or --lookupd-http-address=ADDR:PORT, several"
            " times too.",
            "",
            *(f"  {name:<{width}}  {each.help}" for name, each in actions.items()),
            "",
            f"See martlet {what} ACTION --help.",
        ]
    )


def change(
    verb: Verb, kind: type[TopicOptions] | type[ChannelOptions], summary: str
) -> ManageAction:
    """Make an action that changes a topic or a channel."""
    names = ["topic", "channel"] if issubclass(kind, ChannelOptions) else ["topic"]
    places = " ".join(name.upper() for name in names)
    arguments = f"{places} --force" if verb.drops else places
    return ManageAction(partial(_change, verb, kind, names, summary), arguments, summary)


def _change(
    verb: Verb,
    kind: type[TopicOptions] | type[ChannelOptions],
    names: Sequence[str],
    summary: str,
    argv: Sequence[str],
) -> int:
    command = f"{names[-1]} {verb.name}"
    places = " ".join(name.upper() for name in names)
    text = (
        f"{summary[0].upper()}{summary[1:]}. This is done on each broker named, or on all that"
        " a lookup daemon knows to have the topic. The names may stand without their flags:"
        f" martlet {command} {places}."
    )
    options = tool.options(command, text, kind, argv, places, names)
    asked = Change(verb, options)
    return tool.run_at_each(asked.run, lambda _done: f"{asked.what} {verb.done}")
