"""Tail: shows the messages of topics as they come.

Without a channel of its own choosing it makes an ephemeral one, which goes when it ends: it sees
what is published from now on, and takes nothing from anybody.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import BinaryIO

from martlet.client import Consumer
from martlet.options.tools import TailOptions


class Tail:
    """Shows messages.

    Args:
        options: as the flags give them.
        output: where they are shown.
    """

    def __init__(self, options: TailOptions, output: BinaryIO) -> None:
        self._options = options
        self._output = output
        self._left = options.count or sys.maxsize
        own = f"tail-{socket.gethostname()[:20]}-{os.getpid()}#ephemeral"
        self._consumers = {
            topic: Consumer(
                topic,
                options.channel or own,
                options.nsqd_tcp_addresses or None,
                lookup=options.lookupd_http_addresses or None,
                max_in_flight=self._share(options),
            )
            for topic in dict.fromkeys(options.topics)
        }

    @staticmethod
    def _share(options: TailOptions) -> int:
        """No more than will be shown, so that the rest stays where it is."""
        return min(options.max_in_flight, options.count or options.max_in_flight)

    async def run(self) -> None:
        """Show messages until there were enough, or it is stopped."""
        async with asyncio.TaskGroup() as group:
            for topic, consumer in self._consumers.items():
                group.create_task(self._follow(topic, consumer), name=f"martlet tail {topic}")

    def stop(self) -> None:
        """Show no more."""
        for consumer in self._consumers.values():
            consumer.stop()

    async def _follow(self, topic: str, consumer: Consumer) -> None:
        head = f"{topic} ".encode() if self._options.print_topic else b""
        async with consumer:
            async for batch in consumer.batches():
                shown = min(self._left, len(batch))
                lines = (head + body + b"\n" for body in batch.bodies[:shown])
                self._output.write(b"".join(lines))
                self._output.flush()
                if shown:
                    await batch.finish(slice(0, shown))
                if batch.unanswered_count:
                    await batch.requeue()
                self._left -= shown
                if not self._left:
                    self.stop()
