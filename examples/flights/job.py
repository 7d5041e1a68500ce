"""The main job, from the start of the broker to the account.

No other module knows of the kill: producer, consumers and archive run as they always do.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from examples.flights.account import DemoTotals
from examples.flights.archiving import ArchiveContents, Archiving
from examples.flights.board import DemoBoard, DemoFailed
from examples.flights.broker import DemoBroker, verify
from examples.flights.flights import Flights
from examples.flights.handling import CHANNEL, TOPIC, DemoHandling
from examples.flights.place import DemoFolder
from examples.flights.publishing import DemoPublishing
from martlet.client import ClientError

ARCHIVE_CHANNEL = "archive"
_LEAD = 0.1
"""How far the producer may be ahead of the consumers, as a part of all flights."""
_ARCHIVE_LEAD = 0.4
"""The same for the archive, which does not write a little at a time."""


@dataclass
class _Seen:
    """The results so far."""

    kills: int = 0
    stored: int | None = None
    left: int | None = None
    found: ArchiveContents | None = None


class DemoJob:
    """One run.

    Args:
        place: where.
        board: where to show how far it is.
        flights: how many, None for all.
        rate: how many are published a second at most.
    """

    def __init__(
        self, place: DemoFolder, board: DemoBoard, flights: int | None, rate: float
    ) -> None:
        self._place = place
        self._board = board
        self._count = flights
        self._rate = rate
        self._seen = _Seen()

    async def run(self) -> DemoTotals:
        """Do it all.

        Raises:
            DemoFailed: it did not even begin. What goes wrong later is in the account.
        """
        place, board, seen = self._place, self._board, self._seen
        troubles: list[str] = []
        async with AsyncExitStack() as stack:
            broker = await stack.enter_async_context(DemoBroker(place.data))
            stack.callback(lambda: place.broker_log.write_text(broker.process.log()))
            board.say(
                f"broker: process {broker.process.process_id}, on {broker.process.tcp_address}"
                f" (HTTP on {broker.process.http_address})"
            )
            # The archive reads it, and makes nothing but its channel.
            await broker.make_topic(TOPIC)
            archiving = await stack.enter_async_context(
                Archiving(broker.process.http_address, place)
            )
            board.say("archive: Spark is starting, in a process of its own")
            flights = await asyncio.to_thread(Flights.load, self._count)
            board.say(f"source: {flights.count:,} flights read")
            handling = DemoHandling(broker.process.tcp_address, flights.count)
            publishing = DemoPublishing(
                broker.process.tcp_address,
                flights.messages,
                self._rate,
                {handling.finished: _LEAD, archiving.rows: _ARCHIVE_LEAD},
            )
            try:
                async with asyncio.TaskGroup() as group:
                    watch = [
                        group.create_task(archiving.follow()),
                        group.create_task(board.run()),
                    ]
                    await self._work(broker, archiving, publishing, handling)
                    for task in watch:
                        task.cancel()
            except* (DemoFailed, ClientError) as errors:
                troubles += [str(error) for error in _leaves(errors)]
        log = await verify(place.data)
        return DemoTotals(
            answered=bytes(publishing.answered),
            done=handling.done,
            published=publishing.published,
            stored=seen.stored,
            deliveries=handling.deliveries,
            failures=handling.failures,
            left=seen.left,
            found=seen.found,
            source=flights.report,
            handled=handling.report(),
            log=log,
            kills=seen.kills,
            troubles=tuple(troubles),
        )

    async def _work(
        self,
        broker: DemoBroker,
        archiving: Archiving,
        publishing: DemoPublishing,
        handling: DemoHandling,
    ) -> None:
        board, seen, total = self._board, self._seen, handling.count
        # The archive's channel keeps at the broker what Spark has not read; then all may begin.
        await broker.settle(TOPIC, ARCHIVE_CHANNEL)
        board.say("archive: the query is running; publishing begins")
        board.add("acknowledged", total, publishing.acknowledged)
        board.add("finished", total, handling.finished)
        board.add("archived", total, archiving.rows)
        async with handling, asyncio.TaskGroup() as group:
            group.create_task(handling.run())
            group.create_task(self._kill(broker, archiving, publishing, handling))
            await publishing.run()
            board.say(f"every one of {total:,} flights was answered OK")
            await handling.finished.reach(total)
            stored = seen.stored = await broker.stored(TOPIC)
            seen.left = await broker.settle(TOPIC, CHANNEL)
            handling.stop()
        board.say(f"every flight is finished, and the channel {CHANNEL} is empty")
        seen.found = await archiving.finish(total, stored)
        board.say("the archive is complete, and Spark has made its report")

    async def _kill(
        self,
        broker: DemoBroker,
        archiving: Archiving,
        publishing: DemoPublishing,
        handling: DemoHandling,
    ) -> None:
        """Kill the broker once half of the flights are acknowledged."""
        acknowledged = publishing.acknowledged
        await acknowledged.reach((handling.count + 1) // 2)
        on_the_way = publishing.published - acknowledged.count
        counts = (
            f"{acknowledged.count:,} flights acknowledged and {on_the_way:,} on their way,"
            f" {handling.finished.count:,} finished, {archiving.rows.count:,} archived"
        )
        killed_s = self._board.seconds
        await broker.kill()
        self._seen.kills += 1
        self._board.say(f"broker: killed with SIGKILL, with {counts}")
        await broker.restart()
        self._board.say(
            f"broker: process {broker.process.process_id} listens on the same ports and folder,"
            f" {self._board.seconds - killed_s:.2f} s after the kill"
        )


def _leaves(errors: BaseExceptionGroup[Exception]) -> list[Exception]:
    leaves: list[Exception] = []
    for error in errors.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
