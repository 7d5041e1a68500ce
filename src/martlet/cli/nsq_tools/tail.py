"""``martlet tail``: show the messages of topics as they come.

Without ``--channel`` it makes an ephemeral one, which goes when it ends: it sees what is published
from now on, and takes nothing from other consumers.  Messages are finished once they are written;
what the pipe behind it did not take before the end is requeued.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from martlet.cli import tool
from martlet.cli.nsq_tools.source import SourceOptions, consumer
from martlet.cli.standard_output import StandardOutput
from martlet.cli.text import json_line
from martlet.client import Batch, Consumer
from martlet.options.flag import OptionError, option


@dataclass(frozen=True, kw_only=True)
class TailOptions(SourceOptions):
    """The options of ``martlet tail``."""

    channel: str = option("", "the channel (default: an ephemeral one of its own)")
    count: int = option(
        0,
        "show so many messages and end (0: until it is stopped)",
        name="n",
        limits=(0, None),
        section="output",
    )
    print_topic: bool = option(False, "put the topic's name before each message")
    print_properties: bool = option(False, "put the properties of each message before it, as JSON")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics:
            raise OptionError("--topic is missing: which topics are to be shown?")


class Tail:
    """Shows messages.

    Args:
        descriptor: of the file or pipe in which they are shown.
    """

    def __init__(self, options: TailOptions, descriptor: int) -> None:
        self._options = options
        self._output = StandardOutput(descriptor)
        self._left = options.count or sys.maxsize
        own = f"tail-{socket.gethostname()[:20]}-{os.getpid()}#ephemeral"
        self._consumers = {
            topic: consumer(options, topic, options.channel or own, self._share(options))
            for topic in dict.fromkeys(options.topics)
        }

    @staticmethod
    def _share(options: TailOptions) -> int:
        """Fetch no more than will be shown, so that the rest stays in its channel."""
        return min(options.max_in_flight, options.count or options.max_in_flight)

    async def run(self) -> None:
        """Show messages until there were enough, or it is stopped."""
        async with asyncio.TaskGroup() as group:
            for topic, source in self._consumers.items():
                group.create_task(self._follow(topic, source), name=f"martlet tail {topic}")

    def stop(self) -> None:
        """Show no more."""
        self._output.stop()
        self._take_no_more()

    def _take_no_more(self) -> None:
        for each in self._consumers.values():
            each.stop()

    async def _follow(self, topic: str, source: Consumer) -> None:
        head = f"{topic} ".encode() if self._options.print_topic else b""
        async with source:
            async for batch in source.batches():
                # Other topics are followed meanwhile, and share what is left.
                wanted = min(self._left, len(batch))
                self._left -= wanted
                lines = [head + body + b"\n" for body in self._shown(batch, wanted)]
                shown = await self._output.show(lines)
                if shown:
                    await batch.finish(slice(0, shown))
                if batch.unanswered_count:
                    await batch.requeue(backoff=False)
                if not self._left:
                    self._take_no_more()

    def _shown(self, batch: Batch, count: int) -> list[bytes]:
        """Return the first bodies of a batch, behind their properties where those are wanted."""
        bodies = batch.bodies[:count]
        if not self._options.print_properties:
            return bodies
        texts = [json_line(each.to_json()) for each in batch.properties[:count]]
        return [each.encode() + b" " + body for each, body in zip(texts, bodies, strict=True)]


DESCRIPTION = "Show the messages of topics as they come; takes the flags of nsq_tail."


def main(argv: Sequence[str]) -> int:
    """Show messages; the result is the exit code of the process."""
    options = tool.options("tail", DESCRIPTION, TailOptions, argv)
    tail = Tail(options, sys.stdout.fileno())
    return tool.run(tail.run, tail.stop)
