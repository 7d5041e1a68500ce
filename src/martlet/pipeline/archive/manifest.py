"""The manifest: a task's report to the driver about the files that it has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from martlet.pipeline.archive.position import Stretch
from martlet.spark.read.offsets import QueueKey


class Written(NamedTuple):
    """A file that a task has written."""

    staged: str
    """Its staged path."""
    name: str
    """Its target path."""
    rows: int
    size_bytes: int
    partition: dict[str, str | None]
    """The values of its partition columns."""


@dataclass(frozen=True)
class Manifest:
    """The files of one stretch of a queue; none if retention has removed all of its messages."""

    stretch: Stretch
    folder: str
    """The staged folder of the batch."""
    files: Sequence[Written]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    def format(self) -> str:
        """Encode the manifest as the text that Spark passes to the driver."""
        return json.dumps([self.stretch, self.folder, self.files])

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Decode the text of a manifest."""
        (key, start, end), folder, files = json.loads(text)
        stretch = Stretch(QueueKey(*key), start, end)
        return cls(stretch, folder, [Written(*file) for file in files])
