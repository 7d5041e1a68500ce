"""The follower: a channel that stands for a reader which keeps its place elsewhere.

Such a reader, a query of Spark for one, reads the log by offset, and its place is in a checkpoint
of its own.  It tells the broker how far it is, so that people see it among the groups, with its
lag; nothing depends on what is told but that::

    kind      | who keeps the place   | what it has yet to read
    ----------|-----------------------|----------------------------------------------------
    shared    | the broker            | is kept
    offsets   | the broker            | is kept
    follower  | its reader            | is kept with retain=on; with off the topic lets go of
              |                       | messages, and new channels begin, as if it were not there

The place may go back as well as forward, since the reader may: it is told and not asked for.
Deferred messages are read where they stand, at once, so none waits for a follower.
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
        """Deferred messages are ahead of it like others."""
        return self._channel.cursor.deferred_ahead

    def pump(self) -> None:
        """Nobody waits for anything."""

    def move(self, offset: int) -> None:
        """Go on at an offset, before or behind the present one."""
        cursor = self._channel.cursor
        cursor.window.reset(offset)
        cursor.deferred_ahead = 0
        self._channel.moved()

    def report(self, offset: int) -> None:
        """Its reader is at an offset now. It is written down at once, since who told it does not
        tell it again: a kill would leave it behind for as long as nothing is published.
        """
        before = self._channel.cursor.next
        self.move(offset)
        with suppress(WritesRefused):  # Then it is written with all others.
            self._context.write_cursor(self._channel)
        self._trace(TraceStep.COMMITTED, before, offset, None)
        self._trace(TraceStep.SET_BACK, offset, before, None)


def group_queue(channel: ChannelState, kind: str) -> GroupQueue:
    """What a channel of that kind is at one queue."""
    return (ExternalReader if kind == "follower" else GroupQueue)(channel)
