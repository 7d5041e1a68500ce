"""The cursors that have moved since they were last journaled, and writing them to the journal.

Each is written with the trace of the channel's messages, if they are traced, and the channel's
counters. A cursor's entry is small, so one write contains many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from martlet.broker.errors import WritesRefused
from martlet.broker.journal.cursor_entry import encode_cursor
from martlet.broker.queue.channel_state import ChannelState
from martlet.broker.topic.topic import Topic
from martlet.broker.tracing.counters import write_accounts
from martlet.log.commit_log import CommitLog
from martlet.log.record import RecordKind, record_length

_AT_ONCE = 32
"""The maximum number of cursors in one write: the loop is blocked only for that long."""
_MAX_BYTES = 1 << 14
"""The maximum size of one write, unless a single cursor is larger."""


class MovedCursors:
    """The channels whose cursors have to be written, the longest unwritten first.

    `clock` returns the time of records, as `BrokerCore.stored_at_ns`.
    """

    def __init__(
        self, log: CommitLog, clock: Callable[[], int], topics: Mapping[int, Topic]
    ) -> None:
        self._log = log
        self._clock = clock
        self._topics = topics
        self._channels: deque[ChannelState] = deque()

    def __len__(self) -> int:
        return len(self._channels)

    def add(self, channel: ChannelState) -> None:
        """Add a channel whose cursor has moved, if it is not in already."""
        self._channels.append(channel)

    def write_some(self) -> Iterator[None]:
        """Write the cursors that have moved so far, some at a time. Raises WritesRefused."""
        left = len(self._channels)
        while left > 0 and self._channels:
            left -= self.write(min(left, _AT_ONCE))
            yield

    def write_first(self, channel: ChannelState) -> None:
        """Write the cursor of a channel now, if it has moved. Raises WritesRefused."""
        if channel.dirty:
            self._channels.remove(channel)
            self._channels.appendleft(channel)
            self.write(1)

    def write(self, max_count: int) -> int:
        """Write some cursors in one write. Returns how many channels are done with. Raises
        WritesRefused: none was written, and all stay for the next call.
        """
        max_bytes = min(_MAX_BYTES, self._log.segment_bytes // 4)
        channels: list[ChannelState] = []
        moved: list[ChannelState] = []
        entries: list[tuple[int, bytes]] = []
        entry_bytes = 0
        for channel in islice(self._channels, max_count):
            topic = self._topics.get(channel.topic_id)
            if topic is not None and topic.channels.get(channel.name) is channel:
                entry = encode_cursor(channel.id, channel.cursor, topic.limit, full=False)
                entry_bytes += record_length(len(entry), 0)
                if entries and entry_bytes > max_bytes:
                    break
                entries.append((topic.id, entry))
                moved.append(channel)
            channels.append(channel)
        now_ns = self._clock()
        if entries:
            self._log.append_entries(RecordKind.CURSOR, entries, now_ns)
        for channel in moved:
            cursor = channel.cursor
            cursor.journal_number += 1
            cursor.pending.changed.clear()
            cursor.pending.removed.clear()
        for channel in channels:
            self._channels.popleft()
            channel.dirty = False
            self._write_trace(channel, now_ns)
        write_accounts(self._log, now_ns, moved)
        return len(channels)

    def _write_trace(self, channel: ChannelState, now_ns: int) -> None:
        """Write the trace of a channel's messages, if there is space."""
        topic = self._topics.get(channel.topic_id)
        if topic is None or not channel.recorder:
            return
        with suppress(WritesRefused):
            for piece in channel.recorder.take(channel.id, channel.name):
                self._log.append_journal(
                    RecordKind.TRACE, piece, topic=topic.id, stored_at_ns=now_ns, needed=False
                )
