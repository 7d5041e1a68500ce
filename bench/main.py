"""``./run bench``: measures a broker beside another NSQ server, or runs the benchmark named first.

``./run bench hot-path --rows pub`` runs `bench.hot_path`; ``./run bench list`` prints all names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

BENCHMARKS = {
    "servers": "bench.servers.main",
    "peers": "bench.peers.main",
    "page": "bench.page",
    "clients": "bench.clients.main",
    "hot-path": "bench.hot_path",
    "sending": "bench.sending",
    "transactions": "bench.transactions",
    "groups": "bench.groups",
    "ordered": "bench.ordered",
    "priorities": "bench.priorities",
    "delays": "bench.delays",
    "journal": "bench.journal",
    "features": "bench.features",
    "filters": "bench.filters",
    "replicas": "bench.replicas",
    "requests": "bench.requests",
    "start": "bench.servers.start",
    "trace": "bench.trace",
    "workers": "bench.servers.workers",
    "keys": "bench.keys",
    "admin-page": "bench.admin_page",
    "spark-archive": "bench.spark.archive",
    "spark-audit": "bench.spark.audit",
    "spark-kafka": "bench.spark.kafka",
    "spark-read": "bench.spark.read",
    "spark-scale": "bench.spark.scale",
    "spark-sink": "bench.spark.sink",
    "spark-stream": "bench.spark.stream",
}
"""The module of each benchmark: its `main(arguments)` runs it."""


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; the result is the exit code of the process."""
    name, arguments = "servers", argv
    if argv and not argv[0].startswith("-"):
        name, *arguments = argv
    if name == "list":
        print("\n".join(BENCHMARKS))
        return 0
    if name not in BENCHMARKS:
        known = ", ".join(BENCHMARKS)
        print(f"martlet bench: no benchmark {name!r}; there are: {known}", file=sys.stderr)
        return 2
    return importlib.import_module(BENCHMARKS[name]).main(arguments) or 0
