"""Run a command of ``martlet`` that ends with the process that started it, even if that is killed.

::

    python -m martlet.cli.servers.supervised PARENT_ID COMMAND [ARGUMENTS]

The kernel sends the command a SIGTERM when its parent ends (``PR_SET_PDEATHSIG``, only Linux), so
that a broker whose supervisor was killed stops cleanly, and releases its ports and its folder for
the next one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from martlet.cli import main as martlet

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run a command as the child of that process; return its exit code."""
    parent_id = int(argv[0])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_id:  # it ended before the kernel was asked to signal its end
        return 1
    return martlet.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
