"""A standby: it follows the primary of an epoch, or waits for one.

::

    LOST         no connection
    CONNECTING   connected: HELLO --------------------> GREETED
    GREETED      WELCOME: cut, FETCH -----------------> FOLLOWING
                 FETCH of a candidate: send it the log
    FOLLOWING    SEGMENT, DATA: write, ACK; BEAT: take in what is confirmed

Bytes are written as they come, and acknowledged once they are verified. The state of the broker
follows behind, as far as the primary says that the log is confirmed: so it is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from martlet.broker.recovery.restore import BrokerRecovery
from martlet.log.copy import CopiedLog
from martlet.log.epochs import EpochRange
from martlet.replica.frames import Frame, FrameKind, FrameRefused, ReplicaGreeting
from martlet.replica.shipping import (
    BRINGS,
    Link,
    LogSender,
    RepairPieces,
    SegmentRemoved,
    greeting,
    join,
    learn_epochs,
    piece,
    take,
)

MAX_PUMP_BYTES = 8 << 20
"""Sent to a candidate in one turn."""


class ConnectAgain(Exception):
    """The standby must greet its primary anew; the text says why."""


class StandbyState(Enum):
    """Where a standby stands with its primary."""

    LOST = "lost"
    CONNECTING = "connecting"
    GREETED = "greeted"
    FOLLOWING = "following"


@dataclass
class Standby:
    """A standby in one epoch."""

    name: str
    broker: str
    epoch: int
    """The epoch that it has pledged to."""
    copy: CopiedLog
    recovery: BrokerRecovery | None
    """The state of the broker, where that was built."""
    is_whole: bool
    """Whether it may be counted."""
    floor: int
    """Up to here the log is confirmed, as far as this replica knows."""
    recover: Callable[[CopiedLog], BrokerRecovery]
    reopen: Callable[[], CopiedLog]
    """Closes the log and opens it anew."""
    note_whole: Callable[[bool], None]
    """Makes it durable whether the replica is whole."""
    joined: Callable[[Sequence[EpochRange]], None]
    """Makes the epochs of the log durable."""
    received_ns: int
    """When the primary's last frame arrived, or when the epoch was first seen."""
    instance: str = ""
    state: StandbyState = StandbyState.LOST
    is_refused: bool = False
    """Whether the primary's address refused the last connection: its process is not there."""
    link: Link | None = None
    primary_end: int = 0
    """The end of the primary's log in its last frame that says it."""
    _complete_at: int | None = None
    """From this position on the log is a complete copy. Before, it may lack batches that the
    primary moved out of segments which this log lacks. None: the next BEAT says it.
    """
    _confirmed: int = 0
    _acknowledged: tuple[int, int, bool] | None = None
    _sender: LogSender | None = None
    _epochs_there: Sequence[EpochRange] = ()
    """The epochs of the primary's log."""
    _has_learned: bool = True
    """Whether the epochs of this log are those that the primary knows, as far as it goes."""
    _damaged_there: Sequence[tuple[int, int]] = ()
    """The ranges that no replica has good, the primary said."""
    _repair_count: int = 0
    _pieces: RepairPieces = field(default_factory=RepairPieces)

    def connected(self, link: Link) -> None:
        """Greet the primary."""
        assert self.state is StandbyState.CONNECTING
        self.is_refused = False
        self.link = link
        self.state = StandbyState.GREETED
        ranges = self.copy.epochs.ranges
        own = greeting(
            self.broker,
            self.name,
            self.copy,
            ranges,
            is_whole=self.is_whole,
            instance=self.instance,
        )
        link.send(Frame(FrameKind.HELLO, self.epoch, self.copy.end_position, 0, own.pack()))

    def connect_failed(self, *, is_refused: bool) -> None:
        """No connection came about."""
        assert self.state is StandbyState.CONNECTING
        self.is_refused = is_refused
        self.state = StandbyState.LOST

    def disconnected(self) -> None:
        """The connection ended."""
        self.link = self._sender = self._acknowledged = None
        self._pieces.forget()
        self.state = StandbyState.LOST

    def received(self, frame: Frame, now_ns: int) -> None:
        """Handle a frame of the primary. Raises ConnectAgain, FrameRefused, LogsDiverged,
        CopyRefused and OSError: the connection is to be closed.
        """
        if self.state is StandbyState.FOLLOWING:
            self.received_ns = now_ns
            self._followed(frame)
        elif frame.kind == FrameKind.WELCOME:
            self.received_ns = now_ns
            self._welcomed(frame)
        elif frame.kind == FrameKind.FETCH:
            self.received_ns = now_ns
            try:
                self._sender = LogSender(self.copy, frame.position, frame.second)
            except SegmentRemoved as error:
                raise ConnectAgain(str(error)) from error
        elif frame.kind == FrameKind.REPAIR:
            self.received_ns = now_ns
            try:
                self._send(piece(self.copy, frame))
            except SegmentRemoved:
                # The candidate has the segment; where all others have removed it, none needs it.
                self._send(Frame(FrameKind.PIECE, self.epoch, frame.position, frame.second))
        else:
            raise FrameRefused(f"{frame.kind.name} before WELCOME")

    def _welcomed(self, frame: Frame) -> None:
        theirs = ReplicaGreeting.unpack(frame.body)
        if self.is_whole and not frame.is_whole:
            self._set_whole(False)
        self._sender = None
        before = self.copy.end_position
        fetch = join(self.copy, theirs, self.epoch, self.floor, self.joined)
        if self.recovery is not None and self.copy.end_position < before:
            self.recovery = None  # Its indexes may know what was cut off.
        self._complete_at = self.primary_end = frame.position
        self._epochs_there = theirs.epochs
        self._has_learned = False
        self._damaged_there = theirs.damaged
        self._confirmed = frame.second
        self.state = StandbyState.FOLLOWING
        self._send(fetch)
        self._ask_for_repair()

    def _followed(self, frame: Frame) -> None:
        if frame.kind in BRINGS:
            gap_count = self.copy.gap_count
            take(self.copy, frame)
            if self.copy.gap_count > gap_count:
                self._complete_at = None
                self._has_learned = False
        elif frame.kind == FrameKind.PIECE:
            assert self.link is not None
            if data := self._pieces.add(self.link, frame):
                self.copy.repair(frame.position + len(frame.body) - len(data), data)
                self.copy, self.recovery = self.reopen(), None
                self.is_whole = self.is_whole and not self.copy.damaged
                raise ConnectAgain("a damaged range was repaired")
        elif frame.kind != FrameKind.BEAT:
            raise FrameRefused(f"{frame.kind.name} to a standby")
        if frame.kind == FrameKind.BEAT:
            self._acknowledged = None  # The answer says that this replica is alive.
            self._ask_for_repair()
            self.primary_end = frame.position
            if self._complete_at is None:
                self._complete_at = frame.position
        if frame.kind in (FrameKind.DATA, FrameKind.DAMAGED, FrameKind.BEAT):
            self._confirmed = max(self._confirmed, frame.second)

    def _ask_for_repair(self) -> None:
        if not self._pieces.are_coming and (damaged := self._damaged_here):
            self._repair_count += 1
            start, end = damaged[self._repair_count % len(damaged)]
            self._send(Frame(FrameKind.REPAIR, self.epoch, start, end))

    def _send(self, frame: Frame) -> None:
        assert self.link is not None
        self.link.send(frame)

    def end_turn(self) -> None:
        """Acknowledge, and take in what is confirmed. Raises ConnectAgain and OSError."""
        if self.state is StandbyState.GREETED and self._sender is not None:
            assert self.link is not None
            try:
                self._sender.pump(self.link, self.epoch, 0, MAX_PUMP_BYTES)
            except SegmentRemoved as error:
                raise ConnectAgain(str(error)) from error
        if self.state is not StandbyState.FOLLOWING or self.copy.failed is not None:
            return
        copy = self.copy
        if not self._has_learned and copy.segments and copy.end_position > copy.segments[-1].base:
            self._learn_epochs()
        if not self.is_whole and self._is_complete:
            self._become_whole()
        ack = (copy.end_position, copy.durable_end_position, self.is_whole)
        if ack != self._acknowledged:
            self._acknowledged = ack
            written, durable, is_whole = ack
            self._send(Frame(FrameKind.ACK, self.epoch, written, durable, is_whole=is_whole))
        self._follow()

    def _learn_epochs(self) -> None:
        """Take over the primary's epochs; it may have removed segments that this log lacks."""
        before = [replace(epoch) for epoch in self.copy.epochs.ranges]
        learn_epochs(self.copy, self._epochs_there)
        if self.copy.epochs.ranges != before:
            self.joined(self.copy.epochs.ranges)
        self._has_learned = True

    def _become_whole(self) -> None:
        """This log has all that the primary's had: so it may be counted."""
        learn_epochs(self.copy, self._epochs_there)
        self.joined(self.copy.epochs.ranges)
        self._set_whole(True)

    def _set_whole(self, is_whole: bool) -> None:
        self.note_whole(is_whole)
        self.is_whole = is_whole

    @property
    def lag_bytes(self) -> int:
        """How much of the primary's log this one lacks."""
        return max(0, self.primary_end - self.copy.end_position)

    @property
    def _damaged_here(self) -> list[tuple[int, int]]:
        """The damaged ranges that the primary's log has undamaged."""
        left = list(self.copy.damaged)
        for first, stop in self._damaged_there:
            pieces = [((start, min(end, first)), (max(start, stop), end)) for start, end in left]
            left = [(start, end) for pair in pieces for start, end in pair if start < end]
        return left

    @property
    def _is_complete(self) -> bool:
        """Whether the log is what the primary's was at a time."""
        is_there = self._complete_at is not None and self.copy.end_position >= self._complete_at
        return is_there and not self._damaged_here

    def _follow(self) -> None:
        """Take in what is confirmed."""
        confirmed = min(self._confirmed, self.copy.end_position)
        self.floor = max(self.floor, confirmed)
        recovery = self.recovery
        if recovery is None or not recovery.is_usable:
            self.recovery = recovery = self.recover(self.copy) if self._is_complete else None
        if recovery is not None and confirmed > recovery.position:
            recovery.follow(confirmed)
