"""to-file, killed: every message finished at the broker can be read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from tests import brokers
from tests.interop.asking import ask, until
from tests.interop.cli.tools import channels, command, fill, stored_all
from tests.unit.cli.nsq_tools.test_output_file import whole_members

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

LINES = [b"line %d" % number for number in range(6000)]
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")


def whole_frames(data: bytes) -> bytes:
    """Return the readable part of a zstd file, up to the frame being written."""
    content = b""
    for piece in data.split(_ZSTD_MAGIC)[1:]:
        try:
            content += bytes(cramjam.zstd.decompress(_ZSTD_MAGIC + piece))
        except cramjam.DecompressionError:
            break
    return content


broker = brokers.process()


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        (["--gzip", "--gzip-level=1"], whole_members),
        (["--zstd", "--zstd-level=1"], whole_frames),
        (["--rotate-size=10000"], lambda data: data),
    ],
    ids=["gzip", "zstd", "plain"],
)
def test_a_killed_writer_has_written_all_that_is_finished(
    broker: BrokerProcess, tmp_path: Path, flags: list[str], read: Callable[[bytes], bytes]
) -> None:
    topic = f"killed{flags[0].partition('=')[0]}"
    fill(broker, topic, LINES, "nsq_to_file")
    writer = subprocess.Popen(
        command(
            *("to-file", f"--topic={topic}", f"--output-dir={tmp_path}", "--max-in-flight=100"),
            *(f"--nsqd-tcp-address={broker.tcp_address}", *flags),
        ),
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: channels(broker, topic)["nsq_to_file"]["depth"] < len(LINES) - 500)
    finally:
        writer.kill()
        writer.wait()
    until(lambda: not channels(broker, topic)["nsq_to_file"]["in_flight_count"])
    left = stored_all(broker, topic, "nsq_to_file")
    assert 0 < len(left) < len(LINES)
    readable: set[bytes] = set()
    for path in tmp_path.iterdir():
        readable |= set(read(path.read_bytes()).splitlines())
    assert set(LINES) - readable <= set(left)
    ask(broker.http_address, f"/topic/delete?topic={topic}", "POST")
