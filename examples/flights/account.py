"""The account of every flight, and its faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from examples.flights.archiving import ArchiveContents
from examples.flights.report import Report, differing
from martlet.text import counted

if TYPE_CHECKING:
    from rich.table import Table

_MAX_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class DemoTotals:
    """The totals of a run; None for what it did not come to.

    Attributes:
        answered, done: for each flight, whether it was answered OK, and finished by a consumer.
        published: the flights that were given to the client.
        stored: the messages that the topic was given.
        deliveries, failures: calls of the handlers, and those that failed on purpose.
        left: the messages that the channel has not finished.
        found: the contents of the archive.
        source, handled: the reports on the source and on what the consumers handled.
        log: whether the verification of the broker's log found all well, and its last line.
        kills: how often the broker was killed.
        troubles: the errors that ended the job early.
    """

    answered: bytes
    done: bytes
    published: int
    stored: int | None
    deliveries: int
    failures: int
    left: int | None
    found: ArchiveContents | None
    source: Report
    handled: Report
    log: tuple[bool, str]
    kills: int
    troubles: tuple[str, ...] = ()

    @property
    def flights(self) -> int:
        """How many there are."""
        return len(self.answered)

    @property
    def acknowledged(self) -> int:
        """How many were answered OK."""
        return self.answered.count(1)

    @property
    def finished(self) -> int:
        """How many the consumers have finished."""
        return self.done.count(1)

    @property
    def unfinished(self) -> frozenset[int]:
        """Flights that were answered OK and are not finished."""
        pairs = enumerate(zip(self.answered, self.done, strict=True))
        return frozenset(row for row, (answered, done) in pairs if answered and not done)

    @property
    def lost(self) -> frozenset[int] | None:
        """Flights that were answered OK and are missing at the consumers or in the archive.

        None where the job was broken off: they might still have come.
        """
        if self.troubles or self.found is None:
            return None
        missing = {row for row in self.found.missing if self.answered[row]}
        return self.unfinished | missing

    def faults(self) -> list[str]:
        """All that is wrong."""
        log = [] if self.log[0] else [f"martlet log verify: {self.log[1]}"]
        if self.troubles or self.found is None:
            # The other faults follow from that.
            late = [f"not finished by then: {_named(self.unfinished)}"] if self.unfinished else []
            return [*(self.troubles or ["there is no archive"]), *late, *log]
        return [*self._of_the_consumers(), *self._of_the_archive(self.found), *log]

    def _of_the_consumers(self) -> Iterator[str]:
        if self.acknowledged != self.flights:
            yield f"only {self.acknowledged:,} of {self.flights:,} flights were answered OK"
        if not self.kills:
            yield "the broker was not killed, so nothing is shown"
        if self.left:
            yield f"still on the consumers' channel: {counted(self.left, 'message', form=',')}"
        if self.unfinished:
            yield f"not finished: {_named(self.unfinished)}"
        elif wrong := differing(self.source, self.handled):
            yield f"what the consumers add up to differs for {', '.join(wrong)}"

    def _of_the_archive(self, found: ArchiveContents) -> Iterator[str]:
        if found.rows != self.stored:
            yield f"{found.rows:,} rows are archived, and {self.stored or 0:,} messages were stored"
        if found.offsets != found.rows:
            yield f"archived twice: {counted(found.rows - found.offsets, 'message', form=',')}"
        if found.corrupt:
            yield f"{found.corrupt:,} archived messages are not what was published"
        if found.missing:
            yield f"not archived: {_named(found.missing)}"
        elif wrong := differing(self.source, found.report):
            yield f"what Spark adds up from the archive differs for {', '.join(wrong)}"

    def table(self) -> Table:
        """The account for a terminal."""
        from rich.table import Table

        result = Table(title="Account", show_header=False)
        result.add_column()
        result.add_column(justify="right")
        result.add_column()
        for name, count, note in self._lines():
            result.add_row(name, "unknown" if count is None else f"{count:,}", note)
        result.add_section()
        lost = self.lost
        result.add_row("lost", "unknown" if lost is None else f"{len(lost):,}", "")
        return result

    def _lines(self) -> Iterator[tuple[str, int | None, str]]:
        yield "flights", self.flights, "in the source"
        yield "published", self.published, "given to the client"
        yield "acknowledged", self.acknowledged, "answered OK"
        stored = self.stored
        twice = None if stored is None else stored - self.acknowledged
        yield "stored twice", twice, "sent again after the kill: their OK was lost"
        yield "finished", self.finished, "by four consumers"
        again = None if stored is None else self.deliveries - stored
        rest = "" if again is None else f", {again - self.failures:,} after the kill"
        yield "redelivered", again, f"{self.failures:,} failed on purpose{rest}"
        yield "left on the channel", self.left, ""
        rows = f"in {self.found.rows:,} rows" if self.found else ""
        yield "archived", self.found.flights if self.found else None, rows


def _named(rows: frozenset[int]) -> str:
    first = ", ".join(map(str, sorted(rows)[:_MAX_NAMED]))
    more = ", ..." if len(rows) > _MAX_NAMED else ""
    return f"{len(rows):,} flights (rows {first}{more})"
