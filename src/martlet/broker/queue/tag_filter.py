"""The tag filter: selects the messages of a channel by their tags.

A batch keeps the hashes of its messages' tags side by side, so a filter finds with one comparison
those that may be wanted; then it compares the tags themselves, since different tags may have one
hash (RocketMQ does the second step at the client).  A rejected message is finished for the channel
without being sent; a message without a tag is always rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from martlet.properties.block import Block
from martlet.properties.model import Properties, tag_hash

if TYPE_CHECKING:
    from martlet.properties.model import Bytes

Numbers = list[int]


class TagFilter:
    """Accepts messages with some tags.

    Args:
        tags: the tags; not empty, each valid.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self.tags = tuple(tags)
        self._hashes = np.array(sorted({tag_hash(tag) for tag in tags}), np.uint32)
        # An entry begins with its tag.
        self._fields = tuple(Properties(tag=tag).pack() for tag in tags)

    def numbers(self, data: Bytes | None, begin: int, end: int) -> Numbers:
        """Return the accepted messages of a batch from number `begin` up to `end`.

        Args:
            data: the block of the batch's properties; None where it has none.
        """
        if data is None:
            return []
        block = Block(data)
        first, stop = np.searchsorted(block.numbers, (begin, end)).tolist()
        hashed = np.flatnonzero(np.isin(block.tags[first:stop], self._hashes)) + first
        return [
            int(block.numbers[place]) for place in hashed.tolist() if self.lets(block.entry(place))
        ]

    def lets(self, entry: Bytes) -> bool:
        """Whether it accepts a message with such packed properties."""
        return bytes(entry).startswith(self._fields)


def runs(numbers: Numbers) -> list[tuple[int, int]]:
    """Return rising numbers as ranges of consecutive ones, (first, end)."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found
