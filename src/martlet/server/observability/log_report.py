"""The report on the log and its disk, in ``/stats``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from martlet.log.commit_log import CommitLog
    from martlet.options import BrokerOptions
    from martlet.server.data_folder import DataFolder
    from martlet.server.flusher import Flusher
    from martlet.server.observability.histogram import Histogram


def log_report(
    log: CommitLog, folder: DataFolder, flusher: Flusher, options: BrokerOptions
) -> dict[str, Any]:
    """Report the space that the log has and takes, and how long its flushes and checkpoints take.

    Args:
        log: of the broker.
        folder: has the log's files.
        flusher: has the durations.
        options: have the limits.
    """
    spare_sizes = folder.storage.spare_sizes()
    disk = os.statvfs(folder.path)
    return {
        "disk_bytes": sum(each.capacity for each in log.segments) + sum(spare_sizes),
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "min_free_bytes": options.min_free_bytes,
        "max_disk_bytes": options.max_disk_bytes,
        "position": log.position,
        "durable_position": log.durable_position,
        **_durations("flush", flusher.flushes),
        **_durations("checkpoint", flusher.checkpoints),
    }


def _durations(name: str, found: Histogram) -> dict[str, float | None]:
    levels = {"p50": 0.5, "p99": 0.99}
    return {
        f"{name}_{level}_ms": None if (at_s := found.quantile_s(part)) is None else at_s * 1000
        for level, part in levels.items()
    }
