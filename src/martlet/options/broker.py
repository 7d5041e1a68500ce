"""The options of a broker, all together: what its parts say, and what holds between them."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.names import is_valid_name
from martlet.options.delivery import DeliveryOptions
from martlet.options.flag import OptionError
from martlet.options.metrics import ReportOptions
from martlet.options.network import NetworkOptions
from martlet.options.replication import ReplicationOptions
from martlet.options.security import SecurityOptions
from martlet.options.storage import StorageOptions
from martlet.options.transactions import TransactionOptions

PAGE_BYTES = 4096
_PREFER_NEAR = "topology-aware-consumption"
MIN_SEGMENTS = 4
"""A log writes one segment and keeps two in reserve; with one more there is something to let go."""


# The bases from last to first give the order of the fields, and of the help.
@dataclass(frozen=True, kw_only=True)
class BrokerOptions(
    ReportOptions,
    SecurityOptions,
    TransactionOptions,
    DeliveryOptions,
    ReplicationOptions,
    StorageOptions,
    NetworkOptions,
):
    """The options of a broker."""

    def __post_init__(self) -> None:
        super().__post_init__()
        min_value = MIN_SEGMENTS * self.segment_bytes
        if 0 < self.max_disk_bytes < min_value:
            raise OptionError(
                f"--max-disk-bytes is {self.max_disk_bytes}; it must be at least {min_value},"
                f" which is {MIN_SEGMENTS} times --max-bytes-per-file, or 0 for no limit"
            )
        marks = (self.disk_clean_percent, self.disk_force_percent, self.disk_refuse_percent)
        set_marks = [mark for mark in marks if mark]
        if set_marks != sorted(set_marks):
            raise OptionError(
                f"--disk-clean-percent={marks[0]}, --disk-force-percent={marks[1]} and"
                f" --disk-refuse-percent={marks[2]} must rise, those aside that are 0"
            )
        if self.disk_refuse_percent and self.drops_oldest:
            raise OptionError(
                f"--disk-refuse-percent={self.disk_refuse_percent} and"
                f" --disk-full-policy={self.disk_full_policy} do not go together: the one refuses"
                " messages, and the other makes room for them"
            )
        if self.replica_name and self.drops_oldest:
            raise OptionError(
                f"--replica-name and --disk-full-policy={self.disk_full_policy} do not go together:"
                " replicas lose no message that is not finished"
            )
        if not is_valid_name(self.transaction_aside_topic):
            raise OptionError(
                f"--transaction-aside-topic is {self.transaction_aside_topic!r}, which is no valid"
                " name of a topic"
            )
        for level in self.e2e_processing_latency_percentiles:
            if not 0 < level <= 1:
                raise OptionError(
                    f"--e2e-processing-latency-percentile is {level}; it must be over 0, at most 1"
                )

        if self.tls_demanded and not (self.tls_cert and self.tls_key):
            asking = "tls-required" if self.tls_required else "tls-client-auth-policy"
            raise OptionError(
                f"--{asking}: cannot require TLS client connections without TLS key and cert:"
                " give --tls-cert and --tls-key"
            )

    @property
    def prefers_near(self) -> bool:
        """True if consumers in the broker's zone, then its region, are preferred."""
        return _PREFER_NEAR in self.experiments

    @property
    def drops_oldest(self) -> bool:
        """True if a full disk loses the oldest messages; else it refuses new ones."""
        return self.disk_full_policy == "drop-oldest"

    def topology_warnings(self) -> list[str]:
        """List the options of zones, regions and experiments that have no effect."""
        warnings = [
            f"--enable-experiment={name} is ignored: the only one here is {_PREFER_NEAR}"
            for name in self.experiments
            if name != _PREFER_NEAR
        ]
        if self.prefers_near and not (self.topology_zone or self.topology_region):
            warnings.append(
                f"--enable-experiment={_PREFER_NEAR} has no effect: give --topology-zone or"
                " --topology-region too"
            )
        return warnings

    @property
    def segment_bytes(self) -> int:
        """The size of a segment: as asked, in whole pages. A larger batch gets one of its own."""
        return -(-self.max_bytes_per_file // PAGE_BYTES) * PAGE_BYTES

    @property
    def latency_window_ns(self) -> int:
        """The window of latencies; 0 if they are not measured."""
        percentiles = self.e2e_processing_latency_percentiles
        return self.e2e_processing_latency_window_time_ns if percentiles else 0
