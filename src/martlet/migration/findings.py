"""Findings: problems of a data folder, for the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

_MAX = 1000


@dataclass
class Findings:
    """Sentences in three degrees; after a thousand of one degree they are only counted."""

    lost: list[str] = field(default_factory=list)
    """A part could not be read: messages may be missing."""
    doubts: list[str] = field(default_factory=list)
    """Messages may come again that were consumed, or state was lost that is no message."""
    notes: list[str] = field(default_factory=list)
    """A part was skipped with good reason."""
    more: int = 0

    def unreadable(self, text: str) -> None:
        """Messages may be missing."""
        self._add(self.lost, text)

    def doubt(self, text: str) -> None:
        """Messages may come again, or lack something."""
        self._add(self.doubts, text)

    def note(self, text: str) -> None:
        """Nothing is wrong, but it may look so."""
        self._add(self.notes, text)

    def _add(self, texts: list[str], text: str) -> None:
        if len(texts) < _MAX:
            texts.append(text)
        else:
            self.more += 1

    def lines(self) -> Iterator[str]:
        """The report."""
        yield from (f"NOT READ: {text}" for text in self.lost)
        yield from (f"in doubt: {text}" for text in self.doubts)
        yield from (f"note: {text}" for text in self.notes)
        if self.more:
            yield f"and {self.more} findings more"
