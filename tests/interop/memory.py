"""The memory of a broker's process, as the kernel accounts for it."""

from __future__ import annotations

from pathlib import Path

from martlet.testing import BrokerProcess

MIB = 1 << 20


def private_bytes(process: BrokerProcess) -> int:
    """What the process holds for itself alone."""
    lines = Path(f"/proc/{process.process_id}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def anonymous_bytes(process: BrokerProcess) -> int:
    """What of it is in memory alone."""
    lines = Path(f"/proc/{process.process_id}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))
