"""Facts: what one segment of a log tells, for whoever puts segments together.

A segment begins with the whole journal, so each can be read by itself, wherever Spark likes.  What
is found is little however many messages there are: batches whose offsets follow each other within
an hour are one row, and of the journal's many entries only what they come to is told.

===========  =====================================================================================
`RUN`        batches of a queue that follow each other, of one hour
`STATE`      a queue's topic and channels as they are at the segment's end
`ACCOUNT`    what a channel has done up to the end of an hour (`martlet.broker.tracing.counters`)
`GAP`        a channel's finish records of which one is missing within the segment
`DELETED`    a topic was deleted
`NEEDED`     what of a topic of the broker's own is needed; from the checkpoint
`SEGMENT`    the segment itself; of no topic, as the next ones
`DAMAGE`     positions that hold no good record
`EPOCH`      the broker was started, and which damage it has passed over
`GONE`       the segment was let go while it was read
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
    """What a fact is of."""

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
    """A row.

    Attributes:
        broker: whose log.
        topic: the number of the topic's queue; 0 for none.
        kind: a `FactKind`.
        segment: the first position of the segment that tells it.
        position, end_position: where it stands, or up to where it reaches.
        epoch: the broker's run.
        first, end: offsets, or what else the kind counts.
        since_ns, until_ns: when, in nanoseconds since 1970.
        messages, body_bytes: how many, and how long their bodies are.
        moved: whether these are copies that cleaning has made.
        only: the number of the channel that alone gets them; of an account, whose it is.
        payload: the rest.
    """

    broker: str
    topic: int
    kind: int
    segment: int
    position: int
    end_position: int = 0
    epoch: int = 0
    first: int = 0
    end: int = 0
    since_ns: int = 0
    until_ns: int = 0
    messages: int = 0
    body_bytes: int = 0
    moved: bool = False
    only: int = 0
    payload: bytes = b""


_TYPES = {
    "broker": pa.string(),
    "kind": pa.int16(),
    "moved": pa.bool_(),
    "payload": pa.binary(),
}
SCHEMA = pa.schema(
    [pa.field(name, _TYPES.get(name, pa.int64()), nullable=False) for name in Fact._fields]
)
_WORDS = {"broker": "STRING", "kind": "SMALLINT", "moved": "BOOLEAN", "payload": "BINARY"}
DDL = ", ".join(f"{name} {_WORDS.get(name, 'BIGINT')}" for name in Fact._fields)
"""The same in Spark's words."""


def table(facts: list[Fact]) -> pa.RecordBatch:
    """Facts as columns."""
    columns = list(zip(*facts, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def facts_of(broker: str, walked: Walked, *, last: bool) -> Iterator[Fact]:
    """What a segment tells.

    Args:
        broker: whose it is.
        walked: its records.
        last: whether it is the log's last, which may end anywhere.
    """
    base = walked.base
    yield from _runs(broker, walked)
    journal = Journal.of(walked)
    for topic, state in journal.states():
        yield state_fact(broker, topic, base, state)
    for topic, position in journal.deleted:
        yield Fact(broker, topic, FactKind.DELETED, base, position)
    for topic, gap in journal.gaps:
        told = json.dumps(gap, separators=(",", ":")).encode()
        yield Fact(broker, topic, FactKind.GAP, base, gap["position"], payload=told)
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
        first=int(journal.begins_whole), end=messages, messages=len(headers),
        body_bytes=len(walked.data),
        since_ns=int(times_ns.min(initial=2**63 - 1)) if len(times_ns) else 0,
        until_ns=int(times_ns.max(initial=0)), only=int(walked.was_ended),
        payload=json.dumps(journal.stored).encode(),
    )  # fmt: skip


def state_fact(
    broker: str, topic: int, segment: int, state: dict[str, Any], *, checkpoint: bool = False
) -> Fact:
    """A queue and its channels, as a segment or the checkpoint tells them."""
    told = json.dumps(state | {"checkpoint": checkpoint}, separators=(",", ":")).encode()
    return Fact(broker, topic, FactKind.STATE, segment, state["position"], payload=told)


def _damage(broker: str, walked: Walked, last: bool) -> Iterator[Fact]:
    found = list(walked.damage)
    behind = walked.base + len(walked.data)
    if not walked.closed and not last:
        reason = walked.torn.reason if walked.torn else "the segment is cut, or was written over"
        header = walked.torn.header if walked.torn else None
        found.append(ScanDamage(walked.end, behind, reason, header))
    elif walked.torn is not None and walked.torn.header is not None:
        header = walked.torn.header
        if header.next_position > behind:
            # No broker writes beyond the room that it has made: this is no torn tail.
            reason = "the file is cut within a record"
            found.append(ScanDamage(walked.end, header.next_position, reason, header))
    for each in found:
        told: dict[str, Any] = {"reason": each.reason}
        if each.header is not None:
            header = each.header
            told |= {"kind": _kind(header.kind), "topic": header.topic}
            if header.kind == RecordKind.BATCH:
                told |= {"first": header.first_offset, "count": header.count}
        yield Fact(
            broker, 0, FactKind.DAMAGE, walked.base, each.start, each.end,
            payload=json.dumps(told).encode(),
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
