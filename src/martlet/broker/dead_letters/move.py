"""Transfers: messages on their way from a channel to another topic.

A message that is moved is appended to where it goes first, and finished in its channel when it is
as safe there as a publish that was answered OK::

    in the channel        set aside, with nobody      -> appended, waits for a flush    -> finished
    where it goes         not there                      there                             there
    after a crash here    the channel has it             both have it, or the channel      moved

So a crash may double it and never loses it.  Where it cannot be appended, because the disk is full
or a limit is reached, it stays in its channel: set aside until that is possible, or put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.log.record import FRAME_HEADER_BYTES
from martlet.properties.model import BadProperties, Properties

if TYPE_CHECKING:
    from martlet.broker.queue.channel_state import ChannelState
    from martlet.broker.queue.queue_log import Receipt
    from martlet.broker.topic.registry import TopicRegistry
    from martlet.broker.topic.topic import Topic

_AT_ONCE = 200
_BYTES_AT_ONCE = 1 << 20
"""So many are appended before others have their turn."""
_AGAIN_NS = 5_000_000_000
"""After so long what was refused is tried again."""
_STORED_AT = 8
"""Where the time stands in a frame."""


@dataclass(slots=True, eq=False)
class MessageMove:
    """One message on its way.

    Attributes:
        channel: which has it.
        offset: its offset there.
        attempts: how often it was delivered there.
        to: finds, or makes, the topic where it goes. Raises WritesRefused.
        pack: makes the properties that it has there, of those that it had and of when it was
            stored.
        only: a channel of that topic that alone gets it; None for all.
        insists: whether it is tried again where it was refused; else it is put back.
        on_end: called when it has been finished in its channel, with None; with an error where it
            stays there for good, or has gone from there meanwhile.
        receipt: once it is staged.
        failures: how often it had failed in its channel, where that is more than is known there.
    """

    channel: ChannelState
    offset: int
    attempts: int
    to: Callable[[], Topic]
    pack: Callable[[bytes, int], bytes]
    only: ChannelState | None = None
    insists: bool = True
    on_end: Callable[[WritesRefused | None], None] = lambda error: None
    receipt: Receipt | None = None
    failures: int = 0


@dataclass(slots=True)
class _Load:
    """What goes to one place at once: who, bodies, and properties by number."""

    transfers: list[MessageMove]
    bodies: list[bytes]
    entries: list[tuple[int, bytes]]


class MessageMover:
    """All that is on its way.

    Args:
        topics: of the broker.
    """

    def __init__(self, topics: TopicRegistry) -> None:
        self.waits_for_flush = False
        """Whether a publish is answered OK only when it is durable."""
        self.on_written: Callable[[], None] = lambda: None
        """Called when something was appended that waits for a flush."""
        self.on_refused: Callable[[MessageMove, WritesRefused], None] = lambda transfer, error: None
        """Called with the first of those that were refused in a row."""
        self._topics = topics
        self._waiting: deque[MessageMove] = deque()
        self._written: deque[MessageMove] = deque()
        self._alarm = topics.schedule.alarm(self._run)
        self._refused = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._written)

    def begin(self, transfer: MessageMove) -> None:
        """Move a message that nobody has in flight, as soon as the broker is at leisure."""
        transfer.channel.aside.add(transfer.offset, transfer.attempts, transfer.failures)
        self._waiting.append(transfer)
        self._alarm.at(self._topics.clock())

    def _run(self, now_ns: int) -> int | None:
        """Append some of what waits. Returns when to look again."""
        self.settle()
        failures: list[BaseException] = []
        blocked = self._append(failures)
        self._topics.commit()
        self.settle()
        if self._written:
            self.on_written()
        if failures:
            raise failures[0]
        if not self._waiting:
            return None
        return now_ns + _AGAIN_NS if blocked or self._refused else now_ns

    def _append(self, failures: list[BaseException]) -> bool:
        """Append what can be of the first that wait. Returns whether something can not be read at
        the moment; what else went wrong is put to the failures, and what it was with comes again.
        """
        loads: dict[tuple[Topic, ChannelState | None], _Load] = {}
        refused: list[tuple[MessageMove, WritesRefused]] = []
        again: list[MessageMove] = []
        is_blocked = False
        left_bytes = _BYTES_AT_ONCE
        for _ in range(min(_AT_ONCE, len(self._waiting))):
            transfer = self._waiting.popleft()
            try:
                left_bytes -= self._load(transfer, loads)
            except OSError:
                again.append(transfer)  # Of the index, as when too many files are open.
                is_blocked = True
            except WritesRefused as error:
                refused.append((transfer, error))
            except BaseException as error:
                again.append(transfer)
                failures.append(error)
            if left_bytes <= 0:
                break
        for (topic, only), load in loads.items():
            try:
                receipt = topic.stage(
                    load.bodies, -only.id if only is not None else 0, load.entries
                )
            except BaseException as error:
                again += load.transfers
                failures.append(error)
                continue
            for transfer in load.transfers:
                transfer.receipt = receipt
                self._written.append(transfer)
        for transfer, why in refused:
            self._refuse(transfer, why)
        self._waiting += again
        return is_blocked

    def _load(
        self, transfer: MessageMove, loads: dict[tuple[Topic, ChannelState | None], _Load]
    ) -> int:
        """Read a message, to go with the others that go to the same place. Returns its bytes."""
        channel, offset = transfer.channel, transfer.offset
        if not channel.aside.holds(offset):
            # Emptied, deleted, set back, or given up to make room.
            transfer.on_end(WritesRefused("the channel has it no more"))
            return 0
        cursor = channel.cursor
        frame = cursor.frame(offset, transfer.attempts)
        if frame is None:
            channel.aside.finish(offset)
            transfer.on_end(WritesRefused("it can not be read any more"))
            return 0
        stored_at_ns = int.from_bytes(frame[_STORED_AT : _STORED_AT + 8])
        entry = transfer.pack(cursor.properties(offset), stored_at_ns)
        to, only = transfer.to(), transfer.only
        if self._topics.queues.get(to.id) is not to or (only is not None and only.closed):
            # Nobody would get it there.
            channel.aside.put_back(offset, transfer.attempts)
            gone = f"the channel {only.name!r} of it" if only is not None else "it"
            why = f"it was to go to topic {to.name!r}, and {gone} was deleted meanwhile"
            transfer.on_end(WritesRefused(why))
            return 0
        load = loads.setdefault((to, only), _Load([], [], []))
        if entry:
            load.entries.append((len(load.bodies), entry))
        load.bodies.append(bytes(frame[FRAME_HEADER_BYTES:]))
        load.transfers.append(transfer)
        return len(frame) + len(entry)

    def settle(self) -> None:
        """Finish in their channels what is safe where it went."""
        for _ in range(len(self._written)):
            transfer = self._written.popleft()
            receipt = transfer.receipt
            assert receipt is not None
            if receipt.error is not None:
                self._refuse(transfer, receipt.error)
            elif receipt.position and self._is_safe(receipt.position):
                self._refused = False
                self._topics.moved_to = max(self._topics.moved_to, receipt.position)
                if transfer.channel.aside.holds(transfer.offset):
                    transfer.channel.aside.finish(transfer.offset)
                transfer.on_end(None)
            else:
                self._written.append(transfer)

    def _is_safe(self, position: int) -> bool:
        return not self.waits_for_flush or position <= self._topics.log.durable_position

    def _refuse(self, transfer: MessageMove, error: WritesRefused) -> None:
        if not self._refused:
            self._refused = True
            self.on_refused(transfer, error)
        transfer.receipt = None
        if transfer.insists:
            self._waiting.append(transfer)
            return
        if transfer.channel.aside.holds(transfer.offset):
            transfer.channel.aside.put_back(transfer.offset, transfer.attempts)
        transfer.on_end(error)


def append_again(
    topics: TopicRegistry, mover: MessageMover, channel: ChannelState, offset: int, attempts: int
) -> None:
    """Begin to move a message to the end of its queue, for its channel alone."""
    to = partial(_queue_of, topics, channel)
    mover.begin(MessageMove(channel, offset, attempts, to, _kept, only=channel))


def _queue_of(topics: TopicRegistry, channel: ChannelState) -> Topic:
    return topics.topic(channel.topic).part(channel.queue.number)


def _kept(entry: bytes, stored_at_ns: int) -> bytes:
    """The properties of a message that is appended again: it is no producer's send any more."""
    if not entry:
        return entry
    try:
        return replace(Properties.unpack(entry), sent=None).pack()
    except BadProperties:
        return b""
