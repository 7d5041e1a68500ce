"""The broker's services for retention."""

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
    """The operator's settings of retention.

    Attributes:
        retention: the history kept of a topic whose policy does not set it.
        watermarks: the disk usage above which history is deleted earlier.
        keep_emptied_ns: how long messages stay that were emptied from a channel.
    """

    retention: Retention = field(default_factory=Retention)
    watermarks: Watermarks = field(default_factory=Watermarks)
    keep_emptied_ns: int = 0


class RetentionContext(TopicRegistry, Protocol):
    """A broker as seen by checkpoints and the retirement of segments."""

    not_cleanable: set[int]
    """Bases of segments that are not cleaned, since some needed batches there do not verify."""
    history_bases: set[int]
    """Bases of segments that held only history when the last checkpoint was made."""
    shortened_at: int
    """The number of retired segments when the indexes were last shortened."""

    @property
    def settings(self) -> RetentionSettings:
        """The operator's settings."""

    def snapshot(
        self,
        stored: Stretches,
        *,
        position: int | None = None,
        epoch: int | None = None,
        indexes: Mapping[int, IndexRecord] | None = None,
    ) -> list[JournalEntry]:
        """Return the full journal, in its shortest form. The arguments are those of
        `SnapshotEntry`.
        """
