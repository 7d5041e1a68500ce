"""The settings of replication."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class ReplicaSettings:
    """How replicas wait for each other."""

    flush_sync: bool = False
    """An acknowledgement means that the disk has it."""
    replica_timeout_ns: int = 2 * SECOND_NS
    """A replica that is silent for longer is missing."""
    election_timeout_ns: int = 3 * SECOND_NS
    """A candidate that has not begun by then lets others try."""
    beat_ns: int = SECOND_NS // 4
    """How often a primary says that it is alive."""
    poll_ns: int = SECOND_NS
    """How often the document is read while all is well."""
    hasty_poll_ns: int = SECOND_NS // 10
    """How often it is read while there is no primary."""
    max_delay_ns: int = 150_000_000
    """The maximum of the random wait before a candidacy."""
    max_lag_bytes: int = 256 << 20
    """A standby that is further behind is not in sync."""
    joining_lag_bytes: int = 1 << 20
    """A standby that is nearer to the end comes into sync."""
    max_unacknowledged_bytes: int = 32 << 20
    """The maximum that is sent to a standby before it acknowledges."""
