"""The HTTP endpoints for readers of the log, such as Spark or an audit.

A reader lists the topics, finds offsets by time, looks batches up in the index, and fetches entire
batch records: the bytes of the log, each record verifiable by itself. A channel that the reader
advances retains the messages that it has not read yet.

===============================  ==================================================================
``GET /log/topics``              all topics, or those in ``names``, comma separated, with their
                                 queues and the offsets that those hold; a queue's records name its
                                 ``topic_id``, where it has its own. Where something is missing
                                 before ``start_offset`` that was not released, ``holes`` has the
                                 offsets, and ``first_offset`` is where to begin to read
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
``POST /channel/advance``        a channel is done with all below ``offset``; made where missing
===============================  ==================================================================

Offsets are of one ``queue``, 0 by default.  A request that names its ``topic_id`` gets nothing of
another topic that was made under the same name since: that is 404 TOPIC_MADE_ANEW.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
from aiohttp import web

from martlet.broker.errors import NotFound, WritesRefused
from martlet.broker.retention.gaps import holes
from martlet.log import checkpoint_file
from martlet.log.index import ENTRY
from martlet.log.record import HEADER_BYTES, properties_in
from martlet.names import is_valid_name
from martlet.server.http.request import HttpError, Request, Routes

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.queue.queue_log import QueueLog
    from martlet.broker.topic.topic import Topic
    from martlet.log.index import Rows
    from martlet.server.data_folder import DataFolder
    from martlet.server.group_commit import GroupCommit

MIB = 1 << 20
MAX_INDEX_ROWS = MIB // ENTRY.itemsize
"""The maximum size of one answer of the index; ask again from its last row's end."""
DEFAULT_BATCHES_BYTES = 8 * MIB
MAX_BATCHES_BYTES = 64 * MIB
_PIECE_BYTES = 256 * 1024
"""The size of each write to the socket, so that a slow reader holds little memory."""
_ROWS_AT_A_TIME = 1024
MAX_PLACES = 1000
_MAX_PLACES_BYTES = 1 << 20
_PLACES_AT_A_TIME = 64
_REACH_ROWS = 1 << 16
_OCTETS = "application/octet-stream"
_Asked = tuple[str, int, int, int, int]
"""Topic, queue, the topic's number, start and end."""


class LogApi:
    """The endpoints for readers of a broker's log."""

    def __init__(self, broker: BrokerCore, commits: GroupCommit, folder: DataFolder) -> None:
        self._broker = broker
        self._commits = commits
        self._folder = folder
        self._known_holes: WeakKeyDictionary[QueueLog, tuple[object, dict[str, object]]] = (
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
            "/channel/advance": {"POST": self.advance},
        }

    async def topics(self, request: Request) -> object:
        """List topics and their queues."""
        broker = self._broker
        names = request.query.get("names")
        some: list[Topic] = list(broker.topics.values())
        if names is not None:
            known = broker.topics
            some = [known[name] for name in dict.fromkeys(names.split(",")) if name in known]
        return {
            "broker": self._folder.broker_id,
            "data_path": str(self._folder.path),
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": topic.id,
                    "queues": [
                        {
                            "queue": part.number,
                            **({"topic_id": part.id} if part.number else {}),
                            "start_offset": part.queue.start_offset,
                            "end_offset": part.queue.visible_end,
                            **self._holes(part.queue),
                        }
                        for part in topic.parts
                    ],
                }
                for topic in sorted(some, key=lambda topic: topic.name)
            ],
        }

    def _holes(self, queue: QueueLog) -> dict[str, object]:
        """Return the fields with a queue's holes, if it has any."""
        if not queue.start_offset:
            return {}
        log = self._broker.log
        state = (log.retired_count, queue.index.first_row, queue.start_row)
        known = self._known_holes.get(queue)
        if known is None or known[0] != state:
            first, found = holes(log, queue)
            fields = {"first_offset": first, "holes": found} if found else {}
            known = self._known_holes[queue] = (state, fields)
        return known[1]

    async def offset(self, request: Request) -> object:
        """Find the first offset stored at or after a time; else the queue's end."""
        queue = self._queue(request)
        timestamp_ns = request.number("timestamp_ns")
        index = queue.index
        row = index.find_time(timestamp_ns)
        if row >= index.end_row:
            return {"offset": queue.visible_end}
        first = min(index.row(row).first_offset, queue.visible_end)
        return {"offset": max(first, queue.start_offset)}

    async def index(self, request: Request) -> object:
        """Answer the index rows of the batches with any offset from ``start`` up to ``end``."""
        queue = self._queue(request)
        start, end = request.number("start"), request.number("end")
        rows = _rows(queue, start, end, MAX_INDEX_ROWS)
        return web.Response(body=rows.tobytes(), content_type=_OCTETS)

    async def indexes(self, request: Request) -> object:
        """Answer the index rows of many queues, since most of the cost is the request."""
        body = await request.read(_MAX_PLACES_BYTES, "BODY_TOO_BIG")
        pieces: list[bytes] = []
        left = MAX_INDEX_ROWS
        for number, (topic, queue, topic_id, start, end) in enumerate(_places(body), 1):
            rows = _rows(self._part_of(topic, queue, topic_id).queue, start, end, left)
            left -= len(rows)
            pieces += (len(rows).to_bytes(8, "little"), rows.tobytes())
            if number % _PLACES_AT_A_TIME == 0:
                await asyncio.sleep(0)
        return web.Response(body=b"".join(pieces), content_type=_OCTETS)

    async def reach(self, request: Request) -> object:
        """Find the offset up to which `max_bytes` of the log reach."""
        queue = self._queue(request)
        index = queue.index
        start, end = request.number("start"), min(request.number("end"), queue.visible_end)
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

    def _records(self, queue: QueueLog, offset: int, max_bytes: int) -> list[memoryview]:
        """Return the log's bytes from the batch that holds an offset on; none if it has gone.

        Adjacent records come as one piece.
        """
        log, index = self._broker.log, queue.index
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

    def _heads(self, queue: QueueLog, offset: int, max_bytes: int) -> list[memoryview]:
        """Return header and properties of the same batches, up to the same number of bytes.

        A record with a damaged header gives the header alone.
        """
        log, index = self._broker.log, queue.index
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
        log = self._broker.log
        return {
            "broker": self._folder.broker_id,
            "data_path": str(self._folder.path),
            "position": self._broker.visible_position,
            "segments": [
                {"base": segment.base, "bytes": segment.capacity} for segment in log.segments
            ],
        }

    async def segment(self, request: Request) -> object:
        """Answer bytes of a segment, up to its end or the log's."""
        log = self._broker.log
        base, at = request.number("base"), request.number("at", 0)
        max_bytes = min(request.number("max_bytes", DEFAULT_BATCHES_BYTES), MAX_BATCHES_BYTES)
        segment = next((each for each in log.segments if each.base == base), None)
        if segment is None:
            raise HttpError(404, f"SEGMENT_NOT_FOUND: no segment begins at position {base}")
        end = min(segment.capacity, self._broker.visible_position - base, at + max_bytes)
        pieces = [segment.view[at:end]] if at < end else []
        return await request.stream(pieces, _OCTETS, _PIECE_BYTES)

    async def checkpoint(self, request: Request) -> object:
        """Answer the last checkpoint."""
        data = self._folder.storage.read(checkpoint_file.NAME)
        if data is None:
            raise HttpError(404, "CHECKPOINT_NOT_FOUND: there is none yet")
        return web.Response(body=data, content_type=_OCTETS)

    async def advance(self, request: Request) -> object:
        """Finish all messages of a queue below an offset in a channel, created if missing."""
        topic = self._part(request)
        name = request.argument("channel")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_ARG_CHANNEL")
        offset = request.number("offset")
        if offset > topic.queue.visible_end:
            raise HttpError(
                400,
                f"INVALID_ARG_OFFSET: {offset} is past the end of the queue,"
                f" {topic.queue.visible_end}",
            )
        try:
            starts = {part.number: part.queue.start_offset for part in topic.parts}
            topic.parts[0].channel(name, start=starts)
            topic.channels[name].advance(offset)
            await self._commits.all_settled()
        except WritesRefused as error:
            raise HttpError(503, f"REFUSED {error}") from None
        return None

    def _queue(self, request: Request) -> QueueLog:
        return self._part(request).queue

    def _part(self, request: Request) -> Topic:
        """Return the topic's named queue, by default queue 0."""
        asked = request.number("topic_id") if "topic_id" in request.query else None
        return self._part_of(request.argument("topic"), request.number("queue", 0), asked)

    def _part_of(self, name: str, number: int, topic_id: int | None) -> Topic:
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_ARG_TOPIC")
        try:
            topic = self._broker.find_topic(name)
        except NotFound:
            raise HttpError(404, "TOPIC_NOT_FOUND") from None
        try:
            part = topic.part(number)
        except NotFound:
            raise HttpError(404, "QUEUE_NOT_FOUND") from None
        if topic_id not in (None, part.id):
            raise HttpError(
                404, f"TOPIC_MADE_ANEW: topic {name} is number {part.id} now, not {topic_id}"
            )
        return part


def _rows(queue: QueueLog, start: int, end: int, max_count: int) -> Rows:
    """Return index rows of the batches with any offset in a range, up to a maximum number."""
    index, end = queue.index, min(end, queue.visible_end)
    if start >= end or not max_count:
        return np.empty(0, ENTRY)
    first = index.find(start)
    found = index.array(first, min(index.find(end - 1) + 1, first + max_count))
    return found[found["first_offset"] < end]


def _places(body: bytes) -> list[_Asked]:
    """Return the ranges that a request names. Raises HttpError."""
    try:
        places = json.loads(body)
        wanted = [(str(t), int(q), int(i), int(first), int(end)) for t, q, i, first, end in places]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise HttpError(
            400, "INVALID_BODY: it must be a JSON list of [topic, queue, topic_id, start, end]"
        ) from None
    if len(wanted) > MAX_PLACES:
        raise HttpError(400, f"TOO_MANY_PLACES: {len(wanted)}, and {MAX_PLACES} at most")
    if any(min(place[1:]) < 0 or max(place[1:]) >= 1 << 63 for place in wanted):
        raise HttpError(400, "INVALID_BODY: a number is negative, or too large")
    return wanted
