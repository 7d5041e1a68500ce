"""Messages of a channel that are moving to another topic.

They are pending messages in flight to an internal consumer of number 0, so that no other consumer
gets them. A restart finds them due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from martlet.broker.queue.consumer import INTERNAL_CLIENT, ChannelConsumer

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState

NEVER_NS = 1 << 62


class AsideMessages:
    """The moving messages of a channel at one queue.

    Args:
        state: the channel.
        pump: delivers other messages once one of these has left.
    """

    __slots__ = ("_pump", "_state", "consumer")

    def __init__(self, state: ChannelState, pump: Callable[[], None]) -> None:
        self._state = state
        self._pump = pump
        self.consumer = ChannelConsumer(INTERNAL_CLIENT, 0, 0)
        """The internal consumer that holds them."""

    @property
    def count(self) -> int:
        """The number of moving messages."""
        return self.consumer.in_flight_count

    def holds(self, offset: int) -> bool:
        """Whether a message is moving, and its channel still exists."""
        state = self._state
        return not state.closed and state.cursor.pending.get(offset, self.consumer) is not None

    def add(self, offset: int, attempts: int, failures: int = 0) -> None:
        """Hold a message that no consumer holds, so that no consumer gets it."""
        if not self.holds(offset):
            self.consumer.in_flight_count += 1
        failures = max(failures, self._failures(offset))
        self._state.cursor.pending.hold(
            offset, attempts, self.consumer, self._state.context.clock(), NEVER_NS, failures
        )
        self._state.moved()

    def finish(self, offset: int) -> None:
        """Finish a message that has been moved, or was deleted."""
        self._state.cursor.pending.remove(offset)
        self._left()  # With ordering, the next of its key may be waiting.

    def put_back(self, offset: int, attempts: int) -> None:
        """Return a message to its channel, to be delivered as before."""
        now_ns = self._state.context.clock()
        failures = self._failures(offset)
        self._state.cursor.pending.wait(offset, attempts, now_ns, now_ns, failures)
        self._left()

    def _left(self) -> None:
        self.consumer.in_flight_count -= 1
        assert self.consumer.in_flight_count >= 0
        self._state.moved()
        self._pump()

    def _failures(self, offset: int) -> int:
        message = self._state.cursor.pending.by_offset.get(offset)
        return 0 if message is None else message.failures
