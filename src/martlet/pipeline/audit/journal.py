"""The journal of one segment: what it begins with, and what came of that up to its end.

A channel's cursor entries are numbered, so one that is missing is known by its number::

    head: 41, all of it | 42 | 43 |  x  | 45: what was finished in 44 is told nowhere

A broker that starts there goes on from 43 and delivers what came behind it again.  So the audit
names the channel, and the offsets that the missing entry may have told of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Stretch
from martlet.broker.recovery.journal import (
    CursorState,
    Description,
    channel_of,
    unpack_passed,
    unpack_topology,
)
from martlet.broker.tracing.counters import unpack_accounts
from martlet.log.atomic_batches import entry_of
from martlet.log.record import BadRecord, Header, RecordKind, payload
from martlet.names import is_ephemeral
from martlet.pipeline.audit.record_scan import Walked

HOUR_NS = 3600 * 10**9
_NUMBER = slice(36, 40)
"""Where a cursor entry has its number."""


@dataclass
class JournaledChannel:
    """A channel at one queue, as it was told so far.

    Attributes:
        description: as the journal has it; empty where it was told in an earlier segment alone.
        cursor: how far it is.
        known: whether the cursor was told from some point on without a gap.
        made: whether the channel was made in this segment.
        first_number: of the cursor entry before the first that is here.
        position: of what told of it last.
        epoch: the broker's run then.
    """

    description: Description
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
            "name": self.description.get("name", ""),
            "group": self.description.get("policy", {}).get("kind") == "offsets",
            "voids": self.description.get("voids", []),
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
        description: as the journal has it.
        made_at: the position where it was made; None where it was there before.
        end_offset: up to where it was known to reach.
        position: of what told of it last.
    """

    description: Description
    made_at: int | None
    end_offset: int
    position: int
    channels: dict[int, JournaledChannel] = field(default_factory=dict)

    @property
    def told(self) -> dict[str, Any]:
        """All of it, for JSON."""
        description = self.description
        return {
            "name": description["name"],
            "queue": description.get("queue", 0),
            "id_base": description["id_base"],
            "voids": description["voids"],
            "backlog": description["backlog_offset"],
            "paused_at": description["paused_at"],
            "delayed": "delayed" in description,
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
                for description in json.loads(entry_of(header, record))["topics"]:
                    journal._topic({"topic": description}, header.position)
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
            self._topology(unpack_topology(entry), position)
        elif kind == RecordKind.CURSOR:
            self._cursor(topic, entry, position, epoch)
        elif kind == RecordKind.EPOCH:
            self.epochs.append((epoch, position, time_ns, unpack_passed(entry)))
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

    def _topology(self, fields: Description, position: int) -> None:
        op = fields["op"]
        if op == "snapshot":
            self._snapshot(fields, position)
        elif op == "together":
            for each in fields["ops"]:
                self._topology(each, position)
        elif op == "topic":
            self._topic(fields, position)
        elif op == "topic_deleted":
            self.topics.pop(fields["id"], None)
            self.deleted.append((fields["id"], position))
        elif fields.get("topic_id") in self.topics:
            state = self.topics[fields["topic_id"]]
            if op == "channel":
                self._channel(state, fields["channel"], position)
            elif op == "channel_deleted":
                state.channels.pop(fields["id"], None)
                if "backlog_offset" in fields:
                    state.description["backlog_offset"] = fields["backlog_offset"]
            elif op == "channel_replayed" and fields["id"] in state.channels:
                channel = state.channels[fields["id"]]
                channel.cursor.go_back(fields["offset"])
                channel.position = position

    def _snapshot(self, fields: Description, position: int) -> None:
        self.begins_whole = True
        if "stored" in fields:
            self.stored = fields.get("position", position), fields["stored"]
        before, self.topics = self.topics, {}
        for description in fields["topics"]:
            channels = description.pop("channels")
            end_offset = description["end_offset"]
            known = before.get(description["id"])
            made_at = known.made_at if known else None
            state = QueueState(description, made_at, end_offset, position)
            self.topics[description["id"]] = state
            for channel in channels:
                if known and channel["id"] in known.channels:
                    state.channels[channel["id"]] = known.channels[channel["id"]]
                    state.channels[channel["id"]].description = channel
                else:
                    cursor = CursorState(channel["start"], channel["start"])
                    state.channels[channel["id"]] = JournaledChannel(
                        channel, cursor, False, False, 0, position, 0
                    )

    def _topic(self, fields: Description, position: int) -> None:
        description = fields["topic"]
        state = self.topics.get(description["id"])
        if state is None:
            # The heads of segments do not tell of ephemeral ones.
            is_new = self.begins_whole and not is_ephemeral(description["name"])
            made_at = position if is_new else None
            self.topics[description["id"]] = QueueState(description, made_at, 0, position)
        else:
            state.description, state.position = description, position

    def _channel(self, state: QueueState, channel: Description, position: int) -> None:
        known = state.channels.get(channel["id"])
        if known is not None:
            known.description = channel
            return
        cursor = CursorState(channel["start"], channel["start"])
        # The heads of segments do not tell of ephemeral ones, so it may have been there before.
        is_new = not is_ephemeral(channel["name"])
        state.channels[channel["id"]] = JournaledChannel(
            channel, cursor, is_new, is_new, 0, position, 0
        )

    # cursors

    def _cursor(self, topic: int, entry: bytes, position: int, epoch: int) -> None:
        id, full = channel_of(entry)
        state = self.topics.get(topic)
        channel = state.channels.get(id) if state is not None else None
        if channel is None:
            return  # Of an ephemeral one, or of one that is told of by a damaged record alone.
        number = int.from_bytes(entry[_NUMBER], "little")
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
            "name": channel.description.get("name", ""),
            "missing": number - expected,
            "since": channel.position,
            "position": position,
            "first": min([channel.cursor.next, *(first for first, _ in channel.cursor.ranges)]),
            "end": following.next,
        }
