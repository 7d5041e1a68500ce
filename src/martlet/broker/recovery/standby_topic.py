"""A topic of a standby, as readers of the log see it."""

from __future__ import annotations

from martlet.broker.errors import NotFound
from martlet.broker.journal.entries import HALF
from martlet.broker.recovery.journal_replay import RecoveredState, RecoveredTopic
from martlet.log.segmented import SegmentedLog
from martlet.names import is_ephemeral


class StandbyTopic:
    """A topic at one of its queues: a `martlet.broker.queue.log_view.TopicView`.

    Args:
        state: has all of its queues.
        log: holds its batches.
        known: the topic at this queue.
    """

    def __init__(self, state: RecoveredState, log: SegmentedLog, known: RecoveredTopic) -> None:
        self.id = known.record.id
        self.name = known.record.name
        self.number = known.record.queue
        self.queue = known.stored_in(log)
        self._state = state
        self._log = log

    @property
    def parts(self) -> list[StandbyTopic]:
        """The topic at each of its queues, by number."""
        found = [] if self.number else [self]
        while (known := self._state.find(self.name, len(found))) is not None:
            found.append(StandbyTopic(self._state, self._log, known))
        return found

    def part(self, number: int) -> StandbyTopic:
        """Return the topic at the queue of that number. Raises NotFound."""
        known = self._state.find(self.name, number)
        if known is None:
            raise NotFound(f"topic {self.name!r} has no queue {number}")
        return StandbyTopic(self._state, self._log, known)


def is_shown(topic: RecoveredTopic) -> bool:
    """Whether clients know of a topic, and it survives a failover."""
    record = topic.record
    return record.delayed is None and record.name != HALF and not is_ephemeral(record.name)
