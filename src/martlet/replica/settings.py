"""The settings of replication."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class ReplicaSettings:
    """How replicas wait for each other.

    Attributes:
        flush_sync: an acknowledgement means that the disk has it.
        replica_timeout_ns: a replica that is silent for longer is missing.
        election_timeout_ns: a candidate that has not begun by then lets others try.
        beat_ns: a primary says that it is alive this often.
        look_ns: the document is looked at this often while all is well.
        hasty_look_ns: the same, while there is no primary.
        max_delay_ns: the maximum of the random wait before a candidacy.
        max_lag_bytes: a standby that is further behind is not in sync.
        joining_lag_bytes: one that is nearer to the end comes into sync.
        max_unacknowledged_bytes: the maximum sent to a standby that it has not acknowledged.
    """

    flush_sync: bool = False
    replica_timeout_ns: int = 2 * SECOND_NS
    election_timeout_ns: int = 3 * SECOND_NS
    beat_ns: int = SECOND_NS // 4
    look_ns: int = SECOND_NS
    hasty_look_ns: int = SECOND_NS // 10
    max_delay_ns: int = 150_000_000
    max_lag_bytes: int = 256 << 20
    joining_lag_bytes: int = 1 << 20
    max_unacknowledged_bytes: int = 32 << 20
