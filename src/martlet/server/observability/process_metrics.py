"""The metrics of the process, under the names that Prometheus's client libraries have for them."""

from __future__ import annotations

import gc
import os
import resource
import time

from martlet.server.observability import prometheus


def process_metrics() -> str:
    """Its lines."""
    with open("/proc/self/stat", encoding="ascii") as file:
        # The second field is the program's name, in brackets, with anything in it.
        fields = file.read().rpartition(")")[2].split()
    page_bytes = resource.getpagesize()
    started_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s += int(fields[19]) / os.sysconf("SC_CLK_TCK")
    name = "python_gc_collections_total"
    generations = [
        (prometheus.label_text({"generation": str(number)}), counts["collections"])
        for number, counts in enumerate(gc.get_stats())
    ]
    return prometheus.lone(
        [
            (
                "process_cpu_seconds_total",
                "counter",
                "Processor time, the system's share included.",
                time.process_time(),
            ),
            (
                "process_resident_memory_bytes",
                "gauge",
                "Memory in use, mapped files included.",
                int(fields[21]) * page_bytes,
            ),
            ("process_virtual_memory_bytes", "gauge", "Addresses in use.", int(fields[20])),
            ("process_start_time_seconds", "gauge", "Seconds since 1970.", round(started_s, 2)),
            ("process_open_fds", "gauge", "Open files.", len(os.listdir("/proc/self/fd"))),
            (
                "process_max_fds",
                "gauge",
                "How many may be open.",
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            ),
        ]
    ) + (
        prometheus.head(name, "counter", "Runs of the garbage collector.")
        + prometheus.values(name, generations)
    )
