"""``martlet pub``: publish a pipe or files, a message for each line.

Each broker that ``--nsqd-tcp-address`` names gets every message, as from to_nsq; of those that
``--address`` names, one gets each.

Input is published in batches of all that is available; reading waits while the broker has more than
a few batches unanswered. The command ends when everything is stored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from binascii import a2b_base64
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from threading import Thread

from martlet.cli import progress, tool
from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    producer_settings,
    without_effect,
)
from martlet.cli.nsq_tools.source import tcp_addresses
from martlet.client import Producer
from martlet.client.errors import ClientError
from martlet.client.names import check_name
from martlet.options.addresses import address_option, default_of
from martlet.options.checks import require_addresses, require_names
from martlet.options.flag import Flag, OptionError, option
from martlet.options.options import LogOptions
from martlet.text import SECOND_NS, counted


@dataclass(frozen=True, kw_only=True)
class PublishOptions(LogOptions):
    """The options of ``martlet pub``."""

    topic: str = option("", "the topic to publish to", section="messages")
    nsqd_http_addresses: tuple[str, ...] = address_option(
        description="<addr>:<port> of a broker's HTTP; of several, one gets each message"
    )
    nsqd_tcp_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker's NSQ protocol, in place of --address; may be given several"
        " times: each gets every message",
        name="nsqd-tcp-address",
    )
    delimiter: str = option("\n", "the character that ends each message of the input")
    dead_letters: bool = option(
        False,
        "read the files that an earlier version wrote to --dead-letter-path on a full disk:"
        " lines of JSON",
    )
    timeout_ns: int = option(
        10 * SECOND_NS, "the maximum time for which a broker may be unreachable", limits=(1, None)
    )
    rate: int = option(0, "maximum messages a second; 0: no limit", limits=(0, None))
    producer_opts: tuple[str, ...] = option(
        (),
        "KEY,VALUE: TLS, compression, AUTH and more, named as in NSQ's Go client; may be given"
        " several times, and an unknown key lists all",
        name="producer-opt",
    )

    @property
    def client(self) -> ClientOptions:
        """The options that ``--producer-opt`` sets."""
        return client_options("producer-opt", self.producer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """List options without effect, as `Options` does."""
        return super().without_effect() + without_effect("producer-opt", self.client)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.client
        if not self.topic:
            raise OptionError("--topic is missing: name the topic to publish to")
        if not (self.nsqd_tcp_addresses or self.nsqd_http_addresses):
            object.__setattr__(self, "nsqd_http_addresses", default_of("address"))
        if bool(self.nsqd_tcp_addresses) == bool(self.nsqd_http_addresses):
            raise OptionError(
                "name the broker to publish to, either with --address=HOST:4151 or with"
                " --nsqd-tcp-address=HOST:4150, or once for all commands with: martlet config set"
                " address HOST:4151"
            )
        require_names("topic", [self.topic])
        require_addresses("--nsqd-tcp-address", self.nsqd_tcp_addresses)
        if len(self.delimiter.encode()) != 1:
            raise OptionError(f"--delimiter={self.delimiter!r} must be one byte")


def body_of(line: bytes) -> bytes:
    """Read the body from a line of dead letters. Raises ClientError if it is none."""
    try:
        return a2b_base64(json.loads(line)["body_base64"], strict_mode=True)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClientError(f"{line[:60]!r} is no line of dead letters: {error}") from None


_READ_BYTES = 1 << 18
_FLYING = 8
"""The maximum number of batches in flight."""


class PublishTool:
    """Publish files."""

    def __init__(
        self,
        options: PublishOptions,
        on_stored: Callable[[int], None] = lambda size_bytes: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._on_stored = on_stored
        self._clock = clock
        self._delimiter = b"\n" if options.dead_letters else options.delimiter.encode()
        self.count = 0
        """The number of messages stored."""

    async def run(self, files: Iterable[FileIO]) -> int:
        """Publish the content of files, and return the number of messages. Raises ClientError: the
        broker refuses it, or is unreachable.
        """
        check_name(self._options.topic, "topic")
        flying = asyncio.Semaphore(_FLYING)
        settings = producer_settings(self._options.client)
        targets: list[str | tuple[str, ...]] = list(dict.fromkeys(self._options.nsqd_tcp_addresses))
        if self._options.nsqd_http_addresses:
            targets = [tcp_addresses(self._options.nsqd_http_addresses)]
        async with AsyncExitStack() as connected:
            producers = [
                await connected.enter_async_context(
                    Producer(address, timeout_s=self._options.timeout_ns / 1e9, **settings)
                )
                for address in targets
            ]
            async with asyncio.TaskGroup() as group:
                async for bodies in self._paced(files):
                    await flying.acquire()
                    group.create_task(self._send(producers, bodies, flying))
        return self.count

    async def _send(
        self, producers: list[Producer], bodies: list[bytes], flying: asyncio.Semaphore
    ) -> None:
        topic = self._options.topic
        try:
            await asyncio.gather(*(producer.publish_many(topic, bodies) for producer in producers))
        finally:
            flying.release()
        self.count += len(bodies)
        self._on_stored(sum(map(len, bodies)) + len(bodies) * len(self._delimiter))

    async def _paced(self, files: Iterable[FileIO]) -> AsyncIterator[list[bytes]]:
        """Yield messages at the allowed rate."""
        rate = self._options.rate
        sent, began_s = 0, self._clock()
        async for bodies in self._messages(files):
            if not rate:
                yield bodies
                continue
            max_count = max(1, rate // 10)
            for at in range(0, len(bodies), max_count):
                some = bodies[at : at + max_count]
                await asyncio.sleep(max(0.0, began_s + sent / rate - self._clock()))
                sent += len(some)
                yield some

    async def _messages(self, files: Iterable[FileIO]) -> AsyncIterator[list[bytes]]:
        """Split input into messages; skip empty ones, which NSQ does not have."""
        unpack: Callable[[bytes], bytes] = body_of if self._options.dead_letters else bytes
        for file in files:
            rest = b""
            async for data in _pieces(file):
                *lines, rest = (rest + data).split(self._delimiter)
                if bodies := [body for body in map(unpack, filter(None, lines)) if body]:
                    yield bodies
            if rest:
                yield [unpack(rest)]


async def _pieces(file: FileIO) -> AsyncIterator[bytes]:
    """Yield input, piece by piece.

    A thread reads, and nothing waits for its end: a pipe may stay silent for ever. The file is
    unbuffered: the thread would hold the buffer's lock, and Python crashes at exit if it is held.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue(1)

    def hand(piece: bytes | OSError) -> bytes | OSError:
        asyncio.run_coroutine_threadsafe(pieces.put(piece), loop).result()
        return piece

    def reader() -> None:
        with suppress(CancelledError, RuntimeError):  # the loop has ended
            try:
                while hand(file.read(_READ_BYTES)):
                    pass
            except OSError as error:
                hand(error)

    Thread(target=reader, name="martlet pub", daemon=True).start()
    while piece := await pieces.get():
        if isinstance(piece, OSError):
            raise piece
        yield piece


DESCRIPTION = (
    "Publish standard input, or the files named after the flags, a message for each line, and show"
    " the progress of files; takes the flags of to_nsq."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Publish; return the exit code of the process."""
    words, paths = tool.split(PublishOptions, argv)
    options = tool.options("pub", DESCRIPTION, PublishOptions, words, "[FILE ...]")
    with ExitStack() as opened:
        files: list[FileIO] = []
        for path in paths:
            try:
                files.append(opened.enter_context(open(path, "rb", buffering=0)))
            except OSError as error:
                missing = isinstance(error, FileNotFoundError)
                why = "it does not exist" if missing else error.strerror
                log.critical("cannot read the file %s: %s", path, why)
                return 1
        publish = PublishTool(options)
        total_bytes = sum(os.fstat(file.fileno()).st_size for file in files)
        if total_bytes and not options.dead_letters:
            shown = opened.enter_context(progress.shown("publishing", total_bytes))
            publish = PublishTool(options, shown)
        if not files:
            files.append(opened.enter_context(FileIO(sys.stdin.fileno(), closefd=False)))
        return _run(publish, files)


def _run(publish: PublishTool, files: list[FileIO]) -> int:
    """Return 1 also if it was stopped: not all of the input is published."""
    stopped = False

    async def work() -> None:
        nonlocal stopped
        try:
            count = await publish.run(files)
        except asyncio.CancelledError:
            stopped = True
            log.warning("stopped: stored %s", counted(publish.count, "message"))
            raise
        except BaseExceptionGroup:
            log.warning("broken off: stored at least %s", counted(publish.count, "message"))
            raise
        await tool.show([f"stored {counted(count, 'message')}"])

    return tool.run_alone(work) or int(stopped)
