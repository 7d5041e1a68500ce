"""nsqd's data folder as nsqd writes it, and what a broker has after it was imported."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from martlet.broker.broker import BrokerCore
from martlet.broker.recovery.restore import restore
from martlet.log.storage import DiskStorage
from martlet.testing import SimulatedClock

_FRAME = struct.Struct(">IIqH16s")
_START_NS = 1_700_000_000 * 10**9


class Message(NamedTuple):
    """A message as nsqd keeps it."""

    number: int
    body: bytes
    attempts: int = 0

    @property
    def time_ns(self) -> int:
        return _START_NS + 1000 * self.number

    def tried(self, attempts: int) -> Message:
        return self._replace(attempts=attempts)

    def record(self) -> bytes:
        head = struct.pack(">qH", self.time_ns, self.attempts)
        message = head + b"%016x" % (0x18EA0000_00000000 + self.number) + self.body
        return struct.pack(">i", len(message)) + message


def message(number: int, size: int = 30) -> Message:
    return Message(number, (b"%d-" % number).ljust(size, b"."))


def write_queue(
    folder: Path,
    name: str,
    messages: Sequence[Message],
    *,
    consumed: int = 0,
    per_file: int = 1000,
    meta: bool = True,
    depth: int | None = None,
) -> list[Path]:
    """Write a disk queue, of which the first messages were consumed. Returns its data files."""
    paths = []
    read = (0, 0)
    written = (0, 0)
    for number, first in enumerate(range(0, max(1, len(messages)), per_file)):
        path = folder / f"{name}.diskqueue.{number:06d}.dat"
        some = messages[first : first + per_file]
        path.write_bytes(b"".join(m.record() for m in some))
        if first <= consumed:
            read = (number, sum(len(m.record()) for m in some[: consumed - first]))
        written = (number, path.stat().st_size)
        paths.append(path)
    for path in paths[: read[0]]:
        path.unlink()
    if meta:
        left = len(messages) - consumed if depth is None else depth
        text = f"{left}\n{read[0]},{read[1]}\n{written[0]},{written[1]}\n"
        (folder / f"{name}.diskqueue.meta.dat").write_text(text, encoding="ascii")
    return paths[read[0] :]


def write_metadata(
    folder: Path,
    topics: Mapping[str, Iterable[str]],
    paused: Iterable[str] = (),
    version: str = "1.3.0",
) -> None:
    """Write nsqd.dat; `paused` names topics, and channels as topic:channel."""
    content = {
        "topics": [
            {
                "name": topic,
                "paused": topic in paused,
                "channels": [
                    {"name": channel, "paused": f"{topic}:{channel}" in paused}
                    for channel in channels
                ]
                or None,
            }
            for topic, channels in topics.items()
        ],
        "version": version,
    }
    path = folder / "nsqd.dat"
    path.write_text(json.dumps(content), encoding="utf-8")
    # A clean stop writes this first, and then a meta file for each topic and channel.
    os.utime(path, (1_700_000_000, 1_700_000_000))
    for topic, channels in topics.items():
        for queue in (topic, *(f"{topic}:{channel}" for channel in channels)):
            meta = folder / f"{queue}.diskqueue.meta.dat"
            if "#" not in queue and not list(folder.glob(f"{queue}.diskqueue.*")):
                meta.write_text("0\n0,0\n0,0\n", encoding="ascii")


@dataclass(frozen=True)
class Got:
    """A message as a consumer of Martlet gets it."""

    body: bytes
    attempts: int
    time_ns: int


class _Client:
    def __init__(self) -> None:
        self.got: list[Got] = []

    def send_messages(self, frames: Sequence[memoryview | bytes | bytearray]) -> None:
        for some in frames:
            data, at = bytes(some), 0
            while at < len(data):
                size, _, time_ns, attempts, _ = _FRAME.unpack_from(data, at)
                self.got.append(Got(data[at + _FRAME.size : at + 4 + size], attempts, time_ns))
                at += 4 + size

    def channel_closed(self) -> None:
        raise AssertionError("a channel was closed")

    def failures_counted(self, max_attempts: int) -> None: ...

    def recalled(self, queue: int) -> None: ...

    def channel_grown(self, channel: object, consumer: object) -> None:
        raise AssertionError("a channel has grown")


class Imported:
    """A broker's core on a folder."""

    def __init__(self, path: Path) -> None:
        self.storage = DiskStorage(path)
        self.broker: BrokerCore
        self.broker, restored = restore(
            self.storage, SimulatedClock(2 * 10**18), random.Random(1), segment_bytes=1 << 20
        )
        assert restored.report.damaged == []

    def close(self) -> None:
        self.storage.close()

    def left(self, topic: str, channel: str) -> list[Got]:
        """Everything that a channel has, in the order in which it comes."""
        channel_ = self.broker.topics[topic].channels[channel]
        channel_.set_paused(False)
        client = _Client()
        depth = channel_.depth
        consumer = channel_.add_consumer(client, 10**15)
        channel_.set_ready(consumer, 10**9)
        assert len(client.got) == depth
        return client.got


def left_of(path: Path, *channels: str) -> dict[str, list[bytes]]:
    """The bodies that channels have, each named as topic:channel, sorted."""
    imported = Imported(path)
    try:
        return {
            name: sorted(got.body for got in imported.left(*name.split(":"))) for name in channels
        }
    finally:
        imported.close()


def command(source: Path, data_path: Path, *flags: str) -> list[str]:
    """The command line of an import."""
    return [
        *(sys.executable, "-m", "martlet", "import-nsqd", str(source)),
        f"--data-path={data_path}",
        "--min-free-bytes=0",
        *flags,
    ]


def import_now(source: Path, data_path: Path, *flags: str) -> tuple[int, str, str]:
    """Run the command in a process. Returns its exit code and what it wrote."""
    done = subprocess.run(
        command(source, data_path, *flags), capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr
