"""The call that traces a message (see `martlet.schema.traces`).

A thread beside the broker reads the log, one search at a time, until the time limit; the answer
says whether that was enough.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from martlet.broker.errors import WritesRefused
from martlet.schema.traces import (
    FIND,
    FindMessages,
    FoundMessages,
    MessageEvent,
    MessageStanding,
    TracedMessage,
)
from martlet.server.rpc.registry import CallError, served

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.broker.recovery.trace_search import Trace, TraceResult
    from martlet.server.data_folder import DataFolder
    from martlet.server.rpc.registry import Caller, Methods


class TraceCalls:
    """The call over a broker's traces."""

    def __init__(self, broker: BrokerCore, folder: DataFolder) -> None:
        self._broker = broker
        self._folder = folder
        self._searching = asyncio.Lock()

    def methods(self) -> Methods:
        """The method of each name."""
        return served(FIND, self.find)

    async def find(self, caller: Caller, request: FindMessages) -> FoundMessages:
        """Find messages by their id or a key."""
        if request.topic:
            self._broker.find_topic(request.topic)
        async with self._searching:
            with suppress(WritesRefused):
                self._broker.write_journal()
            # A client sees confirmed messages only.
            end = self._broker.visible_position
            ends_s = time.monotonic() + request.time_limit_ms / 1000
            result = await asyncio.get_running_loop().run_in_executor(
                None, self._search, request, end, ends_s
            )
        return found_messages(result)

    def _search(self, request: FindMessages, end: int, ends_s: float) -> TraceResult:
        """Search, in a thread. Raises CallError."""
        from martlet.broker.recovery.trace_search import Search, TraceNotFound
        from martlet.log.folder import Folder

        try:
            folder = Folder(self._folder.path, end)
            search = Search(folder, lambda: time.monotonic() >= ends_s, request.topic or "")
        except TraceNotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None
        try:
            if request.key is None:
                return search.by_id(str(request.id))
            return search.by_key(request.key, request.since_ns, request.limit)
        except TraceNotFound as error:
            raise CallError("NOT_FOUND", str(error)) from None
        finally:
            self._folder.keys.missed(search.not_indexed)


def found_messages(result: TraceResult) -> FoundMessages:
    """Return the result of a search as an answer."""
    return FoundMessages(
        messages=tuple(map(_message, result.traces)),
        is_complete=result.complete,
        are_traced=result.traced,
        log_since_ns=result.log_since_ns,
    )


def _message(trace: Trace) -> TracedMessage:
    return TracedMessage(
        id=trace.id,
        topic=trace.topic,
        queue=trace.queue,
        offset=trace.offset if trace.offset >= 0 else None,
        stored_at_ns=trace.stored_at_ns,
        deliver_at_ns=trace.deliver_at_ns or None,
        delayed=trace.delayed or None,
        body_bytes=trace.body_bytes,
        properties=replace(trace.properties, sent=None).to_json(),
        events=tuple(
            MessageEvent(
                time_ns=event.time_ns,
                channel=event.channel,
                event=event.step.name.lower(),
                client=event.consumer,
                attempt=event.attempt,
                delay_ms=event.delay_ms,
                reason=event.reason,
            )
            for event in trace.events
        ),
        starts_ns=tuple(trace.starts_ns),
        channels=tuple(
            MessageStanding(
                channel=standing.channel,
                state=standing.state,
                attempts=standing.attempts,
                due_ns=standing.due_ns or None,
                is_group=standing.is_group,
            )
            for standing in trace.standing
        ),
        known_since_ns=trace.known_since_ns,
    )
