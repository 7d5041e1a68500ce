"""The folder of the job, and what is where in it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from examples.flights.failure import DemoFailed

DATA = "data"
"""The broker's data folder."""
PARQUET = "flights.parquet"
"""The archive, a table of Parquet files."""


class DemoFolder:
    """The folder of a run.

    Attributes:
        folder: its absolute path.
        is_kept: whether it stays when the job has ended well.
    """

    def __init__(self, folder: Path | None, *, keep: bool) -> None:
        """Make the folder.

        Args:
            folder: where, or None for a new one among the temporary files.
            keep: whether it stays; one that was named stays in any case.

        Raises:
            DemoFailed: it holds something already, or cannot be made.
        """
        self.is_kept = keep or folder is not None
        try:
            if folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="martlet-demo-"))
                return
            self.folder = folder.resolve()
            self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise DemoFailed(f"{folder} is not empty: name a new folder, or empty it")
        except OSError as error:
            raise DemoFailed(f"cannot use {error.filename}: {error.strerror}") from error

    @property
    def data(self) -> Path:
        """The broker's data folder."""
        return self.folder / DATA

    @property
    def parquet(self) -> Path:
        """The archive."""
        return self.folder / PARQUET

    @property
    def scratch(self) -> Path:
        """Spark's folder for what it needs only while it runs."""
        return self.folder / "scratch"

    @property
    def client_log(self) -> Path:
        """What producers and consumers logged, the failing handler included."""
        return self.folder / "client.log"

    @property
    def spark_log(self) -> Path:
        """What Spark and its Java printed."""
        return self.folder / "spark.log"

    @property
    def broker_log(self) -> Path:
        """What the broker logged, before the kill and after."""
        return self.folder / "broker.log"

    def remove(self) -> None:
        """Remove it with all that the job put there."""
        shutil.rmtree(self.folder, ignore_errors=True)
