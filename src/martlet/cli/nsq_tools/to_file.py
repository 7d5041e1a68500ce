"""``martlet to-file``: write the messages of topics to files.

Messages are finished after they were flushed to disk: at the maximum in flight, or when no more
arrive for a moment. So none is lost whenever this or the broker ends; one may be written twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from martlet.cli import start, tool
from martlet.cli.nsq_tools.output_file import Output, OutputOptions
from martlet.cli.nsq_tools.source import Pipe, SourceOptions
from martlet.client import Batch
from martlet.client.transport.discovery import KnownTopics
from martlet.names import BadPattern, compile_pattern
from martlet.options.flag import OptionError, option
from martlet.options.network import connect_timeout, request_timeout
from martlet.text import MINUTE_NS


@dataclass(frozen=True, kw_only=True)
class _TopicsOptions(SourceOptions):
    """The topics of ``martlet to-file``."""

    channel: str = option("nsq_to_file", "the channel")
    topic_pattern: str = option(
        "",
        "a regular expression in RE2's syntax, as Go's: every topic that lookup daemons know and"
        " whose name holds a match",
    )
    topic_refresh_ns: int = option(
        MINUTE_NS, "the interval of polls of lookup daemons for topics", limits=(1, None)
    )
    connect_timeout_ns: int = connect_timeout("the timeout of connecting to a lookup daemon")
    request_timeout_ns: int = request_timeout(
        "the timeout of a request to a lookup daemon for topics"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics and not self.topic_pattern:
            raise OptionError("name topics with --topic or --topic-pattern")
        if self.topic_pattern and not self.lookupd_http_addresses:
            raise OptionError("--topic-pattern needs a --lookup")
        try:
            compile_pattern(self.topic_pattern)
        except BadPattern as error:
            raise OptionError(f"--topic-pattern={self.topic_pattern}: {error}") from None
        if not self.channel:
            raise OptionError("--channel needs a name")


@dataclass(frozen=True, kw_only=True)
class FileOptions(OutputOptions, _TopicsOptions):
    """The options of ``martlet to-file``."""


log = logging.getLogger(__name__)


class TopicFile:
    """The file of one topic."""

    def __init__(self, options: FileOptions, topic: str) -> None:
        self._options = options
        self._where = f"[{topic}/{options.channel}]"
        self._output = Output(options, topic, log=lambda text: log.info("%s %s", self._where, text))
        self._lock = asyncio.Lock()
        """Serialises writes, flushes and rotations of the file."""

    def close(self) -> None:
        """Close it: nothing else uses it any more."""
        self._output.close()

    async def reopen(self) -> None:
        """Close the file, as on SIGHUP."""
        async with self._lock:
            self._output.close()

    async def write(self, bodies: Sequence[bytes]) -> None:
        """Write messages, and flush them."""
        async with self._lock:
            self._output.write(b"\n".join(bodies) + b"\n")
            await self._sync()
        log.debug("%s %d records are on disk", self._where, len(bodies))

    async def _sync(self) -> None:
        """Flush the file in a thread, and wait for it even if cancelled, since the file is closed
        next.
        """
        syncing = asyncio.create_task(asyncio.to_thread(self._output.sync))
        try:
            await asyncio.shield(syncing)
        except asyncio.CancelledError:
            await asyncio.wait([syncing])
            raise

    async def rotate(self) -> None:
        """Rotate files in time even if no message arrives, until cancelled."""
        while True:
            await asyncio.sleep(self._options.sync_interval_ns / 1e9)
            async with self._lock:
                if self._output.is_due:
                    if self._options.skip_empty_files:
                        self._output.close()
                    else:
                        self._output.begin()


class ToFile(Pipe):
    """Write all topics, including later ones."""

    max_wait_ms = 100  # Messages wait for others before they are flushed and finished.

    def __init__(self, options: FileOptions) -> None:
        super().__init__(self._write, "to-file", options, options.channel)
        self.max_messages = options.max_in_flight
        self._options = options
        self._files: dict[str, TopicFile] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Write, as `Pipe.run`. Raises OSError if a file cannot be written."""
        async with asyncio.TaskGroup() as group:
            self._begin(group, self._consumers, self._follow)
            if self._options.topic_pattern:
                group.create_task(self._discover(group))

    def stop(self) -> None:
        """Take no more messages; `run` returns when those received are done."""
        self._stopping.set()
        super().stop()

    async def reopen(self) -> None:
        """Close all files, and begin others with the next messages."""
        await asyncio.gather(*(file.reopen() for file in self._files.values()))

    async def _follow(self, topic: str) -> None:
        file = self._files[topic] = TopicFile(self._options, topic)
        try:
            async with asyncio.TaskGroup() as group:
                rotating = group.create_task(file.rotate())
                await super()._follow(topic)
                rotating.cancel()
        finally:
            file.close()

    async def _write(self, topic: str, batch: Batch) -> NDArray[np.bool_]:
        await self._files[topic].write(batch.bodies)
        return np.ones(len(batch), np.bool_)

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        options = self._options
        pattern = compile_pattern(options.topic_pattern)
        known_topics = KnownTopics(
            options.lookupd_http_addresses,
            connect_s=options.connect_timeout_ns / 1e9,
            answer_s=options.request_timeout_ns / 1e9,
        )
        while not self._stopping.is_set():
            began_s = time.monotonic()
            topics = await known_topics.poll()
            if self._stopping.is_set():
                return  # Nothing would stop a writer that is started now.
            new = self._add(filter(pattern.search, topics))
            self._begin(group, new, self._follow)
            rest_s = options.topic_refresh_ns / 1e9 - (time.monotonic() - began_s)
            try:
                async with asyncio.timeout(max(0.0, rest_s)):
                    await self._stopping.wait()
            except TimeoutError:
                continue


DESCRIPTION = (
    "Write the messages of topics to files, a line each, and finish them once they are on disk;"
    " takes the flags of nsq_to_file. SIGHUP closes the files and begins others."
)


def main(argv: Sequence[str]) -> int:
    """Write files; return the exit code of the process."""
    options = tool.options("to-file", DESCRIPTION, FileOptions, argv)
    try:
        options.make_folders()
    except OptionError as error:
        log.critical("%s", error)
        return start.WRONG
    writer = tool.made(lambda: ToFile(options))
    reopening: set[asyncio.Task[None]] = set()

    def reopen() -> None:
        task = asyncio.ensure_future(writer.reopen())
        reopening.add(task)
        task.add_done_callback(reopening.discard)

    return tool.run(writer.run, writer.stop, SIGHUP=reopen)
