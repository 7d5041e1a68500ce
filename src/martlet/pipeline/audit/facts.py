"""Facts: the summary of one segment of a log, as rows.

A segment begins with a snapshot of the journal, so Spark tasks can read segments independently.
The rows are few, however many messages there are: consecutive batches within an hour are one row,
and the journal's entries are reduced to the state that they result in.

===========  =====================================================================================
`RUN`        consecutive batches of a queue, of one hour
`STATE`      a queue's topic and channels at the segment's end
`ACCOUNT`    a channel's counters at the end of an hour (`martlet.broker.tracing.counters`)
`GAP`        missing finish records of a channel within the segment
`DELETED`    a topic was deleted
`NEEDED`     offsets of a system topic that the checkpoint needs
`SEGMENT`    the segment itself; this and the next kinds have no topic
`DAMAGE`     positions without a valid record
`EPOCH`      a start of the broker, with the damage that it skipped
`GONE`       the broker removed the segment while it was read
===========  =====================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from martlet.log.record import FRAME_HEADER_BYTES, RecordFlag, RecordKind
from martlet.pipeline.audit.journal import HOUR_NS, Journal
from martlet.pipeline.audit.record_scan import Headers, ScanDamage, Walked


class FactKind(IntEnum):
    """The kind of a fact."""

    RUN = 1
    STATE = 2
    ACCOUNT = 3
    GAP = 4
    DELETED = 5
    NEEDED = 6
    SEGMENT = 7
    DAMAGE = 8
    EPOCH = 9
    GONE = 10


class Fact(NamedTuple):
    """A row of facts."""

    broker: str
    topic: int
    """The number of the topic's queue; 0 for none."""
    kind: int
    segment: int
    position: int
    end_position: int = 0
    """`position` and `end_position`: the range of positions."""
    epoch: int = 0
    first: int = 0
    end: int = 0
    """`first` and `end`: offsets, or other numbers by the kind."""
    since_ns: int = 0
    until_ns: int = 0
    """`since_ns` and `until_ns`: the time range, in nanoseconds since 1970."""
    messages: int = 0
    body_bytes: int = 0
    """`messages` and `body_bytes`: the number of messages, and the size of their bodies."""
    moved: bool = False
    """Whether the batches are copies made by compaction."""
    only: int = 0
    """The number of the only channel that receives the messages; the channel of an account."""
    payload: bytes = b""
    """Other fields, by the kind."""


_TYPES = {
    "broker": pa.string(),
    "kind": pa.int16(),
    "moved": pa.bool_(),
    "payload": pa.binary(),
}
SCHEMA = pa.schema(
    [pa.field(name, _TYPES.get(name, pa.int64()), nullable=False) for name in Fact._fields]
)


def table(facts: list[Fact]) -> pa.RecordBatch:
    """Convert facts to columns."""
    columns = list(zip(*facts, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def facts_of(broker: str, walked: Walked, *, last: bool) -> Iterator[Fact]:
    """Yield the facts of a segment; the `last` one of a log may end anywhere."""
    base = walked.base
    yield from _runs(broker, walked)
    journal = Journal.of(walked)
    for topic, state in journal.topics.items():
        yield state_fact(broker, topic, base, state.to_json)
    for topic, position in journal.deleted:
        yield Fact(broker, topic, FactKind.DELETED, base, position)
    for topic, gap in journal.gaps:
        fields = json.dumps(gap, separators=(",", ":")).encode()
        yield Fact(broker, topic, FactKind.GAP, base, gap["position"], payload=fields)
    for (topic, channel, epoch, _), account in journal.accounts.items():
        yield Fact(
            broker, topic, FactKind.ACCOUNT, base, account.position, epoch=epoch, only=channel,
            since_ns=account.time_ns, payload=account.counts.tobytes(),
        )  # fmt: skip
    for epoch, position, time_ns, passed in journal.epochs:
        yield Fact(
            broker, 0, FactKind.EPOCH, base, position, epoch=epoch, since_ns=time_ns,
            payload=json.dumps(passed).encode(),
        )  # fmt: skip
    yield from _damage(broker, walked, last)
    headers = walked.headers
    times_ns = headers["stored_at_ns"][headers["stored_at_ns"] > 0]
    fresh = (headers["kind"] == RecordKind.BATCH) & (headers["flags"] & RecordFlag.RELOCATED == 0)
    messages = int(headers["count"][fresh].sum()) + int(walked.bundled["count"].sum())
    yield Fact(
        broker, 0, FactKind.SEGMENT, base, walked.end, base + len(walked.data),
        first=int(journal.has_snapshot), end=messages, messages=len(headers),
        body_bytes=len(walked.data),
        since_ns=int(times_ns.min(initial=2**63 - 1)) if len(times_ns) else 0,
        until_ns=int(times_ns.max(initial=0)), only=int(walked.was_ended),
        payload=json.dumps(journal.stored).encode(),
    )  # fmt: skip


def state_fact(
    broker: str, topic: int, segment: int, state: dict[str, Any], *, checkpoint: bool = False
) -> Fact:
    """Create the fact for the state of a queue in a segment or in the checkpoint."""
    fields = json.dumps(state | {"checkpoint": checkpoint}, separators=(",", ":")).encode()
    return Fact(broker, topic, FactKind.STATE, segment, state["position"], payload=fields)


def _damage(broker: str, walked: Walked, last: bool) -> Iterator[Fact]:
    damage = list(walked.damage)
    behind = walked.base + len(walked.data)
    if not walked.closed and not last:
        reason = walked.torn.reason if walked.torn else "the segment is cut, or was written over"
        header = walked.torn.header if walked.torn else None
        damage.append(ScanDamage(walked.end, behind, reason, header))
    elif walked.torn is not None and walked.torn.header is not None:
        header = walked.torn.header
        if header.next_position > behind:
            # A broker never writes beyond the allocated file: this is not a torn tail.
            reason = "the file is cut within a record"
            damage.append(ScanDamage(walked.end, header.next_position, reason, header))
    for hole in damage:
        fields: dict[str, Any] = {"reason": hole.reason}
        if hole.header is not None:
            header = hole.header
            fields |= {"kind": _kind(header.kind), "topic": header.topic}
            if header.kind == RecordKind.BATCH:
                fields |= {"first": header.first_offset, "count": header.count}
        yield Fact(
            broker, 0, FactKind.DAMAGE, walked.base, hole.start, hole.end,
            payload=json.dumps(fields).encode(),
        )  # fmt: skip


def _kind(number: int) -> str:
    try:
        return RecordKind(number).name.lower()
    except ValueError:
        return f"kind {number}"


def _runs(broker: str, walked: Walked) -> Iterator[Fact]:
    headers: Headers = walked.headers[walked.headers["kind"] == RecordKind.BATCH]
    if len(walked.bundled):
        headers = np.concatenate([headers, walked.bundled])
    if not len(headers):
        return
    headers = headers[np.lexsort((headers["position"], headers["topic"]))]
    topics = headers["topic"].astype(np.int64)
    firsts = headers["first_offset"].astype(np.int64)
    counts = headers["count"].astype(np.int64)
    ends = firsts + counts
    times_ns = headers["stored_at_ns"]
    moved = (headers["flags"] & RecordFlag.RELOCATED) != 0
    only = np.where(headers["deliver_at_ns"] < 0, -headers["deliver_at_ns"], 0)
    hours = times_ns // HOUR_NS
    breaks = firsts[1:] != ends[:-1]
    for column in (topics, hours, moved, only):
        breaks |= column[1:] != column[:-1]
    begins = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    lasts = np.append(begins[1:], len(headers)) - 1
    lengths = headers["length"].astype(np.int64)
    positions = headers["position"].astype(np.int64)
    bodies = headers["payload_length"].astype(np.int64) - FRAME_HEADER_BYTES * counts
    columns = (
        topics[begins], positions[begins], positions[lasts] + lengths[lasts],
        headers["epoch"][begins], firsts[begins], ends[lasts],
        np.minimum.reduceat(times_ns, begins), np.maximum.reduceat(times_ns, begins),
        np.add.reduceat(counts, begins), np.add.reduceat(bodies, begins),
        moved[begins], only[begins],
    )  # fmt: skip
    for topic, *rest in zip(*(column.tolist() for column in columns), strict=True):
        yield Fact(broker, topic, FactKind.RUN, walked.base, *rest)
