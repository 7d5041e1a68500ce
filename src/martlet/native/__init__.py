"""The compiled hot path, an optional part of Martlet.

``_native.c`` does in C what Python does elsewhere, with the same bytes, state and errors: it lays
out bodies of any sizes as frames, and serves clients that send one PUB or FIN at a time. It is
built at install where there is a C compiler (see ``hatch_build.py``). Without it, or with
``MARTLET_PURE=1`` in the environment, Python does all of it.

Attributes:
    native: the compiled functions, or None.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol, cast

__all__ = ["Native", "native"]

FED = 1
"""Of `Native.serve`: Python has handled input, so the turn has to end."""
ELSEWHERE = 2
"""Of `Native.serve`: other input waits for the event loop."""
SERVED = 4
"""Of `Native.serve`: commands were handled and answered."""


class ReceivedBodies(NamedTuple):
    """Bodies, each behind its head and its size, u32 big-endian.

    Attributes:
        source: the bytes.
        at, end: the position of the first head, and the end of the last body.
        max_count: the maximum number of bodies.
        head: bytes before each size; they have to be equal to the first one's.
        max_size: the maximum size of a body.
    """

    source: bytearray
    at: int
    end: int
    max_count: int
    head: int
    max_size: int


class FramePlace(NamedTuple):
    """Where and how frames are laid out.

    Attributes:
        scratch: the beginning of a record; empty to measure bodies only.
        at: the position of the first frame, behind the record's header.
        first_id, stored_at_ns: of the messages.
        ends: takes the end of each frame, u32 little-endian, from the end of the record's header.
    """

    scratch: bytearray
    at: int
    first_id: int
    stored_at_ns: int
    ends: bytearray


class Native(Protocol):
    """The functions of ``_native.c``."""

    def frame_bodies(
        self, bodies: ReceivedBodies, place: FramePlace, /
    ) -> tuple[int, int, int, int]:
        """Measure bodies, and lay them out as message frames.

        Returns the number of bodies, the position behind the last, and the sizes of the smallest
        and the largest. It stops before a body that is incomplete, empty or too large, has another
        head, or has no room.
        """

    def serve(
        self,
        shared: tuple[object, ...],
        received: bytearray,
        epoll: int,
        window_ns: int,
        budget_ns: int,
        /,
    ) -> int:
        """Serve connections for at most `budget_ns`, until none has sent anything for `window_ns`,
        or something else is to be done: the sum of `FED`, `ELSEWHERE` and `SERVED`. What has come
        by now is served in any case.
        """


def _load() -> Native | None:
    if os.environ.get("MARTLET_PURE", "0") not in ("", "0"):
        return None
    try:
        from martlet.native import _native  # type: ignore[attr-defined]
    except ImportError:
        return None
    return cast(Native, _native)


native = _load()
