"""Sending a log to another replica, and receiving it.

::

    sender                                            receiver
                    <- FETCH(position, base)          its log ends at position, in segment base
    rest of that segment    DATA DATA ... ->          CopiedLog.write
    each following one      SEGMENT DATA ... ->       CopiedLog.begin_segment, write

The primary sends to its standbys for as long as they are connected. A standby sends to a candidate
whose log is shorter. The receiver first cuts off what the sender's log does not have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from martlet.log.copy import CopiedLog
from martlet.log.epochs import EpochRange, common_position
from martlet.log.recovery import content_end
from martlet.log.segmented import SegmentedLog
from martlet.log.storage import Segment
from martlet.replica.frames import MAX_BODY_BYTES, Frame, FrameKind, ReplicaGreeting

NO_SEGMENT = (1 << 64) - 1
"""The base in FETCH of a receiver without segments."""
BRINGS = (FrameKind.SEGMENT, FrameKind.DATA, FrameKind.DAMAGED)
"""The kinds of the frames that bring a log."""
MAX_DATA_BYTES = 1 << 20
"""The maximum of one DATA frame, in bytes."""
MAX_PIECE_BYTES = MAX_BODY_BYTES
"""The maximum of one PIECE or DAMAGED frame, in bytes. A damaged range may be longer."""


class SegmentRemoved(Exception):
    """The segment that is sent was removed: the receiver must connect again, and skip it."""


class LogsDiverged(Exception):
    """The sender's log lacks what this replica knows as confirmed; the text says from where on."""


class Link(Protocol):
    """A connection to another replica: frames arrive in order, or the connection ends."""

    @property
    def is_full(self) -> bool:
        """Whether what is sent now has to wait. The caller is notified when that ends."""

    def send(self, frame: Frame) -> None:
        """Send a frame; nothing happens where the connection has ended."""

    def close(self) -> None:
        """End the connection. The replica gets no `disconnected` for it."""


class LogSender:
    """Sends a log over one link, from where the receiver's ends.

    Args:
        log: the log, which may grow.
        position, base: as FETCH tells them.

    Raises SegmentRemoved: there is no such segment.
    """

    def __init__(self, log: SegmentedLog, position: int, base: int) -> None:
        self.log = log
        self.position = position
        """Behind what is sent."""
        self._segment: Segment | None = None
        if base != NO_SEGMENT:
            segment = log.following(base)
            if segment is None or segment.base != base or position < base:
                raise SegmentRemoved(f"there is no segment at {base}")
            self._segment = segment
        self.unacknowledged_bytes = 0
        """Sent, and not acknowledged."""
        self._sent: deque[tuple[int, int]] = deque()
        """The end and the length of each DATA frame that is not acknowledged."""
        self._boundary = position
        """A record of the segment begins here, or it ends here."""
        self._content_end: int | None = None

    def pump(self, link: Link, epoch: int, confirmed: int, max_bytes: int) -> None:
        """Send what follows, up to `max_bytes`, and no more than the link takes: the rest stays in
        the log and goes in larger frames later. Raises SegmentRemoved.
        """
        left = max_bytes
        while left > 0 and not link.is_full:
            segment = self._segment
            if segment is not None:
                if not self.log.is_stored(segment):
                    raise SegmentRemoved(f"the segment at {segment.base} was removed")
                end = self._end_in(segment)
                if self.position < end:
                    left -= self._send_some(link, segment, end, epoch, confirmed, left)
                    continue
            at = self.position if segment is None else max(self.position, segment.base + 1)
            following = self.log.following(at)
            if following is None:
                return
            link.send(Frame(FrameKind.SEGMENT, epoch, following.base, following.capacity))
            self._segment, self._content_end = following, None
            self.position = self._boundary = following.base

    def acknowledged(self, position: int) -> None:
        """The receiver has what is before a position."""
        sent = self._sent
        while sent and sent[0][0] <= position:
            self.unacknowledged_bytes -= sent.popleft()[1]

    def _end_in(self, segment: Segment) -> int:
        """Return behind which position the segment has nothing to send."""
        if segment is self.log.segments[-1]:
            self._boundary = max(segment.base, self.log.position)
            return self._boundary
        if self._content_end is None:
            self._content_end = content_end(segment, self._boundary, self.log.damaged)
        return self._content_end

    def _send_some(
        self, link: Link, segment: Segment, end: int, epoch: int, confirmed: int, left: int
    ) -> int:
        """Send one frame; return the number of its bytes."""
        kind, stop = FrameKind.DATA, min(end, self.position + min(left, MAX_DATA_BYTES))
        for first, behind in self.log.damaged:
            if first <= self.position < behind:
                stop = min(end, behind, self.position + MAX_PIECE_BYTES)
                kind = FrameKind.DAMAGED
            elif self.position < first < stop:
                stop = first
        data = segment.view[self.position - segment.base : stop - segment.base]
        link.send(Frame(kind, epoch, self.position, confirmed, data))
        sent, self.position = stop - self.position, stop
        self._sent.append((stop, sent))
        self.unacknowledged_bytes += sent
        return sent


def join(
    copy: CopiedLog,
    theirs: ReplicaGreeting,
    epoch: int,
    floor: int,
    joined: Callable[[Sequence[EpochRange]], object],
) -> Frame:
    """Cut off, durably, what another replica's log does not have. Returns the FETCH to send it.

    Args:
        copy: the receiver's log.
        theirs: the sender's.
        floor: what is confirmed, as far as the receiver knows.
        joined: makes the epochs of the receiver's log durable. It is called before segments are
            removed: with them goes what shows how far the log had come.

    Raises:
        LogsDiverged: the sender lacks what is confirmed.
        CopyRefused, OSError: the disk failed.
    """
    copy.restart()
    common = common_position(copy.epochs.ranges, theirs.epochs)
    if common is None:
        common = copy.segments[0].base if copy.segments else 0
    if common < min(floor, copy.end_position):
        raise LogsDiverged(
            f"{theirs.replica} has this log only up to position {common}, and {floor} was confirmed"
        )
    if common < copy.position:
        copy.cut(common, epoch)
    joined(copy.epochs.ranges)
    bases = {base for base, _ in theirs.segments}
    for segment in [segment for segment in copy.segments if segment.base not in bases]:
        copy.retire(segment)
    base = copy.segments[-1].base if copy.segments else NO_SEGMENT
    return Frame(FrameKind.FETCH, epoch, copy.position, base)


def learn_epochs(copy: CopiedLog, theirs: Sequence[EpochRange]) -> None:
    """Take in the epochs of another replica's log, as far as this one is a copy of it. Of epochs
    whose segments were removed before, this log lacks records.
    """
    common = common_position(copy.epochs.ranges, theirs)
    if common is not None:
        copy.epochs.adopt(theirs, common)


def take(copy: CopiedLog, frame: Frame) -> None:
    """Write what a frame brings. Raises CopyRefused and OSError."""
    if frame.kind == FrameKind.SEGMENT:
        copy.begin_segment(frame.position, frame.second)
    elif frame.kind == FrameKind.DATA:
        copy.write(frame.position, frame.body)
    else:
        assert frame.kind == FrameKind.DAMAGED
        copy.write_damaged(frame.position, frame.body)


def greeting(
    broker: str,
    replica: str,
    log: SegmentedLog,
    epochs: Iterable[EpochRange],
    *,
    is_whole: bool,
    instance: str = "",
) -> ReplicaGreeting:
    """Return what a replica says of its log."""
    segments: list[tuple[int, int]] = []
    following = log.following(0)
    while following is not None:
        segments.append((following.base, following.capacity))
        following = log.following(following.base + 1)
    damaged = list(log.damaged)
    return ReplicaGreeting(broker, replica, list(epochs), segments, is_whole, damaged, instance)


def piece(log: SegmentedLog, frame: Frame) -> Frame:
    """Return the answer to REPAIR: the bytes, as many as fit into a frame; none where they are
    damaged here, too. Raises SegmentRemoved: the segment was removed.
    """
    segment = log.stored_at(frame.position)
    if segment is None:
        raise SegmentRemoved(f"there is no segment with position {frame.position}")
    start, end = frame.position, min(frame.second, log.position)
    data = b""
    if end > start:
        end = min(end, segment.base + segment.capacity, start + MAX_PIECE_BYTES)
        if not any(first < end and start < stop for first, stop in log.damaged):
            data = bytes(segment.view[start - segment.base : end - segment.base])
    return Frame(FrameKind.PIECE, frame.epoch, start, frame.second, data)


class RepairPieces:
    """The good bytes of a damaged range, in pieces that fit into frames."""

    def __init__(self) -> None:
        self._start = 0
        self._received = bytearray()

    @property
    def are_coming(self) -> bool:
        """Whether a further piece was asked for."""
        return bool(self._received)

    def forget(self) -> None:
        """Forget what was received."""
        self._received.clear()

    def add(self, link: Link, frame: Frame) -> bytes:
        """Take in a PIECE. Returns all bytes of the range; while some are missing, it returns none
        and asks for the next piece.
        """
        received = self._received
        if not received:
            self._start = frame.position
        elif frame.position != self._start + len(received):
            return b""  # It was asked for twice.
        if not frame.body:
            self.forget()
            return b""
        received += frame.body
        following = self._start + len(received)
        if len(frame.body) == MAX_PIECE_BYTES and following < frame.second:
            link.send(Frame(FrameKind.REPAIR, frame.epoch, following, frame.second))
            return b""
        data = bytes(received)
        self.forget()
        return data
