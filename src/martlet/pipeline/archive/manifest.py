"""The manifest: what a task tells the driver of the files that it has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from martlet.pipeline.archive.position import Stretch
from martlet.spark.read.offsets import QueueKey


class Written(NamedTuple):
    """One file.

    Attributes:
        staged: where it is.
        name: where it goes.
        rows, size_bytes: what is in it.
        partition: the values that its folders stand for, by column.
    """

    staged: str
    name: str
    rows: int
    size_bytes: int
    partition: dict[str, str | None]


@dataclass(frozen=True)
class Manifest:
    """What became of one stretch of a queue: perhaps no file, where all of it was let go.

    Attributes:
        folder: the staged folder of the batch that it belongs to.
    """

    stretch: Stretch
    folder: str
    files: Sequence[Written]

    @property
    def rows(self) -> int:
        """How many rows."""
        return sum(file.rows for file in self.files)

    def format(self) -> str:
        """As the text that Spark hands to the driver."""
        return json.dumps([self.stretch, self.folder, self.files])

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """The inverse of `format`."""
        (key, start, end), folder, files = json.loads(text)
        stretch = Stretch(QueueKey(*key), start, end)
        return cls(stretch, folder, [Written(*file) for file in files])
