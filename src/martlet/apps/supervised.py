"""A command of ``martlet`` that ends with whoever started it, even if that is killed.

The kernel sends it a SIGTERM when its parent ends (``PR_SET_PDEATHSIG``), so that a broker whose
supervisor was killed stops cleanly, and does not hold its ports and its folder against the next
one.  Linux alone can do that.  While the supervisor is stopped, it goes on, and drops what it logs.

::

    python -m martlet.apps.supervised PARENT_ID COMMAND [ARGUMENTS]
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from martlet.apps import log_pipe
from martlet.apps import main as martlet

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Run a command as the child of that process; the result is its exit code."""
    parent_id = int(argv[0])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_id:  # it ended before it could be told of
        return 1
    log_pipe.set_up()
    return martlet.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
