"""``martlet relay``: passes the messages of topics on to other brokers."""

from __future__ import annotations

from collections.abc import Sequence

from martlet.apps import tool
from martlet.options.relay import RelayOptions
from martlet.tools.relay import Relay

DESCRIPTION = (
    "Publish the messages of topics to other brokers, and finish them once those have answered OK;"
    " takes the flags of nsq_to_nsq. Of several destinations each message goes to one."
)


def main(argv: Sequence[str]) -> int:
    """Pass messages on; the result is the exit code of the process."""
    options = tool.options("relay", DESCRIPTION, RelayOptions, argv)
    relay = Relay(options)
    return tool.run(relay.run, relay.stop)
