"""Bodies of any sizes, still as they were received::

    head | size u32 | body | head | size u32 | body | ...

The head is the line of a PUB, the same for all; in an MPUB there is none. Only the compiled hot
path makes these; Python splits such bodies into a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from martlet.native import FramePlace, ReceivedBodies, native

if TYPE_CHECKING:
    from martlet.native import Native

_NOWHERE = FramePlace(bytearray(), 0, 0, 0, bytearray())


class RawBodies(Sequence[bytes]):
    """Bodies in the receive buffer, valid until it is used again.

    Attributes:
        end: the position in the buffer behind the last body.
        smallest, largest: the sizes, in bytes.
        total_bytes: the sum of the sizes.
    """

    __slots__ = (
        "_bodies",
        "_count",
        "_native",
        "end",
        "largest",
        "smallest",
        "total_bytes",
    )

    def __init__(self, functions: Native, bodies: ReceivedBodies) -> None:
        self._native = functions
        self._bodies = bodies
        self._count, self.end, self.smallest, self.largest = functions.frame_bodies(
            bodies, _NOWHERE
        )
        self.total_bytes = self.end - bodies.at - self._count * (bodies.head + 4)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        source, at, *_ = self._bodies
        for _ in range(self._count):
            start = at + self._bodies.head + 4
            at = start + int.from_bytes(source[start - 4 : start])
            yield bytes(source[start:at])

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        return list(self)[index]

    def lay_out(self, scratch: bytearray, at: int, first_id: int, stored_at_ns: int) -> bytearray:
        """Write the bodies as frames to `scratch`, the beginning of a record.

        Returns the end of each, as u32, from the end of the record's header. The scratch must have
        room for them.
        """
        place = FramePlace(scratch, at, first_id, stored_at_ns, bytearray(4 * self._count))
        done = self._native.frame_bodies(self._bodies, place)
        assert done[0] == self._count, "the receive buffer has changed, or the scratch is too small"
        return place.ends


Bodies = list[bytes] | RawBodies | npt.NDArray[np.uint8]
"""Bodies: a list; still as received; or a matrix of bodies of one size, ``uint8[n, size]``."""


def raw_bodies(
    buffer: bytearray, at: int, end: int, max_count: int, head: int, max_size: int
) -> RawBodies | None:
    """Return up to `max_count` bodies from `at` on; None where nothing is compiled.

    It ends before a body that is not complete at `end`, is empty or larger than `max_size`, or
    stands behind another head than the first.
    """
    if native is None:
        return None
    return RawBodies(native, ReceivedBodies(buffer, at, end, max_count, head, max_size))
