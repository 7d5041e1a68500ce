"""``martlet tail``: show the messages of topics as they arrive.

Without ``--channel`` it creates an ephemeral one, which is deleted at the end: it gets messages
published from now on, and takes none from other consumers. Messages are finished once they are
written; those that the pipe did not accept before the end are requeued.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from martlet.cli import tool
from martlet.cli.nsq_tools.source import Pipe, SourceOptions
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import json_line
from martlet.client import Batch
from martlet.options.flag import OptionError, option


@dataclass(frozen=True, kw_only=True)
class TailOptions(SourceOptions):
    """The options of ``martlet tail``."""

    channel: str = option("", "the channel (default: an ephemeral one of its own)")
    count: int = option(
        0,
        "show this many messages and exit; 0: no limit",
        name="n",
        limits=(0, None),
        section="output",
    )
    print_topic: bool = option(False, "put the topic's name before each message")
    print_properties: bool = option(False, "put the properties of each message before it, as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics:
            raise OptionError("--topic is missing: name the topics to show")


class Tail(Pipe):
    """Show messages."""

    def __init__(self, options: TailOptions, descriptor: int) -> None:
        self._options = options
        self._output = StandardOutput(descriptor)
        self._left = options.count or sys.maxsize
        own = f"tail-{socket.gethostname()[:20]}-{os.getpid()}#ephemeral"
        # Prefetch no more than is left to show; the rest stays in its channel.
        max_in_flight = min(options.max_in_flight, self._left)
        channel = options.channel or own
        super().__init__(self._show, "tail", options, channel, max_in_flight)

    def stop(self) -> None:
        """Stop showing."""
        self._output.stop()
        super().stop()

    async def _show(self, topic: str, batch: Batch) -> NDArray[np.bool_]:
        # Other topics are consumed meanwhile, and share the rest of the maximum.
        shown_count = min(self._left, len(batch))
        self._left -= shown_count
        head = f"{topic} ".encode() if self._options.print_topic else b""
        lines = [head + body + b"\n" for body in self._shown(batch, shown_count)]
        return np.arange(len(batch)) < await self._output.show(lines)

    async def _pass(self, topic: str, batch: Batch) -> None:
        await super()._pass(topic, batch)
        if not self._left:
            super().stop()

    def _shown(self, batch: Batch, count: int) -> list[bytes]:
        """Return the first bodies of a batch, after their properties if wanted."""
        bodies = batch.bodies[:count]
        if not self._options.print_properties:
            return bodies
        texts = [json_line(carried.to_json()) for carried in batch.properties[:count]]
        return [text.encode() + b" " + body for text, body in zip(texts, bodies, strict=True)]


DESCRIPTION = "Show the messages of topics as they arrive; takes the flags of nsq_tail."


def main(argv: Sequence[str]) -> int:
    """Show messages; return the exit code of the process."""
    options = tool.options("tail", DESCRIPTION, TailOptions, argv)
    tail = tool.made(lambda: Tail(options, sys.stdout.fileno()))
    return tool.run(tail.run, tail.stop)
