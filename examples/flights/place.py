"""The folder of the job."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from examples.flights.board import DemoFailed

PARQUET = "flights.parquet"
"""The archive, a table of Parquet files."""


class DemoFolder:
    """The folder of a run.

    Attributes:
        folder: its absolute path.
        is_kept: whether it stays when the job has ended well.
        data: the broker's data folder.
        parquet: the archive.
        scratch: Spark's folder for what it needs only while it runs.
        client_log, spark_log, broker_log: the logs.
    """

    def __init__(self, folder: Path | None, *, keep: bool) -> None:
        """Make the folder, or a temporary one; one that is named stays in any case.

        Raises:
            DemoFailed: it holds something already, or cannot be made.
        """
        self.is_kept = keep or folder is not None
        try:
            if folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="martlet-demo-"))
            else:
                self.folder = folder.resolve()
                self.folder.mkdir(parents=True, exist_ok=True)
            if any(self.folder.iterdir()):
                raise DemoFailed(f"{folder} is not empty: name a new folder, or empty it")
        except OSError as error:
            raise DemoFailed(f"cannot use {error.filename}: {error.strerror}") from error
        self.data = self.folder / "data"
        self.parquet = self.folder / PARQUET
        self.scratch = self.folder / "scratch"
        self.client_log = self.folder / "client.log"
        self.spark_log = self.folder / "spark.log"
        self.broker_log = self.folder / "broker.log"

    def remove(self) -> None:
        """Remove it with all that the job put there."""
        shutil.rmtree(self.folder, ignore_errors=True)
