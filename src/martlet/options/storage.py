"""Options of storage: where the log is, and when it reaches the disk."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.flag import Removed, Size, option
from martlet.options.options import Options
from martlet.text import MILLISECOND_NS, SECOND_NS

MIB = 1024 * 1024
_NO_SCAN = "nothing is scanned: timeouts fire from exact timers"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StorageOptions(Options):
    """Options of storage: the log's folder, its limits, and when it reaches the disk."""

    data_path: str = option(
        "", "the folder of the log (default: the current folder)", section="storage"
    )
    ignore_nsqd_data: bool = option(
        False,
        "start on a folder that has nsqd's files, and read none of them (`martlet import-nsqd`"
        " imports them)",
    )
    flush: str = option(
        "async",
        "when a publish is answered OK: 'async': when it is in the page cache, which survives a"
        " kill of the broker; 'sync': when it is on the disk, which survives a power cut",
        choices=(("async", "async"), ("sync", "sync")),
    )
    sync_every: int = option(
        2500, "with --flush=async, flush to the disk after this many messages", limits=(0, None)
    )
    sync_timeout_ns: int = option(
        2 * SECOND_NS,
        "with --flush=async, flush to the disk at least this often",
        limits=(MILLISECOND_NS, None),
    )
    sync_flush_timeout_ns: int = option(
        5 * SECOND_NS,
        "with --flush=sync, the time that a SEND waits for the disk unless it sets its own; then it"
        " is answered FLUSH_DISK_TIMEOUT, and its messages stay stored (syncFlushTimeout of"
        " RocketMQ)",
        limits=(MILLISECOND_NS, None),
    )
    max_bytes_per_file: Size = option(
        100 * MIB, "the size of a segment of the log", limits=(4096, 2**40)
    )
    segment_spare: int = option(
        1, "the number of used segments that are kept for reuse", limits=(0, 1000)
    )
    min_free_bytes: Size = option(
        64 * MIB,
        "keep this much of the disk free (see --disk-full-policy)",
        limits=(0, None),
    )
    max_disk_bytes: Size = option(
        0,
        "maximum size of the data folder; beyond it publishing is refused until consumers free"
        " space, or --disk-full-policy applies (0: limited by --min-free-bytes only)",
        limits=(0, None),
    )
    disk_full_policy: str = option(
        "refuse",
        "at --max-disk-bytes or --min-free-bytes: 'refuse' new messages; 'drop-oldest': delete the"
        " oldest segment with all its messages, unfinished ones too",
        choices=(
            ("refuse", "refuse"),
            ("drop-oldest", "drop-oldest"),
            ("dead-letter", Removed("dead-letter")),
        ),
    )
    dead_letter_path: str = option(
        "",
        "ignored: the folder where earlier versions kept messages that a full disk evicted;"
        " `martlet pub --dead-letters` publishes them again",
    )
    retention_ns: int = option(
        0,
        "how long finished messages are kept for replay; a topic's policy may override it"
        " (retention_ms); 0: not at all, or 72h with --retention-bytes",
        limits=(0, None),
    )
    keep_emptied_ns: int = option(
        900 * SECOND_NS,
        "how long messages stay that were emptied from a channel, so that this can be undone; 0 for"
        " not at all",
        limits=(0, None),
    )
    retention_bytes: Size = option(
        0,
        "maximum bytes of finished messages of each topic; the newest are kept (0: no limit)",
        limits=(0, None),
    )
    disk_clean_percent: int = option(
        75,
        "above this percentage of --max-disk-bytes, or else of the file system, finished messages"
        " past their retention are deleted at once, even if other messages of their segments must"
        " be copied first (0: never)",
        limits=(0, 100),
    )
    disk_force_percent: int = option(
        85,
        "above this percentage, finished messages are deleted before their retention ends, the"
        " oldest first (0: only when the disk is full)",
        limits=(0, 100),
    )
    disk_refuse_percent: int = option(
        0,
        "above this percentage, new messages are refused (0: only at --min-free-bytes or"
        " --max-disk-bytes)",
        limits=(0, 100),
    )
    trace: bool = option(
        False,
        "record the history of each message, for `martlet trace`; a topic's policy may override it"
        " (trace)",
    )
    journal_interval_ns: int = option(
        100 * MILLISECOND_NS,
        "the interval of journaling finished messages; after a crash, those finished since are"
        " redelivered. Shorter under heavy publishing; longer if it would take more than 5 % of the"
        " time, as with 1,000 busy channels",
        limits=(MILLISECOND_NS, None),
    )
    checkpoint_interval_ns: int = option(
        10 * SECOND_NS,
        "the interval of checkpoints, which shorten the next start",
        limits=(MILLISECOND_NS, None),
    )
    mem_queue_size: int = option(
        10000,
        "maximum messages that wait in an #ephemeral topic or channel; beyond it the oldest are"
        " dropped, and counted as dropped_count (other topics and channels have no such limit)",
    )
    queue_scan_selection_count: int = option(
        20, "channels to look at in each scan for timeouts", instead=_NO_SCAN
    )
    queue_scan_worker_pool_max: int = option(4, "workers that scan for timeouts", instead=_NO_SCAN)
