"""The HTTP endpoints for readers of the log, such as Spark or an audit.

A reader lists the topics, finds offsets by time, looks batches up in the index, and fetches entire
batch records: the bytes of the log, each record verifiable by itself. A channel that the reader
advances retains the messages that it has not read yet.

A standby answers the same from its copy, as far as that is confirmed and taken in. It may lag
behind the primary, and keep what that has removed. A request with ``complete=true`` wants all up to
its ``end``, or the batch of its ``offset``: a replica that does not have it answers 503 BEHIND.

===============================  ==================================================================
``GET /log/topics``              all topics, or those in ``names``, comma separated, with their
                                 queues and the offsets that those hold; a queue's records name its
                                 ``topic_id``, where it has its own. Where something is missing
                                 before ``start_offset`` that was not released, ``holes`` has the
                                 offsets, and ``first_offset`` is where to begin to read. Of
                                 several replicas the one with the highest ``epoch`` and without
                                 ``standby`` is the primary; ``replicas`` has the HTTP addresses of
                                 all that are known, also of dead ones
``GET /log/offset``              the first offset stored at or after ``timestamp_ns``
``GET /log/index``               index rows of 40 bytes of the batches from ``start`` up to ``end``
``POST /log/index``              the same of up to 1,000 queues at once, each a list of its topic,
                                 queue, ``topic_id``, start and end, in a JSON list: of each the
                                 number of its rows, 8 bytes, and then those. The last ones may be
                                 too many for one answer: ask again from where one's rows end
``GET /log/reach``               the offset that one comes to from ``start``, up to ``end``, with
                                 ``max_bytes`` of whole batches, but one at least, and their bytes
``GET /log/batches``             batch records from the one that holds ``offset``; 204 at the end,
                                 410 with ``start_offset`` where the offset has gone; with
                                 ``bodies=false`` of each only its header and its properties, these
                                 padded to 8 bytes
``GET /log/segments``            the segments by base with their bytes, and the log's end
``GET /log/segment``             bytes of the segment with a ``base``, from ``at`` on; 404 where it
                                 is gone
``GET /log/checkpoint``          the last checkpoint as it is on the disk; 404 where there is none
===============================  ==================================================================

Offsets are of one ``queue``, 0 by default.  A request that names its ``topic_id`` gets nothing of
another topic that was made under the same name since: that is 404 TOPIC_MADE_ANEW.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from aiohttp import web

from martlet.broker.errors import NotFound
from martlet.broker.queue.queue_log import LogView, StoredQueue, TopicView
from martlet.broker.recovery.restore import BrokerRecovery
from martlet.broker.retention.gaps import holes
from martlet.log import checkpoint_file
from martlet.log.copy import CopiedLog
from martlet.log.folder import folder_identity
from martlet.log.index import ENTRY, Rows
from martlet.log.record import HEADER_BYTES, properties_in
from martlet.log.segmented import SegmentedLog
from martlet.names import is_valid_name
from martlet.server.data_folder import DataFolder
from martlet.server.http.request import HttpError, Request, Routes

MIB = 1 << 20
MAX_INDEX_ROWS = MIB // ENTRY.itemsize
"""The maximum size of one answer of the index; ask again from its last row's end."""
DEFAULT_BATCHES_BYTES = 8 * MIB
MAX_BATCHES_BYTES = 64 * MIB
_PIECE_BYTES = 256 * 1024
"""The size of each write to the socket, so that a slow reader holds little memory."""
_ROWS_AT_A_TIME = 1024
MAX_RANGES = 1000
_MAX_RANGES_BYTES = 1 << 20
_RANGES_AT_A_TIME = 64
_REACH_ROWS = 1 << 16
_OCTETS = "application/octet-stream"
QueueInQuery = tuple[str, int, int | None]
"""Topic, queue and the topic's number, None for any."""


class LogApi:
    """The endpoints for readers of a broker's log.

    Args:
        view: returns the state of the log at this moment. Raises HttpError where there is none.
        replicas: returns the HTTP addresses of the broker's replicas; none of a broker without.
        is_standby: whether another replica is the primary.
    """

    def __init__(
        self,
        view: Callable[[], LogView],
        folder: DataFolder,
        replicas: Callable[[], list[str]] = list,
        *,
        is_standby: bool = False,
    ) -> None:
        self._view = view
        self._folder = folder
        self._replicas = replicas
        self._is_standby = is_standby
        self._stored_holes: WeakKeyDictionary[StoredQueue, tuple[object, dict[str, object]]] = (
            WeakKeyDictionary()
        )
        """The result for each queue, and the state of the log that it is of."""

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/log/topics": {"GET": self.topics},
            "/log/offset": {"GET": self.offset},
            "/log/index": {"GET": self.index, "POST": self.indexes},
            "/log/reach": {"GET": self.reach},
            "/log/batches": {"GET": self.batches},
            "/log/segments": {"GET": self.segments},
            "/log/segment": {"GET": self.segment},
            "/log/checkpoint": {"GET": self.checkpoint},
        }

    async def topics(self, request: Request) -> object:
        """List topics and their queues."""
        view = self._view()
        names = request.query.get("names")
        some = view.all_topics() if names is None else _named(view, names.split(","))
        return {
            **self._folder.identity,
            "data_path": str(self._folder.path),
            "epoch": view.epoch,
            **({"standby": True} if self._is_standby else {}),
            **({"replicas": replicas} if (replicas := self._replicas()) else {}),
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.id,
                    "queues": [
                        {
                            "queue": queue_topic.number,
                            **({"topic_id": queue_topic.id} if queue_topic.number else {}),
                            "start_offset": queue_topic.queue.start_offset,
                            "end_offset": queue_topic.queue.visible_end,
                            **self._holes(view.log, queue_topic.queue),
                        }
                        for queue_topic in topic.at_queues
                    ],
                }
                for topic in sorted(some, key=lambda topic: topic.name)
            ],
        }

    def _holes(self, log: SegmentedLog, queue: StoredQueue) -> dict[str, object]:
        """Return the fields with a queue's holes, if it has any."""
        if not queue.start_offset:
            return {}
        state = (log.retired_count, queue.index.first_row, queue.start_row)
        stored = self._stored_holes.get(queue)
        if stored is None or stored[0] != state:
            first, ranges = holes(log, queue)
            fields = {"first_offset": first, "holes": ranges} if ranges else {}
            stored = self._stored_holes[queue] = (state, fields)
        return stored[1]

    async def offset(self, request: Request) -> object:
        """Find the first offset stored at or after a time; else the queue's end."""
        queue = self._queue(request)
        timestamp_ns = request.number("timestamp_ns")
        index = queue.index
        row = index.find_time(timestamp_ns)
        if row >= index.end_row:
            if self._is_standby and _is_complete(request):
                raise HttpError(503, f"BEHIND: this replica has nothing after {timestamp_ns} yet")
            return {"offset": queue.visible_end}
        first = min(index.row(row).first_offset, queue.visible_end)
        return {"offset": max(first, queue.start_offset)}

    async def index(self, request: Request) -> object:
        """Answer the index rows of the batches with any offset from ``start`` up to ``end``."""
        queue = self._queue(request)
        start, end = request.number("start"), request.number("end")
        _require(request, queue, end)
        rows = _rows(queue, start, end, MAX_INDEX_ROWS)
        return web.Response(body=rows.tobytes(), content_type=_OCTETS)

    async def indexes(self, request: Request) -> object:
        """Answer the index rows of many queues, since most of the cost is the request."""
        body = await request.read(_MAX_RANGES_BYTES, "BODY_TOO_BIG")
        pieces: list[bytes] = []
        left = MAX_INDEX_ROWS
        for number, (target, start, end) in enumerate(_ranges(body), 1):
            queue = self._find(request, target)
            _require(request, queue, end)
            rows = _rows(queue, start, end, left)
            left -= len(rows)
            pieces += (len(rows).to_bytes(8, "little"), rows.tobytes())
            if number % _RANGES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), content_type=_OCTETS)

    async def reach(self, request: Request) -> object:
        """Find the offset up to which `max_bytes` of the log reach."""
        queue = self._queue(request)
        index = queue.index
        start, end = request.number("start"), request.number("end")
        _require(request, queue, end)
        end = min(end, queue.visible_end)
        max_bytes = request.number("max_bytes")
        reached, total = start, 0
        number = index.find(start)
        stop = min(index.find(end - 1) + 1, index.end_row) if start < end else number
        while number < stop:
            rows = index.array(number, min(stop, number + _REACH_ROWS))
            sums = total + np.cumsum(rows["length"], dtype=np.int64)
            count = int(np.searchsorted(sums, max_bytes, "right"))
            count = max(count, 1 if not total else 0)
            if count:
                total = int(sums[count - 1])
                reached = int(rows["first_offset"][count - 1]) + int(rows["count"][count - 1])
            if count < len(rows):
                break
            number += len(rows)
        else:
            reached = end
        return {"offset": max(start, min(reached, end)), "bytes": total}

    async def batches(self, request: Request) -> object:
        """Answer records of the log, as they are stored."""
        queue = self._queue(request)
        offset = request.number("offset")
        _require(request, queue, offset + 1)
        max_bytes = request.number("max_bytes", DEFAULT_BATCHES_BYTES)
        if offset >= queue.visible_end:
            return web.Response(status=204)
        max_bytes = min(max_bytes, MAX_BATCHES_BYTES)
        if request.query.get("bodies") == "false":
            pieces = self._heads(queue, offset, max_bytes)
        else:
            pieces = self._records(queue, offset, max_bytes)
        if not pieces:
            start_offset = queue.start_offset
            raise HttpError(
                410,
                f"offset {offset} of topic {request.query['topic']} has gone: the queue begins at"
                f" {start_offset}",
                {"start_offset": start_offset},
            )
        return await request.stream(pieces, _OCTETS, _PIECE_BYTES)

    def _records(self, queue: StoredQueue, offset: int, max_bytes: int) -> list[memoryview]:
        """Return the log's bytes from the batch of an offset on; none if it has gone."""
        log, index = self._view().log, queue.index
        runs: list[tuple[int, int]] = []
        total = 0
        number, stop = index.find(offset), index.find(queue.visible_end)
        rows = index.rows(number, min(number + _ROWS_AT_A_TIME, stop))
        if not rows or not rows[0].first_offset <= offset < rows[0].end_offset:
            return []
        while rows:
            for row in rows:
                if (runs and total + row.length > max_bytes) or not log.find(row.position):
                    rows = []
                    break
                total += row.length
                if runs and runs[-1][0] + runs[-1][1] == row.position:
                    runs[-1] = (runs[-1][0], runs[-1][1] + row.length)
                else:
                    runs.append((row.position, row.length))
            number += len(rows)
            rows = rows and index.rows(number, min(number + _ROWS_AT_A_TIME, stop))
        views = [log.view(position, length) for position, length in runs]
        return [view for view in views if view is not None]

    def _heads(self, queue: StoredQueue, offset: int, max_bytes: int) -> list[memoryview]:
        """Return header and properties of the same batches; of a damaged one the header alone."""
        log, index = self._view().log, queue.index
        number, stop = index.find(offset), index.find(queue.visible_end)
        rows = index.rows(number, min(number + _ROWS_AT_A_TIME, stop))
        if not rows or not rows[0].first_offset <= offset < rows[0].end_offset:
            return []
        pieces: list[memoryview] = []
        total = 0
        for row in rows:
            record = log.view(row.position, row.length)
            if record is None or total >= max_bytes:
                break
            pieces.append(record[:HEADER_BYTES])
            block = properties_in(record)
            if len(block):
                pieces.append(block)
            total += HEADER_BYTES + len(block)
        return [memoryview(b"".join(pieces))] if pieces else []

    async def segments(self, request: Request) -> object:
        """List the segments of the log."""
        view = self._view()
        return {
            **self._folder.identity,
            "data_path": str(self._folder.path),
            "folder": folder_identity(self._folder.path),
            "position": view.visible_position,
            "segments": [
                {"base": segment.base, "bytes": segment.capacity} for segment in view.log.segments
            ],
        }

    async def segment(self, request: Request) -> object:
        """Answer bytes of a segment, up to its end or the log's."""
        view = self._view()
        base, at = request.number("base"), request.number("at", 0)
        max_bytes = min(request.number("max_bytes", DEFAULT_BATCHES_BYTES), MAX_BATCHES_BYTES)
        segment = next((stored for stored in view.log.segments if stored.base == base), None)
        if segment is None:
            raise HttpError(404, f"SEGMENT_NOT_FOUND: no segment begins at position {base}")
        end = min(segment.capacity, view.visible_position - base, at + max_bytes)
        pieces = [segment.view[at:end]] if at < end else []
        return await request.stream(pieces, _OCTETS, _PIECE_BYTES)

    async def checkpoint(self, request: Request) -> object:
        """Answer the last checkpoint."""
        self._view()  # Before, the file may be of what is not confirmed.
        data = self._folder.storage.read(checkpoint_file.NAME)
        if not data:
            raise HttpError(404, "CHECKPOINT_NOT_FOUND: there is none yet")
        return web.Response(body=data, content_type=_OCTETS)

    def _queue(self, request: Request) -> StoredQueue:
        return self._find(request, queue_in_query(request))

    def _find(self, request: Request, target: QueueInQuery) -> StoredQueue:
        """Return a queue. Raises HttpError."""
        try:
            return find_queue_topic(self._view(), *target).queue
        except HttpError as error:
            if error.status == 404 and self._is_standby and _is_complete(request):
                raise HttpError(503, f"BEHIND: {error.message}") from None
            raise


def _is_complete(request: Request) -> bool:
    """Whether a replica shall refuse to answer where it lacks something."""
    return request.query.get("complete") == "true"


def _require(request: Request, queue: StoredQueue, end: int) -> None:
    """Check that a queue has all up to an offset, if the request says so. Raises HttpError."""
    if queue.visible_end < end and _is_complete(request):
        raise HttpError(503, f"BEHIND: this replica has the queue up to {queue.visible_end}")


def queue_in_query(request: Request) -> QueueInQuery:
    """Return the queue that a request names, by default queue 0. Raises HttpError."""
    topic_id = request.number("topic_id") if "topic_id" in request.query else None
    return request.argument("topic"), request.number("queue", 0), topic_id


def find_queue_topic(view: LogView, name: str, number: int, topic_id: int | None) -> TopicView:
    """Return a topic at one of its queues. Raises HttpError."""
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    try:
        topic = view.find_topic(name)
    except NotFound:
        raise HttpError(404, "TOPIC_NOT_FOUND") from None
    try:
        queue_topic = topic.at_queue(number)
    except NotFound:
        raise HttpError(404, "QUEUE_NOT_FOUND") from None
    if topic_id not in (None, queue_topic.id):
        raise HttpError(
            404, f"TOPIC_MADE_ANEW: topic {name} is number {queue_topic.id} now, not {topic_id}"
        )
    return queue_topic


def _named(view: LogView, names: Iterable[str]) -> Iterator[TopicView]:
    """Yield the topics of some names that exist."""
    for name in dict.fromkeys(names):
        with suppress(NotFound):
            yield view.find_topic(name)


def _rows(queue: StoredQueue, start: int, end: int, max_count: int) -> Rows:
    """Return index rows of the batches with any offset in a range, up to a maximum number."""
    index, end = queue.index, min(end, queue.visible_end)
    if start >= end or not max_count:
        return np.empty(0, ENTRY)
    first = index.find(start)
    rows = index.array(first, min(index.find(end - 1) + 1, first + max_count))
    return rows[rows["first_offset"] < end]


def _ranges(body: bytes) -> list[tuple[tuple[str, int, int], int, int]]:
    """Return the ranges that a request names. Raises HttpError."""
    try:
        rows = json.loads(body)
        ranges = [
            ((str(topic), int(queue), int(topic_id)), int(start), int(end))
            for topic, queue, topic_id, start, end in rows
        ]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise HttpError(
            400, "INVALID_BODY: it must be a JSON list of [topic, queue, topic_id, start, end]"
        ) from None
    if len(ranges) > MAX_RANGES:
        raise HttpError(400, f"TOO_MANY_PLACES: {len(ranges)}, and {MAX_RANGES} at most")
    numbers = [(*target[1:], start, end) for target, start, end in ranges]
    if any(min(row) < 0 or max(row) >= 1 << 63 for row in numbers):
        raise HttpError(400, "INVALID_BODY: a number is negative, or too large")
    return ranges


class CopiedState(NamedTuple):
    """The state of a standby."""

    copy: CopiedLog
    recovery: BrokerRecovery | None
    """The state of the broker, where that was built."""
    confirmed_position: int
    """Every record before it is confirmed."""


def standby_routes(
    folder: DataFolder,
    current: Callable[[], CopiedState | None],
    replicas: Callable[[], list[str]],
) -> Routes:
    """Return the endpoints of a standby for readers of the log, which it answers from its copy.

    It tells what is confirmed and taken in, so it may lag behind the primary but never takes back
    what it has told. Where that is not certain, it answers 503, and readers ask another replica.

    Args:
        current: returns its state at this moment; None while this replica is no standby.
        replicas: returns the HTTP addresses of all replicas that are known.
    """
    return LogApi(lambda: _view(current()), folder, replicas, is_standby=True).routes()


def _view(state: CopiedState | None) -> LogView:
    """Return what readers may see of a state. Raises HttpError."""
    if state is None:
        raise HttpError(503, "NO_STANDBY: this replica is about to be the primary, or stops")
    copy, recovery, confirmed_position = state
    if recovery is None or not recovery.is_usable_for(copy):
        raise HttpError(503, "NOT_READY: this standby has not read its log yet")
    if not recovery.is_confirmed(confirmed_position):
        raise HttpError(503, "NOT_CONFIRMED: it is not known yet whether this log is confirmed")
    return recovery
