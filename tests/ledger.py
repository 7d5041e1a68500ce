"""What processes of a test know for certain, in a file that outlives them.

A producer writes a line once a message was answered OK, a consumer before it finishes one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class Ledger:
    """A file of lines, to which several processes append."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, lines: Iterable[bytes]) -> None:
        """Append lines in one write, which a kill leaves out or cuts, but never mixes."""
        with open(self.path, "ab", buffering=0) as file:
            file.write(b"".join(b"%b\n" % line for line in lines))

    def lines(self) -> list[bytes]:
        """Return all lines so far; of one that was cut at the end, none."""
        *lines, _ = self.path.read_bytes().split(b"\n") if self.path.exists() else [b""]
        return lines
