"""nsqd itself as a process, where there is one: the client must not care which of the two it is."""

import os
import shutil

import pytest

from martlet.testing import BrokerProcess

NSQD = os.environ.get("NSQD") or shutil.which("nsqd")
NO_NSQD = "no nsqd: put it on PATH, or its path into NSQD; .ci/nsqd builds one with Go"
NEEDS_NSQD = pytest.mark.skipif(NSQD is None, reason=NO_NSQD)


class NsqdProcess(BrokerProcess):
    """An nsqd that keeps its messages on disk."""

    @property
    def command(self) -> list[str]:
        assert NSQD is not None
        return [
            NSQD,
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            f"--https-address={self.https_address}",
            f"--data-path={self.data_path}",
            "--mem-queue-size=0",
            *self._arguments,
        ]
