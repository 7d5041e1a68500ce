"""The follower: a channel that represents a reader which stores its own position.

Such a reader, for example a Spark query, reads the log by offset and keeps its position in a
checkpoint of its own. It reports the position to the broker, so that the broker lists it among the
groups, with its lag; nothing else depends on the report::

    kind      | position kept by      | unread messages
    ----------|-----------------------|----------------------------------------------------
    shared    | the broker            | are kept
    offsets   | the broker            | are kept
    follower  | its reader            | are kept with retain=on; with off the topic deletes
              |                       | messages, and starts new channels, as without it

The position may move back as well as forward, as the reader does: the broker only records it. The
reader reads deferred messages at once, where they are stored, so none waits for a follower.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.broker.groups.group_queue import GroupQueue
from martlet.broker.tracing.recorder import TraceStep

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState


class ExternalReader(GroupQueue):
    """A follower at one queue."""

    @property
    def own_ahead(self) -> int:
        """All unread messages are ahead of it, deferred ones included."""
        return self._channel.cursor.deferred_ahead

    def pump(self) -> None:
        """Do nothing: no member waits for messages here."""

    def move(self, offset: int) -> None:
        """Set the position, before or behind the present one."""
        cursor = self._channel.cursor
        cursor.window.reset(offset)
        cursor.deferred_ahead = 0
        self._channel.moved()

    def report(self, offset: int) -> None:
        """Record the position of the reader.

        Journaled at once, since the reader does not repeat a report: after a kill the position
        would stay behind for as long as nothing is published.
        """
        before = self._channel.cursor.next
        self.move(offset)
        with suppress(WritesRefused):  # Then the next journal write has it.
            self._context.write_cursor(self._channel)
        self._trace(TraceStep.COMMITTED, before, offset, None)
        self._trace(TraceStep.SET_BACK, offset, before, None)


def group_queue(channel: ChannelState, kind: str) -> GroupQueue:
    """Return the group queue for a channel of that kind."""
    return (ExternalReader if kind == "follower" else GroupQueue)(channel)
