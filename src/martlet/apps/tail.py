"""``martlet tail``: shows the messages of topics as they come."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.tools import TailOptions
from martlet.tools.tail import Tail

DESCRIPTION = "Show the messages of topics as they come; takes the flags of nsq_tail."


def main(argv: Sequence[str]) -> int:
    """Show messages; the result is the exit code of the process."""
    options = tool.options("tail", DESCRIPTION, TailOptions, argv)
    tail = Tail(options, sys.stdout.fileno())
    return tool.run(tail.run, tail.stop)
