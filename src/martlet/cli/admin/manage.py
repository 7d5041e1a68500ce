"""What ``martlet topic`` and ``martlet channel`` share: the words that may follow, as a table.

The paths are nsqd's, and so are the answers.  What a lookup daemon keeps of a topic whose brokers
have deleted it goes too, where lookup daemons are named; and a channel that is made is told to
them, so that brokers which get the topic later make it at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from martlet.cli import tool
from martlet.cli.admin.inventory import (
    Fields,
    Inventory,
    InventoryOptions,
    channel_of,
    line,
    look,
    topic_of,
)
from martlet.cli.broker_http import BrokerHttpClients, ChannelOptions, NoHttpAnswer, TopicOptions
from martlet.plural import counted


@dataclass(frozen=True)
class Verb:
    """What can be done to a topic or a channel.

    Attributes:
        name: as it is typed, and as the path has it.
        done: what the topic or channel is then.
        drops: whether messages are lost.
        is_registered: whether lookup daemons are told too.
    """

    name: str
    done: str
    drops: bool = False
    is_registered: bool = False


CREATE = Verb("create", "is there", is_registered=True)
DELETE = Verb("delete", "is deleted", drops=True, is_registered=True)
PAUSE = Verb("pause", "is paused")
UNPAUSE = Verb("unpause", "goes on")
EMPTY = Verb("empty", "is emptied", drops=True)


class ManageRefused(NoHttpAnswer):
    """Nothing was done there, as messages would be lost and nobody has said that they may."""


class Change:
    """Does one thing to a topic or channel.

    Args:
        verb: what is done.
        options: to which, on which brokers.
    """

    def __init__(self, verb: Verb, options: TopicOptions | ChannelOptions) -> None:
        self._verb = verb
        self._options = options
        self._names = {"topic": options.topic}
        if isinstance(options, ChannelOptions):
            self._names["channel"] = options.channel
        self._path = f"/{'channel' if 'channel' in self._names else 'topic'}/{verb.name}"

    @property
    def what(self) -> str:
        """The topic or channel, as it is named in lines for people."""
        return " of ".join(f"{kind} {name!r}" for kind, name in reversed(self._names.items()))

    async def run(self) -> list[tuple[str, NoHttpAnswer | None]]:
        """Do it on each broker, then at each lookup daemon; what was wrong there, if anything was.

        Nothing is done at lookup daemons unless all brokers have done it.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        async with BrokerHttpClients(self._options) as doors:
            urls = await self._brokers(doors)
            if self._verb.drops and not getattr(self._options, "force", False):
                return list(
                    zip(
                        urls,
                        await asyncio.gather(*(self._loss(doors, u) for u in urls)),
                        strict=True,
                    )
                )
            outcomes = await self._at(doors, urls)
            if self._verb.is_registered and not any(error for _, error in outcomes):
                outcomes += await self._at(doors, doors.daemons(), forgiving=True)
            return outcomes

    async def _brokers(self, doors: BrokerHttpClients) -> list[str]:
        """Those that have the topic; none where lookup daemons alone know it."""
        try:
            return await doors.brokers(self._options.topic)
        except NoHttpAnswer as error:
            forced = not self._verb.drops or getattr(self._options, "force", False)
            if error.status == HTTPStatus.NOT_FOUND and self._verb.is_registered and forced:
                return []
            raise

    async def _at(
        self, doors: BrokerHttpClients, urls: list[str], *, forgiving: bool = False
    ) -> list[tuple[str, NoHttpAnswer | None]]:
        async def ask(url: str) -> NoHttpAnswer | None:
            try:
                await doors.post(url, self._path, self._names)
            except NoHttpAnswer as error:
                if forgiving and error.status == HTTPStatus.NOT_FOUND:
                    return None  # A lookup daemon never knew it, or has forgotten it already.
                return with_way_out(error, url, self._names) if self._verb is CREATE else error
            return None

        return list(zip(urls, await asyncio.gather(*map(ask, urls)), strict=True))

    async def _loss(self, doors: BrokerHttpClients, url: str) -> NoHttpAnswer:
        """What would be lost at a broker."""
        try:
            stats = await look(doors, url, self._options.topic)
            topic = topic_of(stats, self._options.topic)
            if topic is None:
                return NoHttpAnswer(url, f"there is no topic {self._options.topic!r}", 404)
            if "channel" not in self._names:
                found = [topic, *(topic["channels"] if self._verb is DELETE else ())]
            else:
                channel = channel_of(topic, self._names["channel"])
                if channel is None:
                    return NoHttpAnswer(url, f"there is no {self.what}", 404)
                found = [channel]
        except NoHttpAnswer as error:
            return error
        except (KeyError, TypeError, AttributeError) as error:
            return NoHttpAnswer(url, f"no /stats that could be understood: {error!r}")
        return ManageRefused(
            url, f"nothing is done without --force: {self.what} has {_describe(found)} there"
        )


def with_way_out(error: NoHttpAnswer, url: str, names: Mapping[str, str]) -> NoHttpAnswer:
    """An error of a topic or channel that is not there, with the command that makes it."""
    if error.status != HTTPStatus.NOT_FOUND:
        return error
    words = ["channel", "create", names["topic"], names.get("channel", "")]
    if "there is no topic" in error.why:
        words = ["topic", "create", names["topic"]]
    call = " ".join(["martlet", *words, f"--nsqd-http-address={url.removeprefix('http://')}"])
    return NoHttpAnswer(url, f"{error.why}; to make it: {call}", error.status)


def _describe(found: list[Fields]) -> str:
    """The messages and clients of a topic and its channels, or of a channel."""
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


log = logging.getLogger(__name__)


class ManageAction(NamedTuple):
    """What the first word behind ``martlet topic`` or ``martlet channel`` does."""

    run: Callable[[Sequence[str]], int]
    arguments: str
    help: str


def main(what: str, actions: Mapping[str, ManageAction], argv: Sequence[str]) -> int:
    """Do what the first word says; the result is the exit code of the process."""
    action = actions.get(argv[0]) if argv else None
    if action is not None:
        return action.run(argv[1:])
    wants_help = bool(argv) and argv[0].lstrip("-") in ("help", "h")
    print(usage(what, actions), file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2


def usage(what: str, actions: Mapping[str, ManageAction]) -> str:
    """What ``martlet topic --help`` prints."""
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
            f"martlet {what} WORD --help tells more.",
        ]
    )


def change(verb: Verb, kind: type[TopicOptions] | type[ChannelOptions], help: str) -> ManageAction:
    """Do one thing to a topic or a channel."""
    names = ["topic", "channel"] if issubclass(kind, ChannelOptions) else ["topic"]
    places = " ".join(name.upper() for name in names)
    arguments = f"{places} --force" if verb.drops else places
    return ManageAction(partial(_change, verb, kind, names, help), arguments, help)


def _change(
    verb: Verb,
    kind: type[TopicOptions] | type[ChannelOptions],
    names: Sequence[str],
    help: str,
    argv: Sequence[str],
) -> int:
    command = f"{names[-1]} {verb.name}"
    places = " ".join(name.upper() for name in names)
    text = (
        f"{help[0].upper()}{help[1:]}: on each broker named, or on all that a lookup daemon knows"
        f" to have the topic. The names may stand without their flags: martlet {command} {places}."
    )
    options = tool.options(command, text, kind, tool.named(kind, argv, *names), places)
    asked = Change(verb, options)
    return tool.run_at_each(asked.run, lambda _done: f"{asked.what} {verb.done}")


def inventory(
    command: str,
    nouns: str,
    help: str,
    kind: type[InventoryOptions],
    find: Callable[[Inventory], Awaitable[list[Fields]]],
    lines: Callable[[list[Fields]], list[str]],
    argv: Sequence[str],
) -> int:
    """Show what there is, such as topics; 1 where not all that were asked have told."""
    names = ["topic"] if "topic" in kind.flags() else []
    found = tool.named(kind, argv, *names)
    options = tool.options(command, help, kind, found, "[TOPIC]" if names else "")
    asked = Inventory(options)
    answers: list[Fields] = []

    async def work() -> None:
        answers.extend(await find(asked))
        await tool.show(map(line, answers) if options.json else lines(answers))
        for error in asked.failed:
            log.error("%s", error)
        if not (answers or asked.failed or options.json):
            log.info("there are no %s", nouns)

    code = tool.run_alone(work)
    is_well = all(each.get("is_healthy", True) for each in answers)
    return code or int(bool(asked.failed) or not is_well)
