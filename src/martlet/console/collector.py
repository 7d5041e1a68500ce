"""Asks brokers for their counts, once for all tabs.

While a page is open brokers are asked every ``--poll-interval``, else every 15 s, for the history.
Where an answer takes long the pause grows with it: polling must not cost a broker more than a tenth
of its time. A hung broker is reported soon: its time limit follows the last answer times. It does
not lengthen the interval.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable

from martlet.client.admin import AdminError, Answers, NodeStats
from martlet.console.cluster import ClusterView, merge, without_answers
from martlet.console.history import CountHistory, Rates

IDLE_INTERVAL_S = 15.0
_LIMIT_S = 2.5
"""The time that a broker has for an answer, where all answered in time before."""
_SLOWER = 3
"""The time limit, as a multiple of the slowest answer in the previous poll, if that is more."""
_MAX_SHARE = 0.1
"""The part of the time that brokers may spend on answers."""


class Collector:
    """Asks brokers, and keeps what they said.

    Args:
        poll: asks all brokers, with a time limit in seconds for each; raises AdminError where none
            answers.
        interval_s: how often while a page is open.
        log: the destination of log lines.
        max_limit_s: the time limit of the first poll, and of one after a broker was late.
    """

    def __init__(
        self,
        poll: Callable[[float], Awaitable[Answers[NodeStats]]],
        interval_s: float,
        log: logging.Logger,
        max_limit_s: float = 5.0,
    ) -> None:
        self._poll = poll
        self._interval_s = interval_s
        self._log = log
        self._max_limit_s = max_limit_s
        self._was_late = True
        self.view = ClusterView()
        self.history = CountHistory()
        self._rates = Rates()
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._began_s = 0.0
        """When the newest poll began, by the monotonic clock."""
        self._acted_s = 0.0
        """When a user last changed something, by the monotonic clock."""
        self._moved_s = 0.0
        """The same of what may have changed which broker has what."""
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Ask brokers, until it is cancelled."""
        while True:
            self._wake.clear()
            self._hurry.clear()
            began_s = time.monotonic()
            try:
                self.view = await self._take()
            except Exception as error:
                self._log.exception("ADMIN: the brokers' answers could not be used")
                self.view = ClusterView(began_s, error=f"a fault of this page: {error!r}")
            async with self._changed:
                self._began_s = began_s
                self._changed.notify_all()
            wanted_s = max(self._interval_s, self.view.took_s / _MAX_SHARE)
            pause_s = max(0.0, wanted_s - (time.monotonic() - began_s))
            await _wait(self._hurry, pause_s) or await _wait(self._wake, IDLE_INTERVAL_S - pause_s)

    async def poll_now(self) -> ClusterView:
        """Ask brokers at once, for a user who changes something, and return the view of it."""
        return await self._since(time.monotonic())

    async def _since(self, time_s: float) -> ClusterView:
        """Return the view of a poll that began at a time or later."""
        self._hurry.set()
        self._wake.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self._began_s >= time_s)
        return self.view

    def poll_later(self, *, is_in_place: bool) -> None:
        """Let the next page wait for a poll that begins from now on: a user changed something."""
        self._acted_s = time.monotonic()
        if not is_in_place:
            self._moved_s = self._acted_s

    @property
    def topology(self) -> ClusterView | None:
        """A view that tells which broker has what; None if the newest may be out of date."""
        is_old = time.monotonic() - self.view.at_s > IDLE_INTERVAL_S
        return None if is_old or self._began_s < self._moved_s else self.view

    async def fresh(self) -> ClusterView:
        """Return a view that is no older than polls are apart while a page is open, nor than what
        a user last changed.
        """
        view = self.view
        if self._began_s < self._acted_s:
            return await self._since(self._acted_s)
        is_old = time.monotonic() - view.at_s > max(self._interval_s, view.took_s / _MAX_SHARE)
        return await self.following(view) if is_old else view

    async def following(self, view: ClusterView) -> ClusterView:
        """Wait for the view that follows one, and ask for it."""
        self._wake.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self.view is not view)
        return self.view

    async def _take(self) -> ClusterView:
        """Poll once."""
        before, began_s = self.view, time.monotonic()
        limit_s = self._max_limit_s
        if not self._was_late:
            limit_s = min(limit_s, max(_LIMIT_S, _SLOWER * before.took_s))
        try:
            answers = await self._poll(limit_s)
        except AdminError as error:
            return without_answers(error, before, began_s)
        view = merge(answers, before, began_s)
        took_s = time.monotonic() - began_s
        self._was_late = bool(answers.failures) and took_s >= limit_s
        view.took_s = before.took_s if self._was_late else took_s
        self._rate(view)
        return view

    def _rate(self, view: ClusterView) -> None:
        """Set the rates, and keep a step of the history."""
        keys: set[Hashable] = {("", "")}
        is_step = self.history.begin_step(time.time())
        for topic in view.topics.values():
            keys.add(topic.key)
            for url, stats in topic.nodes.items():
                rate = self._rated(view, url, topic.key, stats.message_count)
                topic.in_per_s += rate
                view.brokers[url].in_per_s += rate
            for channel in topic.channels.values():
                keys.add(channel.key)
                for url, counts in channel.nodes.items():
                    waiting = counts.depth + counts.in_flight_count + counts.deferred_count
                    came = self._rated(view, url, channel.key, counts.message_count)
                    done = self._rated(
                        view, url, (*channel.key, "done"), counts.message_count - waiting
                    )
                    keys.add((*channel.key, "done"))
                    channel.in_per_s += came
                    channel.out_per_s += done
                    view.brokers[url].out_per_s += done
                if is_step:
                    self.history.add(
                        channel.key, channel.counts.depth, channel.in_per_s, channel.out_per_s
                    )
            if is_step:
                self.history.add(topic.key, topic.total_depth, topic.in_per_s, topic.out_per_s)
        if is_step:
            self.history.add(("", ""), view.depth, view.in_per_s, view.out_per_s)
            self.history.keep(keys)
            self._rates.keep(set(view.brokers), keys)

    def _rated(self, view: ClusterView, url: str, key: Hashable, count: float) -> float:
        stats = view.brokers[url].stats
        assert stats is not None
        at_s = stats.counted_s or view.at_s
        return max(0.0, self._rates.rate(url, key, count, stats.started_at_s, at_s))


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Return whether an event came in time."""
    # Not by wait_for, which Python 3.11 lets return, and not end, if a task is cancelled just when
    # the event comes.
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True
