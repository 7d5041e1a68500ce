"""``martlet channel``: says what a channel does beyond NSQ's rules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from martlet.apps import configure

ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {"configure": configure.channel}
USAGE = """\
usage: martlet channel configure TOPIC CHANNEL [NAME=VALUE ...] --nsqd-http-address=ADDR:PORT

  configure  set or show its policy; see martlet channel configure --help"""


def main(argv: Sequence[str]) -> int:
    """Do what the first word says; the result is the exit code of the process."""
    action = ACTIONS.get(argv[0]) if argv else None
    if action is not None:
        return action(argv[1:])
    wants_help = bool(argv) and argv[0].lstrip("-") in ("help", "h")
    print(USAGE, file=sys.stdout if wants_help else sys.stderr)
    return 0 if wants_help else 2
