"""The trace recorder: the history of a channel's messages, kept in the log for later searches.

While messages are delivered and answered, each step is one event, for any number of messages. A
group's steps are those that the broker sees: fetches and commits of its members; what members do
with a message in between is unknown to it. With the journal, the collected events are written as
one record. Steps of the same kind within a millisecond become one row, for all consumers together;
its size does not depend on the number of messages, except for two bytes a message if several
consumers had them::

     0 channel u32     8 first time i64 ns    24 table length u32
     4 rows u32       16 holders u32          28 0
                      20 lost events u32
    32 rows:     first offset u64 | time u32 us, from the first time on | count u32
                 delay u32 ms | consumer u16 | reason u16 | attempt u16 | step u8 | 0
     . holders:  consumer u16, for each message of the rows whose consumer is 0xFFFF, in order
     . table:    JSON {"channel": name, "consumers": [...], "reasons": [...]}; 0 is none

Numbers are little-endian. These records are not part of the journal: recovery ignores them, they
keep no segment, and are left out if there is no space for them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from martlet.broker.offset_ranges import Offsets
from martlet.log.record import BadRecord

MAX_EVENTS = 1 << 14
"""The maximum number of events in one piece; then another piece begins."""
MAX_PIECES = 8
"""The maximum number of pieces waiting to be written; then the oldest is dropped."""
BUCKET_NS = 1_000_000
"""Steps within this time may become one row."""

_HEAD = struct.Struct("<IIqIIII")
ROW = np.dtype(
    [
        ("first", "<u8"),
        ("time_us", "<u4"),
        ("count", "<u4"),
        ("delay_ms", "<u4"),
        ("consumer", "<u2"),
        ("reason", "<u2"),
        ("attempt", "<u2"),
        ("step", "u1"),
        ("nothing", "u1"),
    ]
)
_SEVERAL = 0xFFFF
_MAX_NAMES = 0xFFFE
_MAX_U32 = (1 << 32) - 1
_MAX_REASON_LENGTH = 200


class TraceStep(IntEnum):
    """A step in a message's history."""

    DELIVERED = 1
    FINISHED = 2
    REQUEUED = 3
    TIMED_OUT = 4
    GIVEN_BACK = 5
    """Its consumer has left, or returned it unhandled."""
    GIVEN_UP = 6
    """It moves to the channel's dead-letter topic; the reason says why."""
    FETCHED = 7
    """A member of a group has fetched it."""
    COMMITTED = 8
    """The group has committed an offset behind it."""
    SET_BACK = 9
    """The group went back to it or before it, and fetches it again; by a member or an operator."""
    SET_FORWARD = 10
    """An operator moved the group's offset past it."""


class TracedConsumer(Protocol):
    """The consumer that held a message, or the member of a group."""

    @property
    def trace_name(self) -> str:
        """Its name in a trace."""


class TraceRecorder:
    """The unwritten events of one channel."""

    __slots__ = ("_events", "_lost", "_pieces")

    def __init__(self) -> None:
        self._events: list[tuple[Any, ...]] = []
        """Step, first and end offset, time, consumer, attempt, delay and reason of each."""
        self._pieces: list[bytes] = []
        self._lost = 0

    def __bool__(self) -> bool:
        return bool(self._events or self._pieces)

    def note(
        self,
        step: int,
        first: int,
        end: int,
        time_ns: int,
        consumer: TracedConsumer | None,
        attempt: int = 0,
        delay_ns: int = 0,
        reason: str = "",
    ) -> None:
        """Record the same step of all messages in a range of offsets."""
        events = self._events
        events.append((step, first, end, time_ns, consumer, attempt, delay_ns, reason))
        if len(events) >= MAX_EVENTS:
            self._end_piece()

    def note_run(self, step: int, offsets: Offsets, time_ns: int, consumer: TracedConsumer) -> None:
        """Record the same step of messages at these rising offsets."""
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first + 1 == len(offsets):
            self.note(step, first, last + 1, time_ns, consumer)
            return
        cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
        firsts = offsets[np.concatenate(([0], cuts))].tolist()
        ends = (offsets[np.concatenate((cuts - 1, [len(offsets) - 1]))] + 1).tolist()
        for begin, end in zip(firsts, ends, strict=True):
            self.note(step, begin, end, time_ns, consumer)

    def _end_piece(self) -> None:
        self._pieces.append(_packed(self._events))
        self._events = []
        if len(self._pieces) > MAX_PIECES:
            self._lost += _HEAD.unpack_from(self._pieces.pop(0))[1]

    def take(self, channel: int, name: str) -> Iterator[bytes]:
        """Yield the collected events as records' payloads, and forget them."""
        if self._events:
            self._end_piece()
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            lost, self._lost = self._lost, 0
            yield _finished(piece, channel, name, lost)


class _TraceTable:
    """Texts numbered from 1 on."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        if not text:
            return 0
        text = text[:_MAX_REASON_LENGTH]
        number = self._numbers.setdefault(text, len(self._numbers) + 1)
        return number if number <= _MAX_NAMES else 0

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)[:_MAX_NAMES]


def _packed(events: list[tuple[Any, ...]]) -> bytes:
    """Pack a payload without the channel's name."""
    consumers, reasons = _TraceTable(), _TraceTable()
    numbers: dict[TracedConsumer | None, int] = {None: 0}
    for consumer in {event[4] for event in events} - {None}:
        numbers[consumer] = consumers.number(consumer.trace_name)
    steps, firsts, ends, times, holders, attempts, delays, texts = zip(*events, strict=True)
    first_ns = min(times)
    begins = np.array(firsts, np.int64)
    counts = np.array(ends, np.int64) - begins
    time_ns = np.array(times, np.int64)
    keys = np.stack(
        (
            np.array(steps, np.int64),
            np.minimum(np.array(attempts, np.int64), 0xFFFF),
            np.minimum(np.array(delays, np.int64) // 1_000_000, _MAX_U32),
            np.fromiter(map(reasons.number, texts), np.int64, len(texts)),
            (time_ns - first_ns) // BUCKET_NS,
        )
    )
    holder = np.array([numbers[consumer] for consumer in holders], np.int64)
    order = np.lexsort((begins, *keys))
    keys, begins, counts, time_ns, holder = (
        keys[:, order], begins[order], counts[order], time_ns[order], holder[order],
    )  # fmt: skip
    goes_on = (keys[:, 1:] == keys[:, :-1]).all(axis=0)
    goes_on &= begins[1:] == begins[:-1] + counts[:-1]
    starts = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
    rows = np.zeros(len(starts), ROW)
    rows["first"] = begins[starts]
    rows["count"] = np.minimum(np.add.reduceat(counts, starts), _MAX_U32)
    earliest_ns = np.minimum.reduceat(time_ns, starts)
    rows["time_us"] = np.minimum((earliest_ns - first_ns) // 1000, _MAX_U32)
    rows["step"], rows["attempt"], rows["delay_ms"], rows["reason"] = keys[:4, starts]
    several = np.minimum.reduceat(holder, starts) != np.maximum.reduceat(holder, starts)
    rows["consumer"] = np.where(several, _SEVERAL, holder[starts])
    of_several = np.repeat(several, np.diff(np.append(starts, len(begins))))
    holder_numbers = np.repeat(holder[of_several], counts[of_several]).astype("<u2")
    order = np.argsort(np.minimum.reduceat(order, starts))
    if len(holder_numbers):
        holder_numbers = np.concatenate(
            [_part(holder_numbers, rows, several, number) for number in order]
        )
    table = json.dumps({"consumers": consumers.texts, "reasons": reasons.texts}).encode()
    head = _HEAD.pack(0, len(rows), first_ns, len(holder_numbers), 0, len(table), 0)
    return b"".join((head, rows[order].tobytes(), holder_numbers.tobytes(), table))


def _part(
    holder_numbers: npt.NDArray[np.uint16],
    rows: npt.NDArray[Any],
    several: npt.NDArray[np.bool_],
    row: int,
) -> npt.NDArray[np.uint16]:
    """Return the part of the holders that belongs to one row."""
    if not several[row]:
        return holder_numbers[:0]
    start = int(rows["count"][:row][several[:row]].sum())
    return holder_numbers[start : start + int(rows["count"][row])]


def _order(row: Any) -> tuple[int, int, int]:
    """Return the sort key of a message's rows: in a millisecond, fetching first, finishing last."""
    bucket, step = int(row["time_us"]) * 1000 // BUCKET_NS, int(row["step"])
    first = step == TraceStep.FETCHED
    return bucket, 0 if first else int(row["attempt"]) or _SEVERAL, step


def _finished(piece: bytes, channel: int, name: str, lost: int) -> bytes:
    _, rows, first_ns, holders, _, table_length, _ = _HEAD.unpack_from(piece)
    body = piece[_HEAD.size : len(piece) - table_length]
    table = {"channel": name, **json.loads(piece[len(piece) - table_length :])}
    encoded_table = json.dumps(table, separators=(",", ":")).encode()
    return (
        _HEAD.pack(channel, rows, first_ns, holders, lost, len(encoded_table), 0)
        + body
        + encoded_table
    )


@dataclass(frozen=True)
class TraceEvent:
    """One step in the history of one message."""

    time_ns: int
    """The time, to a millisecond."""
    channel: str
    step: TraceStep
    consumer: str
    """The name of the consumer that held it; empty for none."""
    attempt: int
    """The number of the delivery; 0 if unknown."""
    delay_ms: int
    """The delay of its redelivery."""
    reason: str


class TraceChunk:
    """A parsed payload of a record. Raises BadRecord."""

    def __init__(self, payload: bytes | memoryview) -> None:
        try:
            head = _HEAD.unpack_from(payload)
            self.channel, count, self.first_ns, holders, self.lost, table_length, _ = head
            self.rows = np.frombuffer(payload, ROW, count, _HEAD.size)
            at = _HEAD.size + self.rows.nbytes
            self._holders = np.frombuffer(payload, "<u2", holders, at)
            at += self._holders.nbytes
            table = json.loads(bytes(payload[at : at + table_length]))
            self.name: str = table["channel"]
            self.consumers: list[str] = table["consumers"]
            self._reasons: list[str] = table["reasons"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise BadRecord(f"a trace that cannot be read: {error}") from error

    def of(self, offset: int) -> Iterator[TraceEvent]:
        """Yield the events of one message, in order."""
        rows = self.rows
        ends = rows["first"] + rows["count"]
        numbers = np.flatnonzero((rows["first"] <= offset) & (offset < ends)).tolist()
        time_us = 0
        for number in sorted(numbers, key=lambda number: _order(rows[number])):
            row = rows[number]
            # A row's time is that of its first message.
            time_us = max(time_us, int(row["time_us"]))
            yield TraceEvent(
                self.first_ns + time_us * 1000,
                self.name,
                TraceStep(int(row["step"])),
                self._text(self.consumers, self._holder(number, offset)),
                int(row["attempt"]),
                int(row["delay_ms"]),
                self._text(self._reasons, int(row["reason"])),
            )

    def _holder(self, number: int, offset: int) -> int:
        rows = self.rows
        holder = int(rows["consumer"][number])
        if holder != _SEVERAL:
            return holder
        before = rows[:number]
        at = int(before["count"][before["consumer"] == _SEVERAL].sum())
        return int(self._holders[at + offset - int(rows["first"][number])])

    @staticmethod
    def _text(texts: list[str], number: int) -> str:
        return texts[number - 1] if 0 < number <= len(texts) else ""
