"""The journal of one segment: what it begins with, and what came of that up to its end.

A channel's cursor entries are numbered, so one that is missing is known by its number::

    head: 41, all of it | 42 | 43 |  x  | 45: what was finished in 44 is told nowhere

A broker that starts there goes on from 43 and delivers what came behind it again.  So the audit
names the channel, and the offsets that the missing entry may have told of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from martlet.broker.journal.cursor_entry import CursorState, channel_of, number_of
from martlet.broker.journal.entries import (
    ChannelDeletedEntry,
    ChannelEntry,
    ChannelRecord,
    ChannelReplayedEntry,
    CommittedEntry,
    SetAsideEntry,
    SnapshotEntry,
    TogetherEntry,
    TopicDeletedEntry,
    TopicEntry,
    TopicRecord,
    TopologyEntry,
    UnknownTransactionEntry,
    decode,
    decode_passed,
)
from martlet.broker.offset_ranges import Stretch
from martlet.broker.tracing.counters import unpack_accounts
from martlet.log.atomic_batches import entry_of
from martlet.log.record import BadRecord, Header, RecordKind, payload
from martlet.names import is_ephemeral
from martlet.pipeline.audit.record_scan import Walked

HOUR_NS = 3600 * 10**9


@dataclass
class JournaledChannel:
    """A channel at one queue, as it was told so far.

    Attributes:
        record: as the journal has it.
        cursor: how far it is.
        known: whether the cursor was told from some point on without a gap.
        made: whether the channel was made in this segment.
        first_number: of the cursor entry before the first that is here.
        position: of what told of it last.
        epoch: the broker's run then.
    """

    record: ChannelRecord
    cursor: CursorState
    known: bool
    made: bool
    first_number: int
    position: int
    epoch: int

    @property
    def to_json(self) -> dict[str, Any]:
        """All of it, for JSON."""
        cursor = self.cursor
        return {
            "name": self.record.name,
            "group": (self.record.policy or {}).get("kind") == "offsets",
            "voids": self.record.voids,
            "next": cursor.next,
            "ranges": cursor.ranges,
            "stragglers": sorted(cursor.stragglers),
            "number": cursor.number,
            "first_number": self.first_number,
            "known": self.known,
            "made": self.made,
            "position": self.position,
            "epoch": self.epoch,
        }


@dataclass
class QueueState:
    """A topic at one of its queues, as it was told so far.

    Attributes:
        record: as the journal has it.
        made_at: the position where it was made; None where it was there before.
        end_offset: up to where it was known to reach.
        position: of what told of it last.
    """

    record: TopicRecord
    made_at: int | None
    end_offset: int
    position: int
    channels: dict[int, JournaledChannel] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, Any]:
        """All of it, for JSON."""
        record = self.record
        return {
            "name": record.name,
            "queue": record.queue,
            "id_base": record.id_base,
            "voids": record.voids,
            "backlog": record.backlog_offset,
            "paused_at": record.paused_at,
            "delayed": record.delayed is not None,
            "made_at": self.made_at,
            "end": self.end_offset,
            "position": self.position,
            "channels": {id: channel.to_json for id, channel in self.channels.items()},
        }


class AccountAt(NamedTuple):
    """What a channel had done by a time."""

    position: int
    time_ns: int
    counts: npt.NDArray[np.int64]


class Journal:
    """The journal of a segment, or what a checkpoint tells."""

    def __init__(self) -> None:
        self.begins_whole = False
        """Whether what a segment begins with was there."""
        self.stored: tuple[int, Any] | None = None
        """Which stretches of the log were not let go, and the position at which that was told."""
        self.topics: dict[int, QueueState] = {}
        self.deleted: list[tuple[int, int]] = []
        """Topics, and the positions where that was told."""
        self.gaps: list[tuple[int, dict[str, Any]]] = []
        """Topics, and which finish records are missing."""
        self.epochs: list[tuple[int, int, int, list[Stretch]]] = []
        """Of each start of the broker: its number, the position, the time, and what was damaged
        then behind the last checkpoint.
        """
        self.accounts: dict[tuple[int, int, int, int], AccountAt] = {}
        """By topic, channel, epoch and hour."""

    @classmethod
    def of(cls, walked: Walked) -> Journal:
        """The journal of a segment."""
        journal = cls()
        kinds = walked.headers["kind"]
        told = np.isin(
            kinds,
            [
                RecordKind.TOPOLOGY,
                RecordKind.CURSOR,
                RecordKind.EPOCH,
                RecordKind.ACCOUNTS,
                RecordKind.BUNDLE,
            ],
        )
        for fields in walked.headers[told].tolist():
            header = Header._make(fields)
            record = walked.record(header.position, header.length)
            if header.kind == RecordKind.BUNDLE:
                journal._bundle(entry_of(header, record), header.position)
                continue
            journal.take(
                header.kind, header.topic, bytes(payload(header, record)),
                header.position, header.epoch, header.stored_at_ns,
            )  # fmt: skip
        return journal

    def take(
        self, kind: int, topic: int, entry: bytes, position: int, epoch: int, time_ns: int
    ) -> None:
        """Take in an entry."""
        if kind == RecordKind.TOPOLOGY:
            self._topology(decode(RecordKind.TOPOLOGY, entry), position)
        elif kind == RecordKind.CURSOR:
            self._cursor(topic, entry, position, epoch)
        elif kind == RecordKind.EPOCH:
            self.epochs.append((epoch, position, time_ns, decode_passed(entry)))
        elif kind == RecordKind.ACCOUNTS:
            self._account(entry, position, epoch, time_ns)

    def _account(self, entry: bytes, position: int, epoch: int, time_ns: int) -> None:
        try:
            for account in unpack_accounts(entry):
                place = account.topic, account.channel, epoch, time_ns // HOUR_NS
                self.accounts[place] = AccountAt(position, time_ns, account.counts)
        except BadRecord:
            return  # Of a later version: the next one counts.

    def states(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The topics that are there at the end, by number."""
        for topic, state in self.topics.items():
            yield topic, state.told

    # topology

    def _bundle(self, entry: bytes, position: int) -> None:
        found = decode(RecordKind.BUNDLE, entry)
        if isinstance(found, CommittedEntry | SetAsideEntry | UnknownTransactionEntry):
            for topic in found.topics or ():
                self._topic(topic, position)

    def _topology(self, entry: TopologyEntry, position: int) -> None:
        match entry:
            case SnapshotEntry():
                self._snapshot(entry, position)
            case TogetherEntry(entries):
                for each in entries:
                    self._topology(each, position)
            case TopicEntry(record):
                self._topic(record, position)
            case TopicDeletedEntry(id):
                self.topics.pop(id, None)
                self.deleted.append((id, position))
            case _:
                state = self.topics.get(entry.topic_id)
                if state is not None:
                    self._of_channel(state, entry, position)

    def _of_channel(
        self,
        state: QueueState,
        entry: ChannelEntry | ChannelDeletedEntry | ChannelReplayedEntry,
        position: int,
    ) -> None:
        match entry:
            case ChannelEntry(channel=record):
                self._channel(state, record, position)
            case ChannelDeletedEntry(id=id, backlog_offset=backlog_offset):
                state.channels.pop(id, None)
                if backlog_offset is not None:
                    state.record = replace(state.record, backlog_offset=backlog_offset)
            case ChannelReplayedEntry(id=id, offset=offset):
                if id in state.channels:
                    channel = state.channels[id]
                    channel.cursor.go_back(offset)
                    channel.position = position

    def _snapshot(self, snapshot: SnapshotEntry, position: int) -> None:
        self.begins_whole = True
        if snapshot.stored is not None:
            at = position if snapshot.position is None else snapshot.position
            self.stored = at, snapshot.stored
        before, self.topics = self.topics, {}
        for record in snapshot.topics:
            known = before.get(record.id)
            made_at = known.made_at if known else None
            state = QueueState(record, made_at, record.end_offset or 0, position)
            self.topics[record.id] = state
            for channel in record.channels or ():
                if known and channel.id in known.channels:
                    state.channels[channel.id] = known.channels[channel.id]
                    state.channels[channel.id].record = channel
                else:
                    state.channels[channel.id] = JournaledChannel(
                        channel, _cursor_of(channel), False, False, 0, position, 0
                    )

    def _topic(self, record: TopicRecord, position: int) -> None:
        state = self.topics.get(record.id)
        if state is None:
            # The heads of segments leave ephemeral ones out.
            is_new = self.begins_whole and not is_ephemeral(record.name)
            made_at = position if is_new else None
            self.topics[record.id] = QueueState(record, made_at, 0, position)
        else:
            state.record, state.position = record, position

    def _channel(self, state: QueueState, record: ChannelRecord, position: int) -> None:
        known = state.channels.get(record.id)
        if known is not None:
            known.record = record
            return
        # The heads of segments leave ephemeral ones out, so it may have been there before.
        is_new = not is_ephemeral(record.name)
        state.channels[record.id] = JournaledChannel(
            record, _cursor_of(record), is_new, is_new, 0, position, 0
        )

    # cursors

    def _cursor(self, topic: int, entry: bytes, position: int, epoch: int) -> None:
        id, full = channel_of(entry)
        state = self.topics.get(topic)
        channel = state.channels.get(id) if state is not None else None
        if channel is None:
            return  # Of an ephemeral one, or of one that is told of by a damaged record alone.
        number = number_of(entry)
        before = channel.cursor
        expected = before.number if full else before.number + 1
        if not channel.known:
            channel.first_number = number if full else number - 1
            channel.known = full
        elif number > expected:
            self.gaps.append((topic, self._gap(id, channel, entry, number, expected, position)))
        if not full:
            # What follows is to be laid over it, as far as it is known.
            before.number = number - 1
        before.apply(entry)
        channel.position, channel.epoch = position, epoch

    @staticmethod
    def _gap(
        id: int, channel: JournaledChannel, entry: bytes, number: int, expected: int, position: int
    ) -> dict[str, Any]:
        following = CursorState(0, 0, number=number - 1)
        following.apply(entry)
        return {
            "channel": id,
            "name": channel.record.name,
            "missing": number - expected,
            "since": channel.position,
            "position": position,
            "first": min([channel.cursor.next, *(first for first, _ in channel.cursor.ranges)]),
            "end": following.next,
        }


def _cursor_of(channel: ChannelRecord) -> CursorState:
    """The cursor of a channel of which no cursor entry is known."""
    return CursorState(channel.start or 0, channel.start or 0)
