"""The memory of a broker's process, as the kernel accounts for it."""

from __future__ import annotations

from pathlib import Path

from martlet.testing import BrokerProcess

MIB = 1 << 20


def private_bytes(process: BrokerProcess) -> int:
    """Return the private memory of the process."""
    lines = Path(f"/proc/{process.process_id}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def anonymous_bytes(process: BrokerProcess) -> int:
    """Return its anonymous memory."""
    lines = Path(f"/proc/{process.process_id}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))
