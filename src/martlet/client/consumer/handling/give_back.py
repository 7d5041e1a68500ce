"""Gives back messages that have waited here for nearly all their time, before it runs out.

A handler that takes long, or hangs, leaves messages waiting that other consumers could handle.  A
Martlet broker takes them back free of charge: they come to others at once, and the delivery counts
as no attempt.  No more are asked for then until a worker here waits for one, so that they are not
just sent here again.  A broker of NSQ would count an attempt, so from there they run out of time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from martlet.client.consumer.acks import AckBatcher
    from martlet.client.consumer.buffer import ReceiveBuffer

Late = list[tuple["AckBatcher", NDArray[np.void]]]
"""Ids of messages, with what answers them."""
PART = 1 / 4
"""What is left of its time when a message is given back, at the most."""
_MIN_PAUSE_S = 0.01


def _none(_until_s: float) -> Late:
    return []


class UnstartedReturner:
    """Checks every so often for messages that have waited too long.

    Args:
        buffer: where it waits.

    Attributes:
        hold, go_on: called to have a broker send nothing, and all of them send again.
        besides: takes out what waits elsewhere, and has its time run out by then.
        returned_count: how many were given back since messages were asked for last.
    """

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self.hold: Callable[[AckBatcher], None] = lambda _answers: None
        self.go_on: Callable[[], None] = lambda: None
        self.besides: Callable[[float], Late] = _none
        self.returned_count = 0
        self._buffer = buffer
        self._left_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def connected(self, message_timeout_s: float) -> None:
        """Note how much time a broker gives messages."""
        left_s = message_timeout_s * PART
        if left_s < self._left_s and not self._is_closed:
            self._left_s = left_s
            if self._timer is not None:
                self._timer.cancel()
            self._look_later()

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        pause_s = max(_MIN_PAUSE_S, self._left_s / 2)
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        buffer = self._buffer
        until_s = time.monotonic() + self._left_s
        late = [*self.besides(until_s), *buffer.take_late(until_s)]
        for answers, ids in late:
            self.returned_count += len(ids)
            self.hold(answers)
            answers.give_back(ids)
        if late:
            buffer.on_hungry = self._ask_again
        self._look_later()

    def _ask_again(self) -> None:
        self._buffer.on_hungry = None
        self.returned_count = 0
        self.go_on()
