"""The HTTP endpoints for who looks at the log as a whole, segment by segment, as an audit does.

=========================  ========================================================================
``GET /log/segments``      the segments by base, with their bytes, and the position where the log
                           ends
``GET /log/segment``       bytes of the segment with a ``base``, from ``at`` on; 404 where it has
                           been let go
``GET /log/checkpoint``    the last checkpoint as it is on the disk; 404 where there is none
=========================  ========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from martlet.log import checkpoint_file as checkpoint
from martlet.server.http.request import HttpError, Request, Routes

if TYPE_CHECKING:
    from martlet.log.commit_log import CommitLog
    from martlet.server.data_folder import DataFolder

_MIB = 1 << 20
_USUAL_BYTES = 8 * _MIB
_MAX_BYTES = 64 * _MIB
_PIECE_BYTES = 256 * 1024
"""How much is handed to the socket at a time, so that a slow reader holds little."""
_OCTETS = "application/octet-stream"


class SegmentApi:
    """The endpoints over a server's log."""

    def __init__(self, log: CommitLog, folder: DataFolder) -> None:
        self._log = log
        self._folder = folder

    def routes(self) -> Routes:
        """The endpoint of each path and method."""
        return {
            "/log/segments": {"GET": self.segments},
            "/log/segment": {"GET": self.segment},
            "/log/checkpoint": {"GET": self.checkpoint},
        }

    async def segments(self, request: Request) -> object:
        """What there is of the log."""
        log = self._log
        return {
            "broker": self._folder.broker_id,
            "data_path": str(self._folder.path),
            "position": log.position,
            "segments": [
                {"base": segment.base, "bytes": segment.capacity} for segment in log.segments
            ],
        }

    async def segment(self, request: Request) -> object:
        """Bytes of a segment, up to its end or the log's."""
        log = self._log
        base, at = request.number("base"), request.number("at", 0)
        max_bytes = min(request.number("max_bytes", _USUAL_BYTES), _MAX_BYTES)
        segment = next((each for each in log.segments if each.base == base), None)
        if segment is None:
            raise HttpError(404, f"SEGMENT_NOT_FOUND: no segment begins at position {base}")
        end = min(segment.capacity, log.position - base, at + max_bytes)
        pieces = [segment.view[at:end]] if at < end else []
        return await request.stream(pieces, _OCTETS, _PIECE_BYTES)

    async def checkpoint(self, request: Request) -> object:
        """The last checkpoint."""
        data = self._folder.storage.read(checkpoint.NAME)
        if data is None:
            raise HttpError(404, "CHECKPOINT_NOT_FOUND: there is none yet")
        return web.Response(body=data, content_type=_OCTETS)
