"""Dead letters: the folder where an evicted segment's messages are kept, with `--dead-letter-path`.

They are kept outside of the log, on another disk if it is to help: in a topic of their own they
would take the very room that is to be made.  What is kept is on its disk before the segment goes;
where that fails, the segment stays, and publishers are refused.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from martlet.broker.retention.evicted_files import file_name, lines
from martlet.broker.retention.eviction import EvictionLoss
from martlet.log.storage import Segment

Lost = Callable[[str, str, int, int, str], None]


class DeadLetters:
    """The folder.

    Args:
        folder: made where it does not exist.
        keep_free_bytes: what must stay free on its disk.
        on_lost: told of messages that can not be read: topic, channel, first offset, end offset,
            why.

    Raises:
        OSError: there can be no such folder.
    """

    def __init__(self, folder: Path, keep_free_bytes: int, on_lost: Lost) -> None:
        self.folder = folder
        self._keep_free_bytes = keep_free_bytes
        self._on_lost = on_lost
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(
                f"the folder {folder} for dead letters cannot be made: {error}; see"
                " --dead-letter-path"
            ) from error

    def keep(self, segment: Segment, losses: list[EvictionLoss]) -> None:
        """Write down all that channels have not finished of a segment. Raises OSError."""
        for loss in losses:
            for channel, offsets in loss.unfinished.items():
                if not len(offsets):
                    continue
                topic, name = loss.topic.home.name, channel.name if channel else ""

                def bad(
                    first: int, end: int, why: str, topic: str = topic, name: str = name
                ) -> None:
                    self._on_lost(topic, name, first, end, why)

                path = self.folder / file_name(segment.base, loss.topic, channel)
                self._write(path, lines(segment, loss, offsets, bad))
        self._sync(self.folder)

    def _write(self, path: Path, pieces: Iterator[bytes]) -> None:
        beside = path.with_name(path.name + ".new")
        try:
            with open(beside, "wb", buffering=1 << 20) as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                disk = os.fstatvfs(file.fileno())
                if disk.f_bavail * disk.f_frsize < self._keep_free_bytes:
                    raise OSError(
                        errno.ENOSPC,
                        f"{self._keep_free_bytes} bytes must stay free (--min-free-bytes)",
                        str(self.folder),
                    )
                os.fsync(file.fileno())
            beside.rename(path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    @staticmethod
    def _sync(folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
