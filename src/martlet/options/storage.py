"""Options of storage: where the log is, and when it reaches the disk."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import MILLISECOND_NS, SECOND_NS
from martlet.options.flag import Removed, Size, option
from martlet.options.options import Options

MIB = 1024 * 1024
_NO_SCAN = "nothing is scanned: timeouts fire from exact timers"


@dataclass(frozen=True, kw_only=True)
class StorageOptions(Options):
    """Options of storage: the log's folder, its limits, and when it reaches the disk."""

    data_path: str = option(
        "", "the folder that the log is kept in (default: the current folder)", section="storage"
    )
    ignore_nsqd_data: bool = option(
        False,
        "start on a new data folder though nsqd's files are in it, and read none of them"
        " (`martlet import-nsqd` takes them over)",
    )
    flush: str = option(
        "async",
        "when OK is said: 'async' once a batch is in the page cache, which survives a killed"
        " broker; 'sync' once it is on the disk, which survives a power cut",
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
        "with --flush=sync, how long a SEND waits for the disk that does not say so itself; then it"
        " is answered FLUSH_DISK_TIMEOUT, and stored all the same (syncFlushTimeout of RocketMQ)",
        limits=(MILLISECOND_NS, None),
    )
    max_bytes_per_file: Size = option(
        100 * MIB, "the size of a segment of the log", limits=(4096, 2**40)
    )
    segment_spare: int = option(
        1, "how many used segments are kept to be written again", limits=(0, 1000)
    )
    min_free_bytes: Size = option(
        64 * MIB,
        "take no more of the disk while it has less than this free (see --disk-full-policy)",
        limits=(0, None),
    )
    max_disk_bytes: Size = option(
        0,
        "the most bytes of the data folder; while it would take more, publishing is refused until"
        " consumers have made room, or what --disk-full-policy says is done (0: as many as"
        " --min-free-bytes leaves)",
        limits=(0, None),
    )
    disk_full_policy: str = option(
        "refuse",
        "what to do when --max-disk-bytes or --min-free-bytes leaves no room: 'refuse' to publish;"
        " 'drop-oldest': the oldest segment goes, and what is unfinished in it is lost to all"
        " channels",
        choices=(
            ("refuse", "refuse"),
            ("drop-oldest", "drop-oldest"),
            ("dead-letter", Removed("dead-letter")),
        ),
    )
    dead_letter_path: str = option(
        "",
        "ignored: the folder where earlier versions kept what made room on a full disk;"
        " `martlet pub --dead-letters` publishes it again",
    )
    retention_ns: int = option(
        0,
        "how long finished messages are kept, to be replayed; a topic may say otherwise"
        " (retention_ms of its policy); 0: no longer than a channel needs them, or 72h where"
        " --retention-bytes is given",
        limits=(0, None),
    )
    retention_bytes: Size = option(
        0,
        "of those, how many bytes of each topic are kept at most, the newest (0: no such limit)",
        limits=(0, None),
    )
    disk_clean_percent: int = option(
        75,
        "above this percentage of --max-disk-bytes, or without that of the file system, finished"
        " messages past their retention make room at once, though others of their segments have to"
        " be copied for that (0: never)",
        limits=(0, 100),
    )
    disk_force_percent: int = option(
        85,
        "above this percentage, finished messages go before their retention ends, the oldest first"
        " (0: only where no room is left)",
        limits=(0, 100),
    )
    disk_refuse_percent: int = option(
        0,
        "above this percentage, no segment is begun for new messages: publishing is refused"
        " (0: it is refused where --min-free-bytes or --max-disk-bytes leaves no room)",
        limits=(0, 100),
    )
    trace: bool = option(
        False,
        "write down what becomes of each message, for `martlet trace`; a topic may say otherwise"
        " (trace of its policy)",
    )
    journal_interval_ns: int = option(
        100 * MILLISECOND_NS,
        "how often what was finished is written down; finished later than that before a crash,"
        " a message comes again. Where much is published it is written down sooner, and where that"
        " would take more than 5 % of the time, as with 1,000 busy channels, less often",
        limits=(MILLISECOND_NS, None),
    )
    checkpoint_interval_ns: int = option(
        10 * SECOND_NS,
        "how often the broker's state is saved whole, so that little is read again at a start",
        limits=(MILLISECOND_NS, None),
    )
    mem_queue_size: int = option(
        10000,
        "how many messages wait in an #ephemeral topic or channel; beyond that the oldest go, and"
        " are counted as dropped (all others are in the log and have no such limit)",
    )
    queue_scan_selection_count: int = option(
        20, "channels to look at in each scan for timeouts", instead=_NO_SCAN
    )
    queue_scan_worker_pool_max: int = option(4, "workers that scan for timeouts", instead=_NO_SCAN)
