"""What retention needs of its broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from martlet.broker.context import TopicSettings
from martlet.broker.retention.history import Retention, Watermarks
from martlet.broker.topic.registry import TopicRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from martlet.broker.journal.entries import IndexRecord, Stretches
    from martlet.log.checkpoint_file import JournalEntry


@dataclass(kw_only=True, slots=True)
class RetentionSettings(TopicSettings):
    """What the operator has set of what is kept.

    Attributes:
        retention: how much history of a topic is kept whose policy does not say.
        watermarks: how full the disk may be before history is spared less.
    """

    retention: Retention = field(default_factory=Retention)
    watermarks: Watermarks = field(default_factory=Watermarks)


class RetentionContext(TopicRegistry, Protocol):
    """A broker, as far as checkpoints and what is let go after them concern it."""

    not_cleanable: set[int]
    """Bases of segments that are not cleaned, since not all that is needed there verifies."""
    history_bases: set[int]
    """Bases of segments that held nothing but history when the last checkpoint was made."""
    shortened_at: int
    """How many segments had gone when the indexes were last shortened."""

    @property
    def settings(self) -> RetentionSettings:
        """What the operator has set."""

    def snapshot(
        self,
        stored: Stretches,
        *,
        position: int | None = None,
        epoch: int | None = None,
        indexes: Mapping[int, IndexRecord] | None = None,
    ) -> list[JournalEntry]:
        """The journal in full, in its shortest form. The arguments are as of `SnapshotEntry`."""
