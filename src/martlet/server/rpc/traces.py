"""The call that traces a message.

``trace.find`` takes an ``id``, or a ``key`` with ``since_ns`` and ``limit``, and optionally a
``topic``. A thread beside the broker reads the log, one search at a time, for at most
``time_limit_ms``; the answer says whether that was enough.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.server.rpc.arguments import CallError

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.tracing.model import TraceResult
    from martlet.server.data_folder import DataFolder
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods

DEFAULT_LIMIT_MS = 10_000
MAX_LIMIT_MS = 600_000
MAX_TRACES = 1000


class TraceCalls:
    """The call over a broker's traces."""

    def __init__(self, broker: BrokerCore, folder: DataFolder) -> None:
        self._broker = broker
        self._folder = folder
        self._searching = asyncio.Lock()

    def methods(self) -> Methods:
        """The method of each name."""
        return {"trace.find": self.find}

    async def find(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Find messages by their id or a key, with their events."""
        arguments = arguments.renamed({"most": "limit", "limit_ms": "time_limit_ms"})
        arguments.only("id", "key", "topic", "since_ns", "limit", "time_limit_ms")
        if ("id" in arguments) == ("key" in arguments):
            raise CallError("BAD_ARGUMENT", "give either 'id' or 'key'")
        topic = arguments.topic(self._broker).name if "topic" in arguments else ""
        limit_ms = arguments.number(
            "time_limit_ms", DEFAULT_LIMIT_MS, min_value=1, max_value=MAX_LIMIT_MS
        )
        since_ns = arguments.number("since_ns", 0)
        max_count = arguments.number("limit", 20, min_value=1, max_value=MAX_TRACES)
        message_id, key = arguments.text("id", ""), arguments.text("key", "")
        if not message_id and not key:
            raise CallError("BAD_ARGUMENT", "'id', or 'key', is empty: say what to look for")
        async with self._searching:
            with suppress(WritesRefused):
                self._broker.write_journal()
            # A client sees confirmed messages only.
            end = self._broker.visible_position
            ends_s = time.monotonic() + limit_ms / 1000
            found = await asyncio.get_running_loop().run_in_executor(
                None, self._search, message_id, key, topic, since_ns, max_count, end, ends_s
            )
        from martlet.broker.tracing.model import fields_of

        return fields_of(found)

    def _search(
        self,
        message_id: str,
        key: str,
        topic: str,
        since_ns: int,
        max_count: int,
        end: int,
        ends_s: float,
    ) -> TraceResult:
        """Search, in a thread. Raises CallError."""
        from martlet.broker.recovery.trace_search import Search, TraceNotFound
        from martlet.log.folder import Folder

        try:
            folder = Folder(self._folder.path, end)
            search = Search(folder, lambda: time.monotonic() >= ends_s, topic)
        except TraceNotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None
        try:
            if message_id:
                return search.by_id(message_id)
            return search.by_key(key, since_ns, max_count)
        except TraceNotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None
        finally:
            self._folder.keys.missed(search.not_indexed)
