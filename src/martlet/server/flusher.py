"""The disk side of a broker: flushes and checkpoints, in a thread, one at a time.

All writes made while one flush runs are covered by the next: group commit. A failed flush is final,
unless only space was missing (see `martlet.log.segmented`).

Where recent flushes were short, one that a client waits for runs in the event loop: to wake a
thread, and the loop after it, costs more than such a flush. One long flush sends the next ones
back to the thread, so that a slow disk holds up no other client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

from martlet.broker.broker import BrokerCore
from martlet.broker.errors import WritesRefused
from martlet.broker.retention.checkpoint import (
    CheckpointJob,
    begin_checkpoint,
    count_needs,
    end_some,
    history_makes_room,
    keeps_history,
    leave_spent_segment,
    makes_room,
    write_some_indexes,
)
from martlet.log.segmented import FlushJob
from martlet.log.storage import FULL
from martlet.server.observability.histogram import Histogram
from martlet.unreachable import Outage

QUICK_S = 0.0005
"""The maximum duration of recent flushes with which the next one may run in the event loop."""
MAX_QUICK_BYTES = 1 << 18
"""The maximum size of a flush in the event loop."""
RETRY_S = 1.0
"""The pause before a flush that a full disk has failed is tried again."""
_REST = 50
"""The pause before a flush that no client waits for, as a multiple of the last one's duration."""


class Flusher:
    """Run the jobs that block.

    Args:
        on_durable: called when more of the log has become durable, or has failed to.
        clock_s: measures flushes, in seconds.
    """

    def __init__(
        self,
        broker: BrokerCore,
        log: logging.Logger,
        on_durable: Callable[[], None],
        *,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._broker = broker
        self._log = log
        self._on_durable = on_durable
        self._thread = ThreadPoolExecutor(1, "martlet-disk")
        self._loop = asyncio.get_running_loop()
        self._clock_s = clock_s
        self.flushing = False
        self._flush_again = self._again_is_awaited = False
        self._ended: asyncio.Future[None] | None = None
        self._checkpointing = False
        self._outage = Outage(
            "LOG: no checkpoint can be made, and nothing of the log is removed",
            "LOG: a checkpoint is made",
            log=log,
            level=logging.ERROR,
        )
        self.checkpoint_position = -1
        """The position that the newest checkpoint covers."""
        self.flushes = Histogram()
        self.checkpoints = Histogram()
        """The durations of successful jobs."""
        self._recent_s = 0.0
        """The duration of recent flushes: the longest, fading."""
        self._last_s = 0.0
        self._rested_at = 0.0
        self._confirmed = asyncio.Event()
        self._failure: OSError | None = None
        """The error of the first failed flush."""
        self._recovery: asyncio.Task[None] | None = None

    @property
    def rested(self) -> bool:
        """Whether the disk has had a pause since the last flush, for others' use of it."""
        return not self.flushing and self._loop.time() >= self._rested_at

    def flush(self, *, is_awaited: bool = False) -> None:
        """Make durable all that is written by now; if a flush is running, another follows it.

        Args:
            is_awaited: whether a client waits for it, so that it may run in the event loop.
        """
        if self.flushing:
            self._flush_again = True
            self._again_is_awaited |= is_awaited
            return
        log = self._broker.log
        if log.failed is not None or log.durable_position >= log.position:
            return
        if is_awaited and self.is_quick:
            self.flush_in_loop()
            return
        job = log.flush_job()
        self.flushing = True
        self._flush_again = self._again_is_awaited = False
        future = self._loop.run_in_executor(self._thread, self._run, job)
        future.add_done_callback(lambda done: self._flushed(job, done.exception()))

    @property
    def is_quick(self) -> bool:
        """Whether a flush that a client waits for runs in the event loop."""
        log = self._broker.log
        small = log.position - log.durable_position <= MAX_QUICK_BYTES
        busy = self.flushing or self._checkpointing
        return small and 0 < self._recent_s <= QUICK_S and not busy

    def flush_in_loop(self) -> bool:
        """Make durable all that is written by now, in the event loop. False if that failed."""
        assert not self.flushing
        job = self._broker.log.flush_job()
        try:
            self._run(job)
        except OSError as error:
            self._flushed(job, error)
        else:
            self._flushed(job, None)
        return self._broker.log.failed is None

    async def flushed(self) -> None:
        """Flush all that is written by now, and return when a flush has ended or failed."""
        if self._ended is None:
            self._ended = self._loop.create_future()
        self.flush()
        await asyncio.shield(self._ended)

    def _flushed(self, job: FlushJob, error: BaseException | None) -> None:
        self.flushing = False
        self._rested_at = self._loop.time() + _REST * self._last_s
        if self._ended_well(error) and self._broker.log.failed is None:
            self._broker.log.flushed(job)
            self.flushes.add(self._last_s)
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.set_result(None)
        self._on_durable()
        if self._flush_again:
            self._flush_again = False
            self.flush(is_awaited=self._again_is_awaited)

    def _ended_well(self, error: BaseException | None) -> bool:
        if error is None:
            return True
        if not isinstance(error, OSError):
            raise error
        self._fail(error)
        return False

    def flush_now(self) -> bool:
        """Make durable all that is written by now, while the event loop waits. False if that
        failed.

        For a log whose only space left is not on the disk yet: it accepts messages no faster than
        the disk does.
        """
        job = self._broker.log.flush_job()
        try:
            self._thread.submit(self._run, job).result()
        except OSError as error:
            self._fail(error)
            return False
        self._broker.log.flushed(job)
        return True

    def _run(self, job: FlushJob) -> None:
        """Flush, and measure it. After a failed flush every later one fails too, without trying."""
        if self._failure is not None:
            raise self._failure
        self._measure(job)

    def _measure(self, job: FlushJob) -> None:
        began_s = self._clock_s()
        try:
            job.run()
        except OSError as error:
            self._failure = error
            raise
        finally:
            self._last_s = self._clock_s() - began_s
            self._recent_s = max(self._last_s, 0.9 * self._recent_s + 0.1 * self._last_s)

    def _fail(self, error: OSError) -> None:
        log = self._broker.log
        had_failed = log.failed is not None
        log.flush_failed(error)
        if not had_failed:
            self._log.critical("%s", log.failed)
            if log.may_recover:
                self._recovery = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        """Flush the log, and write again what is in doubt, until the disk has space for it."""
        log = self._broker.log
        while log.may_recover:
            await asyncio.sleep(RETRY_S)
            job = log.flush_job()
            try:
                await self._loop.run_in_executor(self._thread, self._measure, job)
            except OSError as error:
                self._failure = error
                log.flush_failed(error)
                if error.errno not in FULL:
                    self._log.critical("%s", log.failed)
                    return
                continue
            self._failure = None
            log.flushed(job)
            self._log.info("LOG: flushing the log succeeds again")
            self._on_durable()

    def confirmed(self) -> None:
        """With replicas: more of the log is confirmed."""
        self._confirmed.set()

    async def _until_confirmed(self, position: int) -> None:
        """Wait until replicas have the log up to a position: a checkpoint behind it would have to
        be undone by a failover.
        """
        broker = self._broker
        while broker.unconfirmed is not None and broker.confirmed_position < position:
            self._confirmed.clear()
            await self._confirmed.wait()

    async def find_room(self) -> bool:
        """Return whether a checkpoint would release history, if it records no other change."""
        if not keeps_history(self._broker):
            return False
        for _ in count_needs(self._broker):
            await asyncio.sleep(0)
        try:
            return history_makes_room(self._broker)
        except OSError:
            return False

    async def free_room(self) -> None:
        """Make a checkpoint for a full log if that releases a segment but the current one."""
        for _ in count_needs(self._broker):
            await asyncio.sleep(0)
        try:
            if makes_room(self._broker) or leave_spent_segment(self._broker):
                await self.checkpoint()
        except (OSError, WritesRefused) as error:
            self._outage.failed(str(error))

    async def checkpoint(self) -> bool:
        """Save the broker's state and release unneeded segments. False if that failed."""
        log = self._broker.log
        if self._checkpointing or log.failed is not None:
            return False
        self._checkpointing = True
        began = self._loop.time()
        try:
            for _ in chain(write_some_indexes(self._broker), count_needs(self._broker)):
                await asyncio.sleep(0)
            job = begin_checkpoint(self._broker)
            done = await self._run_checkpoint(job)
            if done:
                self._outage.over()
                self.checkpoints.add(self._loop.time() - began)
            return done
        except OSError as error:
            self._outage.failed(str(error))
            return False
        finally:
            self._checkpointing = False

    async def _run_checkpoint(self, job: CheckpointJob) -> bool:
        try:
            await self._loop.run_in_executor(self._thread, self._run, job.flush)
        except OSError as error:
            self._fail(error)
            self._on_durable()
            return False
        if self._broker.log.failed is not None:
            return False
        # Released before the state is saved, so that no flush that begins meanwhile holds one of
        # them.
        self._broker.log.flushed(job.flush)
        self._on_durable()
        await self._until_confirmed(job.flush.position)
        await self._loop.run_in_executor(self._thread, job.save)
        self.checkpoint_position = job.flush.position
        if job.forced:
            self._log.warning(
                "LOG: the disk is %.1f %% full: %d segments of %d bytes with finished messages go"
                " before their retention ends (--disk-force-percent)",
                job.fill.percent,
                len(job.forced),
                sum(segment.capacity for segment in job.forced),
            )
        try:
            for _ in end_some(self._broker, job):
                await asyncio.sleep(0)
        except WritesRefused as error:
            self._log.warning(
                "LOG: a segment could not be cleaned, since its needed records fit nowhere else:"
                " %s. Free disk space, lower --min-free-bytes for a while, or raise"
                " --max-disk-bytes",
                error,
            )
        self._on_durable()
        return True

    def close(self) -> None:
        """Wait for the thread to end."""
        if self._recovery is not None:
            self._recovery.cancel()
        self._thread.shutdown()
