"""Lookup daemons as processes: Martlet's, and nsqlookupd itself where there is one."""

import os
import shutil
import sys
from pathlib import Path

from tests.interop.nsqd_process import NO_NSQD, NSQD

from martlet.testing import BrokerProcess

NSQLOOKUPD = os.environ.get("NSQLOOKUPD") or shutil.which(
    "nsqlookupd", path=str(Path(NSQD).parent) if NSQD else None
)
NO_NSQLOOKUPD = f"no nsqlookupd beside it: {NO_NSQD}"


class LookupProcess(BrokerProcess):
    """A ``martlet lookup``."""

    program: tuple[str, ...] = (sys.executable, "-m", "martlet", "lookup")

    @property
    def command(self) -> list[str]:
        return [
            *self.program,
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            "--broadcast-address=127.0.0.1",
            *self._arguments,
        ]


class NsqlookupdProcess(LookupProcess):
    """An nsqlookupd."""

    program = (NSQLOOKUPD or "nsqlookupd",)
