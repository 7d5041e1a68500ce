"""The offset file: the offsets of a broadcast consumer, on its own disk.

It is JSON.  A new file replaces it once that is on the disk::

    {"format": "martlet-offsets", "version": 1, "topic": "orders",
     "offsets": {"127.0.0.1:4150": {"0": 1041, "1": 1038}}}

A broker has its address there, and its id if it has replicas.
An unreadable file is never overwritten: it may be the only record of the consumer's position.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from martlet.client.errors import ClientError
from martlet.client.group.queues.queue_id import QueueId

_FORMAT, _VERSION = "martlet-offsets", 1
MAX_BYTES = 16 << 20


class BadOffsetFile(ClientError, ValueError):
    """The offset file cannot be read, or is another topic's; the text says what to do."""


class OffsetFile:
    """Offsets by queue. Raises BadOffsetFile: the file is not an offset file of this topic.
    OSError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], topic: str) -> None:
        self.path = Path(path)
        self._topic = topic
        self._offsets: dict[QueueId, int] = {}
        self._writing = threading.Lock()
        if not self.path.parent.is_dir():
            raise BadOffsetFile(f"{self.path}: there is no folder {self.path.parent}: make it")
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return
        self._offsets = self._parsed(data)

    def _parsed(self, data: bytes) -> dict[QueueId, int]:
        try:
            if len(data) > MAX_BYTES:
                raise ValueError(f"it is longer than {MAX_BYTES} bytes")
            content: dict[str, Any] = json.loads(data)
            if content["format"] != _FORMAT or content["version"] != _VERSION:
                raise ValueError(f"its format is {content['format']!r} {content['version']!r}")
            topic, offsets = content["topic"], content["offsets"]
            parsed = {
                QueueId(broker, int(number)): offset
                for broker, queues in offsets.items()
                for number, offset in queues.items()
            }
            if wrong := [
                offset for offset in parsed.values() if type(offset) is not int or offset < 0
            ]:
                raise ValueError(f"{wrong[0]!r} is no offset")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadOffsetFile(
                f"{self.path} cannot be read as offsets ({error!r}): put back an older copy of it,"
                " or move it away, and the consumer begins where its 'start' says"
            ) from None
        if topic != self._topic:
            raise BadOffsetFile(
                f"{self.path} has the offsets of topic {topic!r}, and not of {self._topic!r}: name"
                " another file, one for each consumer"
            )
        return parsed

    def get(self, queue: QueueId) -> int | None:
        """Return the offset of a queue; None if there is none."""
        return self._offsets.get(queue)

    def write(self, offsets: dict[QueueId, int]) -> None:
        """Merge these with those of other queues, and write them to the disk. Raises OSError."""
        with self._writing:
            self._write(offsets)

    def _write(self, offsets: dict[QueueId, int]) -> None:
        self._offsets |= offsets
        brokers: dict[str, dict[str, int]] = {}
        for queue in sorted(self._offsets):
            brokers.setdefault(queue.broker, {})[str(queue.queue)] = self._offsets[queue]
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "topic": self._topic,
            "offsets": brokers,
        }
        fresh = self.path.with_name(f"{self.path.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
