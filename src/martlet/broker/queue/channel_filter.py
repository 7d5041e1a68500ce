"""A channel's filter: selects the messages of a channel by their properties.

It goes by tags, by a condition in SQL (see `martlet.properties.filter`), or by both. A batch keeps
the hashes of its messages' tags side by side, so one comparison finds those that may have a wanted
tag. The tags themselves, since different tags may have one hash, and the condition are evaluated on
columns of the batch's properties, for all its messages at once. A rejected message is finished for
the channel without being sent.
"""

from __future__ import annotations

import numpy as np

from martlet.properties.block import Block
from martlet.properties.filter.columns import TAG, Bools, Int64s, PropertyColumns
from martlet.properties.filter.conditions import And, Condition, IsOneOf, values_of
from martlet.properties.filter.parser import parse
from martlet.properties.model import Bytes, tag_hash

_FEW = 32
"""Up to this many messages are tested faster one by one."""
_NONE: Int64s = np.zeros(0, np.int64)


class ChannelFilter:
    """Accepts messages with one of some tags, and for which a condition is true; where there are
    no tags, or no text of a condition, all pass. Raises BadFilter.
    """

    def __init__(self, tags: tuple[str, ...], text: str) -> None:
        self._hashes = np.array(sorted({tag_hash(tag) for tag in tags}), np.uint32)
        pieces: list[Condition] = []
        if tags:
            pieces.append(IsOneOf(TAG, frozenset(tag.encode() for tag in tags)))
        if text:
            pieces.append(parse(text))
        self._condition: Condition = And(tuple(pieces))
        self._accepts_bare = self.accepts(b"")

    def accepts(self, entry: Bytes) -> bool:
        """Whether it accepts a message with such packed properties."""
        return self._condition.of(values_of(entry)) is True

    def accepted(self, data: Bytes | None, begin: int, end: int) -> Int64s:
        """Return which messages of a batch from number `begin` up to `end` it accepts, rising, by
        the block of the batch's properties, if it has any.
        """
        if data is None:
            return np.arange(begin, end) if self._accepts_bare else _NONE
        block = Block(data)
        first, stop = np.searchsorted(block.numbers, (begin, end)).tolist()
        numbers = block.numbers[first:stop]
        if not self._accepts_bare:
            return numbers[self._some(block, first, stop)].astype(np.int64)
        accepted = np.ones(end - begin, bool)
        accepted[numbers[~self._some(block, first, stop)] - np.uint32(begin)] = False
        return np.flatnonzero(accepted) + begin

    def _some(self, block: Block, first: int, stop: int) -> Bools:
        """Return which of the block's entries from index `first` up to `stop` it accepts."""
        likely = np.arange(first, stop)
        if len(self._hashes):
            likely = likely[np.isin(block.tags[first:stop], self._hashes)]
        accepted = np.zeros(stop - first, bool)
        if len(likely) <= _FEW:
            accepted[likely - first] = [self.accepts(block.entry(at)) for at in likely.tolist()]
        else:
            accepted[likely - first] = self._condition.select(PropertyColumns(block, likely), True)
        return accepted
