"""The progress of imports: a small file beside the log.

::

    {"version": 1, "imports": [{"source": ..., "fingerprint": ..., "done": null, ...}]}

How far an import has come says the log itself: the layout follows from the folder alone, so what a
topic holds of it was done. The file only identifies the folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from martlet.log.storage import Storage

NAME = "import-nsqd.json"
VERSION = 1


class ImportRefused(Exception):
    """Nothing is imported; the text says why, and the way out."""


@dataclass
class ImportEntry:
    """An import."""

    source: str
    fingerprint: str
    """Of the folder's files."""
    done: str | None = None
    """When it was done, as text; None while it is not."""
    report: list[str] = field(default_factory=list)
    """What it said when it was done."""
    complete: bool = True
    """Whether everything could be read."""


class ImportProgress:
    """The file of a storage.

    Raises:
        ImportRefused: it cannot be understood.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.entries: list[ImportEntry] = []
        data = storage.read(NAME)
        if data is None:
            return
        try:
            content = json.loads(data)
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}, this Martlet reads {VERSION}")
            self.entries = [ImportEntry(**entry) for entry in content["imports"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ImportRefused(
                f"{NAME} in the broker's data folder cannot be understood: {error}"
            ) from error

    def find(self, fingerprint: str) -> ImportEntry | None:
        """The import of a folder with these files."""
        return next((e for e in self.entries if e.fingerprint == fingerprint), None)

    @property
    def unfinished(self) -> ImportEntry | None:
        """The import that was begun and is not done."""
        return next((entry for entry in self.entries if entry.done is None), None)

    def write(self) -> None:
        """Make it durable. Raises OSError."""
        content = {"version": VERSION, "imports": [asdict(entry) for entry in self.entries]}
        self._storage.replace(NAME, json.dumps(content, indent=1).encode())
