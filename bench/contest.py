"""Contestants in turns, and the table of their medians."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.stopwatch import Stopwatch
from martlet.client import Consumer, Message, PullConsumer, PulledMessage


@dataclass(frozen=True)
class Run:
    """One run of one client."""

    messages: int
    seconds: float
    processor_s: float

    @classmethod
    def of(cls, messages: int, watch: Stopwatch) -> Run:
        """A run that ends now."""
        result = watch.result()
        return cls(messages, result["seconds"], result["processor_s"])

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def processor_us(self) -> float:
        """The microseconds of the client's processor a message."""
        return self.processor_s / self.messages * 1e6


@dataclass(frozen=True)
class Contest:
    """One kind of work, done by several.

    Attributes:
        title: the work.
        contestants: by name a function that does the run of a number, from 0, or raises SystemExit.
        first: the one that the others are compared with.
        beside: the heading of that column.
    """

    title: str
    contestants: Mapping[str, Callable[[int], Run]]
    first: str = "martlet"
    beside: str = "martlet is"

    def take_turns(self, repeat: int) -> dict[str, list[Run]]:
        """Let each do its run, `repeat` times."""
        runs: dict[str, list[Run]] = {name: [] for name in self.contestants}
        for number in range(repeat):
            for name, contestant in self.contestants.items():
                run = contestant(number)
                runs[name].append(run)
                print(f"{self.title}, {name}: {run.rate:,.0f} msg/s", file=sys.stderr)
        return runs

    def hold(self, repeat: int) -> dict[str, list[Run]]:
        """Take turns, and print the table."""
        runs = self.take_turns(repeat)
        Console().print(self.table(runs))
        return runs

    def table(self, runs: Mapping[str, list[Run]]) -> Table:
        """The medians."""
        table = Table(title=self.title)
        for heading in ("client", "msg/s, median", "processor us a message", self.beside):
            is_name = heading == "client"
            table.add_column(heading, justify="left" if is_name else "right", no_wrap=is_name)
        rates = {name: statistics.median(run.rate for run in done) for name, done in runs.items()}
        for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
            processor_us = statistics.median(run.processor_us for run in runs[name])
            ratio = f"{rates[self.first] / rate:.2f} x" if self.first in rates else ""
            table.add_row(name, f"{rate:,.0f}", f"{processor_us:.2f}", ratio)
        return table


async def by_handler(consumer: Consumer | PullConsumer, messages: int, body_bytes: int) -> Run:
    """Handle each message once."""
    left = messages
    done = asyncio.Event()

    def take(message: Message | PulledMessage) -> None:
        nonlocal left
        assert len(message.body) == body_bytes
        left -= 1
        if not left:
            done.set()

    watch = Stopwatch()
    async with consumer:
        task = asyncio.create_task(consumer.run(take))
        await done.wait()
        if isinstance(consumer, PullConsumer):
            await consumer.commit()
        run = Run.of(messages, watch)
    await task
    return run


async def by_batches(
    consumer: Consumer | PullConsumer, messages: int, body_bytes: int, batch: int
) -> Run:
    """Take the messages in batches, each finished at once."""
    left = messages
    watch = Stopwatch()
    async with consumer:
        async for each in consumer.batches(max_messages=batch):
            assert all(len(body) == body_bytes for body in each.bodies)
            left -= len(each.bodies)
            finishing = each.finish()
            if finishing is not None:
                await finishing
            if not left:
                break
        if isinstance(consumer, PullConsumer):
            await consumer.commit()
        return Run.of(messages, watch)
