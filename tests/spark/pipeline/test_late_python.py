"""A job whose first Python comes too late for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.publish import publish

from martlet.testing import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
# The process that plans a stream; most others come from a daemon, which Spark awaits longer.
LATE_ONCE = """\
#!/bin/sh
case "$*" in
    *python_streaming_source_runner*) mkdir "{marker}" 2>/dev/null && sleep 15 ;;
esac
exec "{python}" "$@"
"""


def test_a_job_tries_again_until_its_python_is_there(tmp_path: Path) -> None:
    marker, late = tmp_path / "was-late", tmp_path / "python"
    late.write_text(LATE_ONCE.format(marker=marker, python=sys.executable))
    late.chmod(0o755)
    with BrokerProcess(tmp_path / "data") as broker:
        publish(broker.http_address, "t", [b"one", b"two"])
        done = subprocess.run(
            [
                *(sys.executable, "-m", "martlet", "pipeline", "archive", "--master=local[1]"),
                *("--once", "--topic=t", f"--address={broker.http_address}"),
                f"--out={tmp_path / 'out'}",
            ],
            env=os.environ | {"PYSPARK_PYTHON": str(late)},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert marker.exists()
    assert done.returncode == 0, done.stderr
    assert "Python worker failed to connect back within 10 s" in done.stderr
    assert "batch 0: 2 messages archived" in done.stdout
