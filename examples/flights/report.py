"""The report: how many flights each carrier had, and how late they left on average."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class CarrierLine:
    """A carrier's line.

    Attributes:
        flights: how many.
        mean_delay_min: their mean departure delay in minutes, of those that left; None if none did.
    """

    flights: int
    mean_delay_min: float | None

    @classmethod
    def of(cls, flights: int, departed: int, delay_min: int) -> CarrierLine:
        """Divide sums of integers, so that equal sums have the very same mean."""
        return cls(flights, delay_min / departed if departed else None)


Report = Mapping[str, CarrierLine]
"""Lines by carrier."""


def differing(one: Report, other: Report) -> list[str]:
    """The carriers whose lines differ."""
    return sorted(
        carrier for carrier in one.keys() | other.keys() if one.get(carrier) != other.get(carrier)
    )


def table(reports: Mapping[str, Report]) -> Table:
    """Reports beside each other, the first being what the others are compared with."""
    from rich.table import Table

    result = Table(title="Flights, and their mean departure delay in minutes", show_footer=True)
    first, *others = reports.values()
    wrong = {carrier for other in others for carrier in differing(first, other)}
    result.add_column("carrier", "all")
    for name, report in reports.items():
        flights = sum(line.flights for line in report.values())
        result.add_column(f"{name}\nflights", f"{flights:,}", justify="right")
        result.add_column("\ndelay", justify="right")
    result.add_column("equal", "NO" if wrong else "yes")
    for carrier in sorted({carrier for each in reports.values() for carrier in each}):
        cells = [text for each in reports.values() for text in _cells(each.get(carrier))]
        result.add_row(carrier, *cells, "NO" if carrier in wrong else "yes")
    return result


def _cells(line: CarrierLine | None) -> tuple[str, str]:
    if line is None:
        return "missing", ""
    delay = line.mean_delay_min
    return f"{line.flights:,}", "none" if delay is None else f"{delay:.2f}"
