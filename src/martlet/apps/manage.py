"""What ``martlet topic`` and ``martlet channel`` share: the words that may follow, as a table."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from martlet.apps import tool
from martlet.options.door import ChannelOptions, TopicOptions
from martlet.options.topic import InventoryOptions
from martlet.tools.inventory import Fields, Inventory, line
from martlet.tools.manage import Change, Verb

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
