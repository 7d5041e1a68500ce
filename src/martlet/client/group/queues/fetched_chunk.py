"""A chunk of a queue: encoded messages of a fetch, with their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from martlet.client.group.message import PulledMessage
from martlet.protocol.nsq.frames import MESSAGE
from martlet.protocol.nsq.message_run import FRAME_SIZE_EXTRA, MessageRun

_MASK = (1 << 64) - 1
_HEAD = Struct(">IIqH16s")


class FetchedChunk(NamedTuple):
    """Messages of one queue, in order.

    Attributes:
        run: their frames.
        first, last: the offsets of the first and the last one; there may be gaps between.
    """

    run: MessageRun
    first: int
    last: int

    @classmethod
    def of(cls, run: MessageRun, id_base: int) -> FetchedChunk:
        """Make a chunk of a run, in which a message's id is the base plus its offset."""
        ids = run.ids()
        first, last = (((int(bytes(ids[at]), 16) - id_base) & _MASK) for at in (0, -1))
        return cls(run, first, last)

    @classmethod
    def again(cls, messages: Sequence[PulledMessage]) -> FetchedChunk:
        """Make a chunk of message objects made of an earlier chunk."""
        frames: list[bytes] = []
        ends: list[int] = []
        end = 0
        for each in messages:
            size = len(each.body) + FRAME_SIZE_EXTRA
            frames += (_HEAD.pack(size, MESSAGE, each.timestamp_ns, 1, each.id), each.body)
            end += size + 4
            ends.append(end)
        run = MessageRun(b"".join(frames), ends)
        run.properties = {at: each.packed for at, each in enumerate(messages) if each.packed}
        return cls(run, messages[0].offset, messages[-1].offset)

    def offsets(self) -> Sequence[int]:
        """The offset of each."""
        if self.last - self.first + 1 == self.run.count:
            return range(self.first, self.last + 1)
        ids = [int(message_id, 16) for message_id in self.run.ids().view("S16").tolist()]
        return [self.first + ((message_id - ids[0]) & _MASK) for message_id in ids]

    def split(self, count: int) -> tuple[FetchedChunk, FetchedChunk]:
        """Split into the first messages of a given number, and the others."""
        offsets = self.offsets()
        head, rest = self.run.split(count)
        return (
            FetchedChunk(head, self.first, offsets[count - 1]),
            FetchedChunk(rest, offsets[count], self.last),
        )


def joined(pieces: Sequence[FetchedChunk]) -> FetchedChunk:
    """Join adjacent chunks."""
    if len(pieces) == 1:
        return pieces[0]
    run = MessageRun.joined([piece.run for piece in pieces])
    return FetchedChunk(run, pieces[0].first, pieces[-1].last)
