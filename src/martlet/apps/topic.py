"""``martlet topic``: makes topics, gives them more queues, and says what else they do."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from martlet.apps import configure, tool
from martlet.options.topic import TopicCreateOptions
from martlet.tools.door import NoAnswer
from martlet.tools.topic import TopicCreation

CREATE = (
    "Make a topic on each broker named, or on all that a lookup daemon knows, with so many queues."
    " A queue has offsets and an order of its own; NSQ's clients consume all of them as one topic."
    " A topic that is there gets more queues while it is in use, and can not get fewer. The topic"
    " may stand without its flag: martlet topic create TOPIC --queues=8."
)
log = logging.getLogger(__name__)


def create(argv: Sequence[str]) -> int:
    """Make a topic; the result is the exit code of the process."""
    found = tool.named(TopicCreateOptions, argv, "topic")
    options = tool.options("topic create", CREATE, TopicCreateOptions, found, "TOPIC")
    refused: list[NoAnswer] = []

    async def work() -> None:
        for url, answer in await TopicCreation(options).run():
            if isinstance(answer, NoAnswer):
                refused.append(answer)
                log.error("%s", answer)
            else:
                said = "1 queue" if answer == 1 else f"{answer} queues"
                log.info("%s: topic %s has %s", url, options.topic, said)

    code = tool.run_alone(work)
    return 1 if refused else code


ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "create": create,
    "configure": configure.topic,
}
USAGE = """\
usage: martlet topic create TOPIC [--queues=N] --nsqd-http-address=ADDR:PORT
       martlet topic configure TOPIC [NAME=VALUE ...] --nsqd-http-address=ADDR:PORT

  create     make a topic, or give it more queues; see martlet topic create --help
  configure  set or show its policy; see martlet topic configure --help"""


def main(argv: Sequence[str]) -> int:
    """Do what the first word says; the result is the exit code of the process."""
    action = ACTIONS.get(argv[0]) if argv else None
    if action is not None:
        return action(argv[1:])
    wants_help = bool(argv) and argv[0].lstrip("-") in ("help", "h")
    print(USAGE, file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2
