"""A consumer's flow control: its ready counts, its pauses, and its backoff after failures.

It connects the rules (`rdy`, `handling.backoff`), which do no I/O, with connections, the clock and
timers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable

from martlet.client.consumer.handling.backoff import (
    BackoffAction,
    BackoffEvent,
    BackoffState,
    FailureBackoff,
    FailureGate,
)
from martlet.client.consumer.rdy import RdyDistributor, Rotation
from martlet.client.consumer.subscription import Subscription

logger = logging.getLogger("martlet.client")


class Flow:
    """Send ready counts to subscriptions.

    Args:
        rotation: how connections take turns if there are more of them than that.
        failure_backoff: the backoff when messages fail; None for the default, except for failures
            that a broker delays by the policy of their channel.
        chance: returns a random number from 0 to below 1.
    """

    def __init__(
        self,
        max_in_flight: int,
        rotation: Rotation,
        failure_backoff: FailureBackoff | None,
        name: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.readiness: RdyDistributor[Subscription] = RdyDistributor(
            max_in_flight, rotation, chance
        )
        self.gate = FailureGate(failure_backoff or FailureBackoff(), chance)
        self.backs_off_always = failure_backoff is not None
        self.trial_at_s = 0.0
        """When the next trial of the backoff is due."""
        self._interval_s = rotation.rdy_redistribute_interval_s
        self._name = name
        self._is_stopped = False
        self._rotation: asyncio.TimerHandle | None = None
        self._trial: asyncio.TimerHandle | None = None

    # the consumer's requests

    def change(self, max_in_flight: int) -> None:
        """Change the maximum number of messages in flight; 0 lets none come."""
        self._send(self.readiness.change(max_in_flight, time.monotonic()))

    def pause(self) -> None:
        """Stop delivery until ``resume``."""
        self._send(self.readiness.pause(True, time.monotonic()))

    def resume(self) -> None:
        """Resume delivery."""
        if not self._is_stopped:
            self._send(self.readiness.pause(False, time.monotonic()))

    def stop(self) -> None:
        """Stop delivery for good."""
        self._is_stopped = True
        self.pause()
        for timer in (self._rotation, self._trial):
            if timer is not None:
                timer.cancel()
        self._rotation = self._trial = None

    # events

    def add(self, subscription: Subscription) -> None:
        """Give this subscription a part of the ready counts."""
        self._send(self.readiness.add(subscription, time.monotonic()))

    def remove(self, subscription: Subscription) -> None:
        """Distribute its ready count among the others."""
        self._send(self.readiness.remove(subscription, time.monotonic()))

    def feed(self, event: BackoffEvent) -> None:
        """Step the backoff before a message is answered."""
        gate = self.gate
        if gate.state is BackoffState.OPEN and event is not BackoffEvent.FAILURE:
            return
        self._act(gate.feed(event, is_connected=bool(self.readiness.counts)))

    def settle(self) -> None:
        """Raise ready counts that waited for answers."""
        if self.readiness.is_owing:
            self._send(self.readiness.share(time.monotonic()))

    def _act(self, action: BackoffAction) -> None:
        if self._is_stopped or action is BackoffAction.NOTHING:
            return
        gate = self.gate
        now_s = time.monotonic()
        if action is BackoffAction.RESUME:
            logger.warning("%s: messages succeed again: all brokers may send", self._name)
            self._send(self.readiness.cap(None, now_s))
        elif action is BackoffAction.TRY:
            logger.info("%s: the backoff is over: one message is tried", self._name)
            self._send(self.readiness.cap(1, now_s))
        else:
            if action is BackoffAction.BLOCK:
                logger.warning(
                    "%s: messages fail: no more are requested for %.3g s (level %d;"
                    " failure_backoff=FailureBackoff(max_s=0) never pauses, and a retry policy of"
                    " the channel delays the failed messages alone)",
                    self._name,
                    gate.wait_s,
                    gate.level,
                )
                self._send(self.readiness.cap(0, now_s))
            self.trial_at_s = now_s + gate.wait_s
            loop = asyncio.get_running_loop()
            self._trial = loop.call_later(gate.wait_s, self.feed, BackoffEvent.ELAPSED)

    def _send(self, changes: Iterable[tuple[Subscription, int]]) -> None:
        for subscription, count in changes:
            subscription.ready(count)
        readiness = self.readiness
        if (
            self._rotation is None
            and not self._is_stopped
            and (readiness.is_too_many or readiness.is_owing)
        ):
            loop = asyncio.get_running_loop()
            self._rotation = loop.call_later(self._interval_s, self._redistribute)

    def _redistribute(self) -> None:
        self._rotation = None
        self._send(self.readiness.redistribute(time.monotonic()))
