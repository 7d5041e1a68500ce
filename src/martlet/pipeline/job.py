"""What all jobs share: how one is described, its Spark session, its end, and how it fails.

A job is a function of its options and a `Run`, which it asks for the session, tells what it has
done, and hears from that it is to end::

    def archive(options: ArchiveOptions, run: Run) -> ...

`carry_out` is what a command does with it: a session is made and ended, SIGTERM and SIGINT end the
job at its next step and with 0, since a job that is started again goes on, and what fails is told
in one line.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console

from martlet.options.flag import OptionError
from martlet.pipeline.metrics import Meter
from martlet.pipeline.options import JobOptions
from martlet.spark.brokers.brokers import NoSuchTopicError
from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import SparkSession

OptionsT = TypeVar("OptionsT", bound=JobOptions)
OK, FAILED, WRONG, LOSS = 0, 1, 2, 3
"""Exit codes: done or told to end; failed; the options or their SQL are wrong, and another try
would be in vain; an audit has found a loss."""

_WIDE = 200
"""Characters."""
_ERROR = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Unreachable|Refused)): (.+)")
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_log = logging.getLogger(__name__)


class JobFailed(Exception):
    """A job cannot go on; the text says why, and what may be done."""


class WrongQuery(JobFailed):
    """What was given as SQL is none, or names what is not there; the text says what."""


@dataclass(frozen=True)
class Job(Generic[OptionsT]):
    """A job as the command line knows it.

    Attributes:
        name: behind ``martlet pipeline``.
        description: what its ``--help`` says first.
        options: what it is started with.
        work: does it, and returns the exit code.
        check: says no to what is wrong with the options, before Spark takes its seconds to start.
        operands: the flags that may stand without their names, in order.
        has_steps: whether it is told to end at the next of them; one that has none is ended
            where it is, and is to be started again.
    """

    name: str
    description: str
    options: type[OptionsT]
    work: Callable[[OptionsT, Run], int]
    check: Callable[[OptionsT], object] = lambda _options: None
    operands: tuple[str, ...] = ()
    has_steps: bool = True


class Run:
    """One run of a job.

    Attributes:
        spark: the session that it works in.
        meter: counts what it has done, for Prometheus.
        stopping: set once the job is to end at its next step.
        console: where tables are printed.
    """

    def __init__(
        self,
        spark: SparkSession,
        meter: Meter | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.spark = spark
        self.meter = meter or Meter()
        self.stopping = stopping or threading.Event()
        # Where nobody looks, no table is cut to the width of a terminal.
        self.console = Console(width=None if sys.stdout.isatty() else _WIDE)

    def say(self, line: str) -> None:
        """Tell how far it is, on standard output."""
        print(line, flush=True)


@contextmanager
def session(name: str, options: JobOptions) -> Iterator[SparkSession]:
    """The Spark session of a job: the active one, or one of its own that ends with it."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    settings: dict[str, Any] = dict(setting.split("=", 1) for setting in options.spark_conf)
    spark = spark_session(
        f"martlet {name}", master=options.master or _submitted_master(), **settings
    )
    try:
        yield spark
    finally:
        if not _is_java_gone(spark):
            for query in spark.streams.active:
                query.stop()
            spark.stop()


def _is_java_gone(spark: SparkSession) -> bool:
    """Whether the Java that a session is in has ended, or is about to."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (OSError, Py4JError):
        return True


def _submitted_master() -> str:
    """Where spark-submit has put the job, which has a Java running by then; else this machine."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return "local[*]"
    from pyspark import SparkConf

    return SparkConf().get("spark.master") or "local[*]"


def carry_out(job: Job[OptionsT], options: OptionsT) -> int:
    """Do a job as a command does; the result is the exit code of the process."""
    # pyspark logs errors that it raises, whole with the stack of its Java, as lines of JSON.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    stopping = threading.Event()
    try:
        with _ending(stopping, at_once=True):
            job.check(options)
        with (
            _ending(stopping, at_once=not job.has_steps),
            Meter.serving(options.metrics_address) as meter,
            session(job.name, options) as spark,
        ):
            if stopping.is_set():
                return _ended(job)
            run = Run(spark, meter, stopping)
            try:
                return job.work(options, run)
            except Exception:
                # What ends a job often ends its Java with it, as timeout(1) and systemd do.
                if stopping.is_set() and _is_java_gone(spark):
                    return _ended(job)
                raise
    except (OptionError, WrongQuery, NoSuchTopicError) as error:
        print(f"martlet pipeline {job.name}: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return _ended(job)
    except Exception as error:
        if stopping.is_set() and not job.has_steps:
            # A signal in the midst of an answer of Java's becomes an error in reading that.
            return _ended(job)
        _log.debug("%s has failed", job.name, exc_info=True)
        print(f"martlet pipeline {job.name}: {cause(error)}", file=sys.stderr)
        return FAILED


def _ended(job: Job[OptionsT]) -> int:
    """The exit code of a job that a signal has ended."""
    if job.has_steps:
        return OK
    print(f"martlet pipeline {job.name}: ended before it was done", file=sys.stderr)
    return FAILED


@contextmanager
def _ending(stopping: threading.Event, *, at_once: bool) -> Iterator[None]:
    """SIGTERM and SIGINT end the job at its next step; a second one does at once."""

    def end(number: int, _frame: FrameType | None) -> None:
        is_first = not stopping.is_set()
        stopping.set()
        if at_once or not is_first:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def query_errors_as(what: str) -> Iterator[None]:
    """Tell what Spark says of SQL that is none, or names what is not there, in a line.

    Raises:
        WrongQuery: `what`, and what Spark says.
    """
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        said = next(filter(None, str(error).splitlines()), "")
        raise WrongQuery(f"{what}: {said}") from None


def cause(error: Exception) -> str:
    """The one line that matters of what Spark says: the last that names an error."""
    text = str(error).replace("option timeoutMs", "--timeout")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [match for match in map(_ERROR.match, lines) if match]
    if found:
        return f"{found[-1][1]}: {found[-1][2]}"
    return _STREAM.sub("", (lines or [type(error).__name__])[0])
