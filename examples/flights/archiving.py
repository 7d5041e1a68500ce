"""The process in which Spark archives: its start and end, its progress, its report."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from examples.flights.board import DemoFailed, Mark
from examples.flights.place import DemoFolder
from examples.flights.report import CarrierLine, Report

_CHECKOUT = str(Path(__file__).parents[2])
_STOP_S = 20.0
# For a job of a minute on two cores the best of compilers takes more time than it saves.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_MAX_LINE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class ArchiveContents:
    """The contents of the archive, by Spark.

    Attributes:
        rows: rows; a message each.
        offsets: different offsets among them: as many as rows if each was archived once.
        corrupt: rows that were no JSON of a flight.
        flights: different flights.
        missing: the flights of the source that are not there.
        report: the sums of the flights.
    """

    rows: int
    offsets: int
    corrupt: int
    flights: int
    missing: frozenset[int]
    report: Report

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> ArchiveContents:
        """Read the JSON of the process."""
        report = {carrier: CarrierLine(*line) for carrier, line in fields["report"].items()}
        return cls(**fields | {"report": report, "missing": frozenset(fields["missing"])})


class Archiving:
    """The process that archives.

    Attributes:
        rows: the mark of how many rows are archived so far.
    """

    def __init__(self, http_address: str, place: DemoFolder) -> None:
        self.rows = Mark()
        self._http_address = http_address
        self._place = place
        self._process: asyncio.subprocess.Process
        self._found: asyncio.Future[ArchiveContents] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Archiving:
        self._place.scratch.mkdir()
        with self._place.spark_log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "examples.flights.archive_process"),
                *(self._http_address, str(self._place.folder)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._place.scratch,
                env=self._environment(),
                limit=_MAX_LINE_BYTES,
                # A group of its own, with its Java: Ctrl-C is for the job, which ends them.
                start_new_session=True,
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            if error is None:
                async with asyncio.timeout(_STOP_S):
                    await process.wait()
        except TimeoutError:
            pass
        finally:
            # The group stands as long as one of it does, such as a Java that did not end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def _environment(self) -> dict[str, str]:
        """Have Spark, its Java and its Pythons leave their files in the scratch folder."""
        scratch = str(self._place.scratch)
        java_options = f"{_JAVA_OPTIONS} -Djava.io.tmpdir={scratch}"
        if given := os.environ.get("JAVA_TOOL_OPTIONS"):
            java_options += f" {given}"
        return os.environ | {
            "PYTHONPATH": os.pathsep.join([_CHECKOUT, os.environ.get("PYTHONPATH", "")]),
            "TMPDIR": scratch,
            "SPARK_LOCAL_DIRS": scratch,
            "JAVA_TOOL_OPTIONS": java_options,
        }

    async def follow(self) -> None:
        """Follow its progress until it ends.

        Raises:
            DemoFailed: it ended without having finished.
        """
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = json.loads(line)
            if "rows" in report:
                self.rows.rise(report["rows"])
            if "failed" in report:
                raise DemoFailed(f"the archive failed: {report['failed']}")
            if "result" in report:
                self._found.set_result(ArchiveContents.parse(report["result"]))
        if not self._found.done():
            code = await self._process.wait()
            raise DemoFailed(f"the archive's process ended with code {code}")

    async def finish(self, flights: int, messages: int) -> ArchiveContents:
        """Archive the rest of the topic, which has that many messages, and report on the archive.

        Flights are numbered from 0.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"finish {flights} {messages}\n".encode())
        return await self._found
