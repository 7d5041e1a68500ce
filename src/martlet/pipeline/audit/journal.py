"""The journal of one segment: apply its entries to the snapshot that it begins with.

The cursor entries of a channel are numbered, so a missing one is noticed by its number::

    head: 41, complete | 42 | 43 |  x  | 45: the messages that 44 finished are unknown

A broker that starts from this log continues from 43 and redelivers later messages.  So the audit
reports the channel, and the offsets that the missing entry may have finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from martlet.broker.journal.cursors import CursorState, channel_of, number_of
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
from martlet.log.record import BadRecord, Header, RecordKind, entry_of, payload
from martlet.names import is_ephemeral
from martlet.pipeline.audit.record_scan import Walked

HOUR_NS = 3600 * 10**9


@dataclass
class JournaledChannel:
    """The state of a channel at one queue."""

    record: ChannelRecord
    cursor: CursorState
    known: bool
    """Whether a complete cursor and all entries after it were read."""
    made: bool
    """Whether the channel was created in this segment."""
    first_number: int
    """The number of the cursor entry before the first one of this segment."""
    position: int
    epoch: int

    @property
    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
        cursor = self.cursor
        return {
            "name": self.record.name,
            "group": (self.record.policy or {}).get("kind") == "offsets",
            "voids": self.record.voids,
            "next": cursor.next,
            "ranges": cursor.ranges,
            "stragglers": sorted(cursor.pending),
            "number": cursor.number,
            "first_number": self.first_number,
            "known": self.known,
            "made": self.made,
            "position": self.position,
            "epoch": self.epoch,
        }


@dataclass
class QueueState:
    """The state of a queue."""

    record: TopicRecord
    made_at: int | None
    """The position of its creation; None if it was created before this segment."""
    end_offset: int
    """Its end offset in the last snapshot."""
    position: int
    channels: dict[int, JournaledChannel] = field(default_factory=dict)

    @property
    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
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
            "channels": {
                channel_id: channel.to_json for channel_id, channel in self.channels.items()
            },
        }


class AccountAt(NamedTuple):
    """The counters of a channel at a time."""

    position: int
    time_ns: int
    counts: npt.NDArray[np.int64]


class Journal:
    """The journal of a segment or of a checkpoint."""

    def __init__(self) -> None:
        self.has_snapshot = False
        """Whether the segment has the snapshot that it should begin with."""
        self.stored: tuple[int, Any] | None = None
        """The ranges of the log that were not removed, and the position of that record."""
        self.topics: dict[int, QueueState] = {}
        """The queues at the end, by number."""
        self.deleted: list[tuple[int, int]] = []
        """Deleted topics, and the positions of the deletions."""
        self.gaps: list[tuple[int, dict[str, Any]]] = []
        """Missing finish records, by topic."""
        self.epochs: list[tuple[int, int, int, list[Stretch]]] = []
        """Each start: its epoch, position and time, and the damage behind the last checkpoint."""
        self.accounts: dict[tuple[int, int, int, int], AccountAt] = {}
        """By topic, channel, epoch and hour."""

    @classmethod
    def of(cls, walked: Walked) -> Journal:
        """Read the journal of a segment."""
        journal = cls()
        kinds = walked.headers["kind"]
        is_entry = np.isin(
            kinds,
            [
                RecordKind.TOPOLOGY,
                RecordKind.CURSOR,
                RecordKind.EPOCH,
                RecordKind.ACCOUNTS,
                RecordKind.BUNDLE,
            ],
        )
        for fields in walked.headers[is_entry].tolist():
            header = Header._make(fields)
            record = walked.record(header.position, header.length)
            if header.kind == RecordKind.BUNDLE:
                journal._bundle(entry_of(header, record), header.position)
                continue
            journal.apply(
                header.kind, header.topic, bytes(payload(header, record)),
                header.position, header.epoch, header.stored_at_ns,
            )  # fmt: skip
        return journal

    def apply(
        self, kind: int, topic: int, entry: bytes, position: int, epoch: int, time_ns: int
    ) -> None:
        """Apply an entry."""
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
                key = account.topic, account.channel, epoch, time_ns // HOUR_NS
                self.accounts[key] = AccountAt(position, time_ns, account.counts)
        except BadRecord:
            return  # Written by a later version; the next readable one has the totals.

    # topology

    def _bundle(self, entry: bytes, position: int) -> None:
        bundle = decode(RecordKind.BUNDLE, entry)
        if isinstance(bundle, CommittedEntry | SetAsideEntry | UnknownTransactionEntry):
            for topic in bundle.topics or ():
                self._topic(topic, position)

    def _topology(self, entry: TopologyEntry, position: int) -> None:
        match entry:
            case SnapshotEntry():
                self._snapshot(entry, position)
            case TogetherEntry(entries):
                for inner in entries:
                    self._topology(inner, position)
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
        self.has_snapshot = True
        if snapshot.stored is not None:
            at = position if snapshot.position is None else snapshot.position
            self.stored = at, snapshot.stored
        before, self.topics = self.topics, {}
        for record in snapshot.topics:
            earlier = before.get(record.id)
            made_at = earlier.made_at if earlier else None
            state = QueueState(record, made_at, record.end_offset or 0, position)
            self.topics[record.id] = state
            for channel in record.channels or ():
                if earlier and channel.id in earlier.channels:
                    state.channels[channel.id] = earlier.channels[channel.id]
                    state.channels[channel.id].record = channel
                else:
                    state.channels[channel.id] = JournaledChannel(
                        channel, _cursor_of(channel), False, False, 0, position, 0
                    )

    def _topic(self, record: TopicRecord, position: int) -> None:
        state = self.topics.get(record.id)
        if state is None:
            # Snapshots omit ephemeral topics.
            is_new = self.has_snapshot and not is_ephemeral(record.name)
            made_at = position if is_new else None
            self.topics[record.id] = QueueState(record, made_at, 0, position)
        else:
            state.record, state.position = record, position

    def _channel(self, state: QueueState, record: ChannelRecord, position: int) -> None:
        channel = state.channels.get(record.id)
        if channel is not None:
            channel.record = record
            return
        # Snapshots omit ephemeral channels, so it may have existed before.
        is_new = not is_ephemeral(record.name)
        state.channels[record.id] = JournaledChannel(
            record, _cursor_of(record), is_new, is_new, 0, position, 0
        )

    # cursors

    def _cursor(self, topic: int, entry: bytes, position: int, epoch: int) -> None:
        channel_id, full = channel_of(entry)
        state = self.topics.get(topic)
        channel = state.channels.get(channel_id) if state is not None else None
        if channel is None:
            return  # The channel is ephemeral, or its only record is damaged.
        number = number_of(entry)
        before = channel.cursor
        expected = before.number if full else before.number + 1
        if not channel.known:
            channel.first_number = number if full else number - 1
            channel.known = full
        elif number > expected:
            self.gaps.append(
                (topic, self._gap(channel_id, channel, entry, number, expected, position))
            )
        if not full:
            # Apply the entry to the cursor as far as it is known.
            before.number = number - 1
        before.apply(entry)
        channel.position, channel.epoch = position, epoch

    @staticmethod
    def _gap(
        channel_id: int,
        channel: JournaledChannel,
        entry: bytes,
        number: int,
        expected: int,
        position: int,
    ) -> dict[str, Any]:
        following = CursorState(0, 0, number=number - 1)
        following.apply(entry)
        return {
            "channel": channel_id,
            "name": channel.record.name,
            "missing": number - expected,
            "since": channel.position,
            "position": position,
            "first": min([channel.cursor.next, *(first for first, _ in channel.cursor.ranges)]),
            "end": following.next,
        }


def _cursor_of(channel: ChannelRecord) -> CursorState:
    return CursorState(channel.start or 0, channel.start or 0)
