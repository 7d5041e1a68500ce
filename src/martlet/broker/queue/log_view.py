"""A log and its topics, as a primary and a standby show them to readers such as Spark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from martlet.broker.queue.stored_queue import StoredQueue
from martlet.log.segmented import SegmentedLog


class TopicView(Protocol):
    """A topic at one of its queues."""

    @property
    def id(self) -> int:
        """The number of the topic at this queue."""

    @property
    def name(self) -> str:
        """The topic's name."""

    @property
    def number(self) -> int:
        """The queue's number."""

    @property
    def queue(self) -> StoredQueue:
        """The messages of the queue."""

    @property
    def parts(self) -> Sequence[TopicView]:
        """The topic at each of its queues, by number."""

    def part(self, number: int) -> TopicView:
        """Return the topic at the queue of that number. Raises NotFound."""


class LogView(Protocol):
    """The confirmed state of a log, at one moment: use it without awaiting anything."""

    @property
    def log(self) -> SegmentedLog:
        """The log."""

    @property
    def epoch(self) -> int:
        """The number of the run that wrote the newest record."""

    @property
    def visible_position(self) -> int:
        """The position behind the last record that readers of the log may see."""

    def all_topics(self) -> Iterable[TopicView]:
        """Return each topic, at its queue 0."""

    def find_topic(self, name: str) -> TopicView:
        """Return the topic of that name, at its queue 0. Raises NotFound."""
