"""Track the lowest offset of a queue whose handling is not done, with any number of handlers.

::

    offset     4     5     6     7     8
               done  begun done  begun done        lowest: 5

The lowest offset that was begun and has not ended may be committed: all below it are done.
"""

from __future__ import annotations

from heapq import heappop, heappush


class OffsetTracker:
    """Track the offsets that were begun and are not done."""

    __slots__ = ("_begun", "_ended")

    def __init__(self) -> None:
        self._begun: list[int] = []
        """A heap; an ended offset leaves it when it is the lowest."""
        self._ended: set[int] = set()

    @property
    def lowest(self) -> int | None:
        """The lowest offset that was begun and has not ended; None if there is none."""
        return self._begun[0] if self._begun else None

    def begin(self, offset: int) -> None:
        """Note that its handling begins, or begins again after it had ended."""
        if offset in self._ended:
            self._ended.remove(offset)
        else:
            heappush(self._begun, offset)

    def end(self, offset: int) -> None:
        """Note that one that was begun is done."""
        begun, ended = self._begun, self._ended
        if offset != begun[0]:
            ended.add(offset)
            return
        heappop(begun)
        while ended and begun[0] in ended:
            ended.remove(heappop(begun))
