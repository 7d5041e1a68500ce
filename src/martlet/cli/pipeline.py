"""`martlet pipeline`: the jobs on topics that run on Spark."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from martlet.cli import start, tool
from martlet.options.checks import unknown_word
from martlet.text import how_to_install

JOBS = {
    "archive": "archive topics as a growing table of Parquet files",
    "report": "figures over windows of time, live: a terminal, a page with plots, Parquet, a topic",
    "replay": "send messages of a topic's past or of an archive again, each exactly once",
    "dead-letters": "group dead letters by reason; redrive or drop them by a condition",
    "audit": "account for every message, from the logs of the brokers",
}
"""The jobs, each a module of `martlet.pipeline`, and their lines of ``--help``."""


def main(argv: Sequence[str]) -> int:
    """Run a job; return the exit code of the process."""
    name, *rest = argv or [""]
    if name in ("--help", "-help", "-h", "help"):
        print(usage())
        return 0
    if name == "--submit-file":
        print(Path(__file__).with_name("submit") / "martlet_pipeline.py")
        return 0
    if name not in JOBS:
        print(_unknown(name), file=sys.stderr)
        return start.WRONG
    try:
        module = importlib.import_module(f"martlet.pipeline.{name.replace('-', '_')}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "martlet":
            raise
        print(
            f"martlet pipeline {name} wants {error.name}: {how_to_install('spark')}",
            file=sys.stderr,
        )
        return start.WRONG
    job: Any = module.JOB
    usage_of_operands = " ".join(operand.upper() for operand in job.operands)
    options = tool.options(
        f"pipeline {name}", job.description, job.options, rest, usage_of_operands, job.operands
    )
    from martlet.pipeline.job import carry_out

    return carry_out(job, options)


def usage() -> str:
    """Return what ``martlet pipeline --help`` prints."""
    width = max(map(len, JOBS))
    return "\n".join(
        [
            "usage: martlet pipeline JOB [--FLAG=VALUE ...]",
            "       martlet pipeline JOB --help",
            "       spark-submit [...] $(martlet pipeline --submit-file) JOB [--FLAG=VALUE ...]",
            "",
            "Jobs on topics that run on Spark, on this machine or on --master.",
            "",
            "jobs:",
            *(f"  {name:<{width}}  {summary}" for name, summary in JOBS.items()),
        ]
    )


def _unknown(name: str) -> str:
    return f"martlet pipeline: {unknown_word('job', name, JOBS)}; see martlet pipeline --help"
