"""Another load generator in place of ours: a binary that takes the arguments of ``nsqload``.

It prints one line, of which two forms are read::

    pub messages=N seconds=S msg_s=RATE MB_s=M            (sub: the same)
    ping n=N p50=TIMEus p99=TIMEus ...
"""

from __future__ import annotations

import re
import subprocess

from bench.servers.link import LoadFailed
from bench.servers.row import Row
from bench.servers.target import Target

_MAX_S = 120.0


def measure(path: str, target: Target, row: Row, seconds: float) -> list[float]:
    """Run it on a server, and return the row's measures.

    Raises:
        LoadFailed: it failed, or printed something else.
    """
    command = [path, *row.nsqload(target.host, target.port, seconds)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + _MAX_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadFailed(f"{path}: {error}") from error
    if done.returncode:
        raise LoadFailed(f"{' '.join(command)} failed: {done.stderr.strip()}")
    names = ["msg_s"] if row.more_is_better else row.measures
    found = [re.search(rf"\b{name}=([\d.]+)", done.stdout) for name in names]
    values = [float(match[1]) for match in found if match]
    if len(values) != len(names):
        raise LoadFailed(f"{' '.join(command)} printed no {' and '.join(names)}: {done.stdout!r}")
    return values
