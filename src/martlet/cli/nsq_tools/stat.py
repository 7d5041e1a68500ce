"""``martlet stat``: show brokers' counts as they change.

::

    ------rate------+----------------depth----------------+--------------metadata---------------
    ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients
        512     498 |     140       0     140    20     0 |       3       1        90214       4

A line has nsq_stat's layout, for scripts; a terminal gets a table of all channels. Messages in and
out are shown per second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from operator import itemgetter
from typing import TYPE_CHECKING

from martlet.cli import start, tool
from martlet.cli.broker_http import BrokerHttpOptions
from martlet.cli.standard_output import StandardOutput
from martlet.client.admin import Admin, AdminError, ChannelCounts, TopicStats
from martlet.options.flag import OptionError, option
from martlet.schema.counts import CHANNEL_COUNTS
from martlet.text import SECOND_NS

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class StatOptions(BrokerHttpOptions):
    """The options of ``martlet stat``."""

    topic: str = option("", "only this topic (default: every topic)", section="selection")
    channel: str = option("", "only this channel of it (default: every channel)")
    interval_ns: int = option(
        2 * SECOND_NS, "the interval of requests to the brokers", limits=(1, None), section="output"
    )
    count: int = option(0, "print this many lines and exit; 0: no limit", limits=(0, None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.channel and not self.topic:
            raise OptionError("the topic of the channel is missing: add --topic")


COLUMNS = sorted(
    (count for count in CHANNEL_COUNTS if count.column),
    key=lambda count: count.name in ("message_count", "client_count"),
)
"""The columns of the table; what does not concern trouble comes last."""
HEAD_EVERY = 25
HEAD = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    f"{'ingress':>7} {'egress':>7} | {'total':>7} {'mem':>7} {'disk':>7} {'inflt':>5} {'def':>5}"
    f" | {'req':>7} {'t-o':>7} {'msgs':>12} {'clients':>7}"
)


@dataclass(frozen=True)
class Poll:
    """The counts of all brokers at one moment."""

    at_s: float
    """The time, in seconds of any clock."""
    channels: dict[tuple[str, str], ChannelCounts]
    """By topic and channel; the channel of a topic itself is empty."""
    paused: frozenset[tuple[str, str]]
    """Those of them that are paused at some broker."""
    failed: list[str]
    """The brokers that did not answer, and why."""


async def polls(options: StatOptions) -> AsyncGenerator[Poll]:
    """Request brokers' counts; yield them each interval. Raises AdminError: no broker was found or
    answered at first; later failures are in the counts.
    """
    async with options.admin() as admin:
        next_s = time.monotonic()
        poll: Poll | None = None
        while True:
            try:
                poll = await _poll(admin, options)
            except AdminError as error:
                if poll is None:
                    raise
                poll = Poll(time.monotonic(), {}, frozenset(), [str(error)])
            yield poll
            next_s = max(next_s + options.interval_ns / SECOND_NS, time.monotonic())
            await asyncio.sleep(next_s - time.monotonic())


async def _poll(admin: Admin, options: StatOptions) -> Poll:
    answers = await admin.topics.list(options.topic, options.channel)
    counts = answers.map(_entries)
    return Poll(
        time.monotonic(),
        counts.added(itemgetter(0), itemgetter(1)),
        frozenset(name for name, _, is_paused in counts.joined() if is_paused),
        [str(error) for error in answers.errors.values()],
    )


def _entries(topics: Iterable[TopicStats]) -> list[tuple[tuple[str, str], ChannelCounts, bool]]:
    """The channels, and the topics that have none, of a broker."""
    entries = []
    for topic in topics:
        waiting = ChannelCounts(
            depth=topic.depth,
            backend_depth=topic.backend_depth,
            message_count=topic.message_count,
        )
        if waiting.depth or not topic.channels:
            entries.append(((topic.topic, ""), waiting, topic.is_paused))
        entries += [
            ((topic.topic, channel.channel), channel.counts, channel.is_paused)
            for channel in topic.channels
        ]
    return entries


def rates(before: ChannelCounts, after: ChannelCounts, seconds: float) -> tuple[int, int]:
    """Return the messages that came in and went out, per second."""
    came = after.message_count - before.message_count
    return int(came / seconds), int((came - (after.depth - before.depth)) / seconds)


def line(before: ChannelCounts, after: ChannelCounts, seconds: float) -> str:
    """A channel's line, as nsq_stat's."""
    ingress, egress = rates(before, after, seconds)
    return (
        f"{ingress:7d} {egress:7d} | {after.depth:7d} {after.depth - after.backend_depth:7d}"
        f" {after.backend_depth:7d} {after.in_flight_count:5d} {after.deferred_count:5d} |"
        f" {after.requeue_count:7d} {after.timeout_count:7d} {after.message_count:12d}"
        f" {after.client_count:7d}"
    )


def table(before: Poll | None, now: Poll) -> Table:
    """Format all channels as a table."""
    from rich.table import Table

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("topic", "channel"):
        shown.add_column(title, no_wrap=True)
    for title in ("in/s", "out/s", *(count.column for count in COLUMNS)):
        shown.add_column(title, justify="right", no_wrap=True)
    for name, counts in sorted(now.channels.items()):
        earlier = before.channels.get(name) if before is not None else None
        per_second = ["", ""]
        if before is not None and earlier is not None:
            per_second = [str(rate) for rate in rates(earlier, counts, now.at_s - before.at_s)]
        topic, channel = name
        mark = " (paused)" if name in now.paused else ""
        shown.add_row(
            topic,
            (channel or "(none yet)") + mark,
            *per_second,
            *(str(getattr(counts, column.name)) for column in COLUMNS),
        )
    if now.failed:
        shown.caption = "\n".join(now.failed)
    return shown


DESCRIPTION = (
    "Show the counts of brokers, added up, as they change: at a terminal a table of all channels;"
    " with --count, or into a pipe, a line each --interval of one channel, in nsq_stat's layout."
    " Takes the flags of nsq_stat."
)
log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Show counts; return the exit code of the process."""
    options = tool.options("stat", DESCRIPTION, StatOptions, argv)
    if options.count or not sys.stdout.isatty() or find_spec("rich") is None:
        if not options.channel:
            what = "--count" if options.count else "output without a table"
            log.critical("%s prints one channel: add --topic and --channel", what)
            return start.WRONG
        return tool.run_alone(lambda: print_lines(options))
    return tool.run_alone(lambda: show_table(options))


async def print_lines(options: StatOptions) -> None:
    """Print a line for each interval. Raises AdminError where a broker does not answer."""
    name = (options.topic, options.channel)
    before: Poll | None = None
    number = 0
    output = StandardOutput()
    async with aclosing(polls(options)) as all_polls:
        async for poll in all_polls:
            if poll.failed:
                raise AdminError("not every broker answers", "; ".join(poll.failed))
            if name not in poll.channels:
                raise AdminError(
                    f"topic {options.topic}", f"no broker has its channel {options.channel}"
                )
            if number % HEAD_EVERY == 0:
                await output.show([f"{HEAD}\n".encode()])
            if before is not None:
                seconds = poll.at_s - before.at_s
                text = line(before.channels[name], poll.channels[name], seconds)
                await output.show([f"{text}\n".encode()])
            if number and number == options.count:
                return
            before = poll
            number += 1


async def show_table(options: StatOptions) -> None:
    """Keep a table on the screen. Raises AdminError where no broker answers at first."""
    from rich.console import Console
    from rich.live import Live

    screen = StringIO()
    output = StandardOutput()

    async def draw() -> None:
        text = screen.getvalue()
        screen.seek(0)
        screen.truncate()
        await output.show([text.encode()])

    before: Poll | None = None
    console = Console(file=screen, force_terminal=True)
    try:
        with Live(console=console, auto_refresh=False) as live:
            async with aclosing(polls(options)) as all_polls:
                async for poll in all_polls:
                    live.update(table(before, poll), refresh=True)
                    await draw()
                    before = poll
    finally:
        output.stop()
        await draw()  # the end of it, with the cursor
