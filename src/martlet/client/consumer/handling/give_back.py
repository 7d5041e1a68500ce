"""Give back messages that have waited here until shortly before they time out.

A handler that takes long, or hangs, leaves messages waiting that other consumers could handle. A
Martlet broker delivers them to others at once, and does not count the delivery as an attempt. The
consumer then requests no more until a worker waits for a message, so that the same ones are not
sent here again. An NSQ broker would count an attempt, so its messages are left to time out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from martlet.client.consumer.acks import AckBatcher
from martlet.client.consumer.buffer import ReceiveBuffer

Late = list[tuple[AckBatcher, NDArray[np.void]]]
"""Ids of messages, with their answers."""
_FRACTION = 1 / 4
"""The maximum time left of a message when it is given back, of its timeout."""
_MIN_PAUSE_S = 0.01


class UnstartedReturner:
    """Check at intervals for messages that have waited too long."""

    def __init__(self, buffer: ReceiveBuffer) -> None:
        self.hold: Callable[[AckBatcher], None] = lambda _answers: None
        """Called to stop a broker's delivery."""
        self.go_on: Callable[[], None] = lambda: None
        """Called to resume delivery from all brokers."""
        self.besides: Callable[[float], Late] = lambda _until_s: []
        """Takes out messages that wait elsewhere and time out by then."""
        self.returned_count = 0
        """The number of messages given back since some were last requested."""
        self._buffer = buffer
        self._left_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def connected(self, message_timeout_s: float) -> None:
        """Note a broker's message timeout."""
        left_s = message_timeout_s * _FRACTION
        if left_s < self._left_s and not self._is_closed:
            self._left_s = left_s
            if self._timer is not None:
                self._timer.cancel()
            self._check_later()

    def close(self) -> None:
        """Stop checking."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _check_later(self) -> None:
        pause_s = max(_MIN_PAUSE_S, self._left_s / 2)
        self._timer = asyncio.get_running_loop().call_later(pause_s, self._check)

    def _check(self) -> None:
        buffer = self._buffer
        until_s = time.monotonic() + self._left_s
        late = [*self.besides(until_s), *buffer.take_late(until_s)]
        for answers, ids in late:
            self.returned_count += len(ids)
            self.hold(answers)
            answers.give_back(ids)
        if late:
            buffer.on_hungry = self._ask_again
        self._check_later()

    def _ask_again(self) -> None:
        self._buffer.on_hungry = None
        self.returned_count = 0
        self.go_on()
