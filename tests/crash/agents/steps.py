"""What every agent does while primaries are killed; each is a process of another client library.

An agent publishes 0, 1, 2 ... to its topic, and each number again until it is answered OK. It
consumes the same topic, and finishes all that it receives. It has one argument, a JSON object::

    {"topic": T, "channel": C, "addresses": [A, B, C], "lookup": L}

The producer knows the addresses of all replicas. The consumer asks the lookup daemon at L, or where
that is empty uses the addresses. It prints a JSON object a line, as `tests.interop.agents.story`
describes: ``published``, ``failed`` and ``received``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable

TICK_S = 0.02
"""The pause between two publishes."""
POLL_S = 1
"""How often consumers poll where their library allows to set it, except for go-nsq with a lookup
daemon: it asks as soon as it loses a connection.
"""
MESSAGE_TIMEOUT_S = 5
"""Of ansq, which drops messages that it has received when a connection ends."""


class Arguments:
    """The argument of an agent."""

    def __init__(self) -> None:
        arguments = json.loads(sys.argv[1])
        self.topic: str = arguments["topic"]
        self.channel: str = arguments["channel"]
        self.addresses: list[str] = arguments["addresses"]
        self.lookup: str = arguments["lookup"]


async def publish_numbers(publish: Callable[[str], Awaitable[bool]]) -> None:
    """Publish numbers for ever; `publish` returns whether the answer was OK."""
    for number in itertools.count():
        while not await publish(str(number)):  # noqa: ASYNC110, each call is another attempt
            await asyncio.sleep(TICK_S)
        await asyncio.sleep(TICK_S)
