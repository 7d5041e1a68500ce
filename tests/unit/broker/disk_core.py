"""A core on a real folder."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.unit.broker.core import Client, Core

from martlet.broker.recovery.restore import restore
from martlet.broker.recovery.trace_search import Search
from martlet.broker.retention.history import Watermarks
from martlet.log.folder import Folder
from martlet.log.storage import DiskStorage
from martlet.properties.model import Properties

SEGMENT_BYTES = 1 << 16


class DiskCore(Core):
    """A core on a real folder, which others can look at. Its history stays however full the disk
    of the machine is.
    """

    def __init__(self, path: Path, **options: object) -> None:
        self.path = path
        marks = Watermarks(0, 0)
        super().__init__(segment_bytes=SEGMENT_BYTES, traces=True, watermarks=marks, **options)

    def _open(self) -> None:
        self.disk = DiskStorage(self.path)
        self.broker, self.restored = restore(
            self.disk, self.clock, Random(5), segment_bytes=self.segment_bytes, **self.options
        )
        self.broker.run()

    def restart(self) -> None:
        """As after a kill -9."""
        self.disk.close()
        self._open()

    def search(self, topic: str = "") -> Search:
        self.broker.write_journal()
        return Search(Folder(self.path), topic=topic)

    def keyed(self, topic: str, body: bytes, key: str) -> None:
        self.send(topic, Properties(keys=(key,)), body)

    def consumed(self, topic: str, channel: str = "c") -> Client:
        """A consumer that has finished all there is."""
        client = self.client(topic, channel).ready(1 << 20)
        client.finish()
        return client
