"""``martlet to-http``: sends the messages of topics over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.to_http import ToHttpOptions
from martlet.tools.to_http import ToHttp

DESCRIPTION = (
    "Send each message of topics to a URL, and finish it when the answer was 2xx; else it is sent"
    " again, later each time. Takes the flags of nsq_to_http."
)


def main(argv: Sequence[str]) -> int:
    """Send messages; the result is the exit code of the process."""
    options = tool.options("to-http", DESCRIPTION, ToHttpOptions, argv)
    sender = ToHttp(options)
    return tool.run(sender.run, sender.stop)
