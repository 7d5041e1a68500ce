"""A data folder written by a real broker, and the places in it that a test damages."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path

from tests.crash.here import BrokerHere
from tests.crash.wire import Wire, drain, http, mpub
from tests.polling import until

from martlet.log.folder import Folder
from martlet.log.record import Header, RecordKind
from martlet.log.recovery import RecoveryReport, scan
from martlet.testing import BrokerProcess

SEGMENT_BYTES = 1 << 16
BATCHES = 90
BATCH_COUNT = 20
FINISHED = 130
"""Number of the first messages that are finished: six batches and a half."""
SETTINGS = (
    f"--max-bytes-per-file={SEGMENT_BYTES}",
    "--min-free-bytes=0",
    "--journal-interval=5ms",
    "--log-level=info",
)


def bodies_of(batch: int) -> list[bytes]:
    """The bodies of a batch; they differ in size from batch to batch."""
    return [b"%04d-%02d-" % (batch, n) + b"." * (50 + 7 * (batch % 5)) for n in range(BATCH_COUNT)]


class WrittenFolder:
    """Topic t with channel c, of which the first messages are finished.

    Attributes:
        path: the folder.
        broker: to be started again after the damage, here or as a process.
    """

    def __init__(self, path: Path, *flags: str, process: bool) -> None:
        self.path = path
        self.flags = flags
        kind = BrokerProcess if process else BrokerHere
        self.broker: BrokerProcess | BrokerHere = kind(path, *SETTINGS, *flags)

    def copy(self, path: Path, *, process: bool) -> WrittenFolder:
        """The same once more, to be damaged."""
        shutil.copytree(self.path, path)
        return WrittenFolder(path, *self.flags, process=process)

    def kill(self) -> None:
        """End the broker by SIGKILL."""
        assert isinstance(self.broker, BrokerProcess)
        self.broker.kill()

    async def write(self, *, clean: bool, checkpointed: bool = False) -> None:
        """Publish and finish, then end the broker by SIGTERM, or SIGKILL.

        Args:
            clean: whether by SIGTERM.
            checkpointed: whether a checkpoint has all but the last batch.
        """
        broker = self.broker
        broker.start()
        await http(broker.http_address, "/topic/create?topic=t", b"")
        await http(broker.http_address, "/channel/create?topic=t&channel=c", b"")
        await self.publish(range(BATCHES))
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        wire.send(b"RDY 1\n")
        for _ in range(FINISHED):
            got = await wire.message()
            wire.send(b"FIN %b\n" % got.id)
        wire.send(b"RDY 0\n")
        await self.journaled()
        if checkpointed:
            await self.checkpointed()
        await self.publish(range(BATCHES, BATCHES + 1))
        wire.close()
        if clean:
            assert broker.stop() == 0
        else:
            self.kill()

    async def journaled(self) -> None:
        """Return when the journal has the place of the channel."""
        for number in range(5):
            await http(self.broker.http_address, f"/topic/create?topic=barrier{number}", b"")
            await asyncio.sleep(0.02)

    async def checkpointed(self) -> None:
        """Return when a checkpoint that has begun after this call is durable."""
        for number in range(2):  # The first one may have begun before.
            before = self._checkpoint()
            await http(self.broker.http_address, f"/topic/create?topic=saved{number}", b"")
            await until(partial(self._has_other_checkpoint, before))

    def _checkpoint(self) -> bytes:
        path = self.path / "checkpoint"
        return path.read_bytes() if path.exists() else b""

    def _has_other_checkpoint(self, before: bytes) -> bool:
        return self._checkpoint() != before

    async def publish(self, batches: range) -> None:
        wire = await Wire.open(self.broker.tcp_address)
        for batch in batches:
            wire.send(mpub("t", bodies_of(batch)))
            await wire.ok()
        wire.close()

    async def left(self) -> list[bytes]:
        """Return the messages that channel c still has, in their order."""
        got = await drain(self.broker.tcp_address, self.broker.http_address, "t", "c")
        return [message.body for message in got]

    async def start(self) -> str:
        """Start the broker; what it says of the log."""
        before = len(self.broker.log())
        self.broker.start()
        await http(self.broker.http_address, "/ping")
        lines = self.broker.log()[before:].splitlines()
        return "\n".join(line for line in lines if ": LOG: " in line)

    def segments(self) -> list[Path]:
        return sorted((self.path / "log").glob("*.log"))

    def batches(self) -> list[Header]:
        """The records of topic t that the log holds, in order."""
        records = scan(Folder(self.path).segments(), 0, RecoveryReport())
        headers = [header for header, _ in records if header.kind == RecordKind.BATCH]
        return [header for header in headers if header.count == BATCH_COUNT]

    def file_of(self, position: int) -> tuple[Path, int]:
        """The file that holds a position, and the byte in it."""
        path = [path for path in self.segments() if int(path.stem) <= position][-1]
        return path, position - int(path.stem)

    def overwrite(self, position: int, data: bytes) -> None:
        path, at = self.file_of(position)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(data)

    def flip(self, position: int) -> None:
        """Flip one bit of the log."""
        path, at = self.file_of(position)
        flip(path, at)


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(at)
        (octet,) = file.read(1)
        file.seek(at)
        file.write(bytes([octet ^ 0x10]))
