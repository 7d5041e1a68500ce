"""The common part of all jobs: description, Spark session, shutdown, and errors.

A job is a function of its options and a `Run`, which has the session, reports progress, and says
when the job must end.  A command runs a job by `carry_out`, which creates and stops the session and
prints an error as one line.  SIGTERM and SIGINT end the job after its current step with exit code
0, since a job that is started again continues.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from rich.console import Console

from martlet.addresses import Address
from martlet.options.flag import OptionError
from martlet.pipeline.options import JobOptions, StreamJobOptions
from martlet.reader.brokers.brokers import NoSuchTopicError, QueryBrokers
from martlet.reader.options import ReadOptions
from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql import DataFrame, SparkSession

OptionsT = TypeVar("OptionsT", bound=JobOptions)
ResultT = TypeVar("ResultT")
OK, FAILED, WRONG, LOSS = 0, 1, 2, 3
"""Exit codes: done, or ended by a signal; failed; the options or their SQL are wrong, so that a
retry is pointless; an audit has found a loss."""

MAX_TRIES = 5
_LATE_PYTHON = "Python worker failed to connect back"
TRYING_AGAIN = f"{_LATE_PYTHON} within 10 s, as the machine is busy; trying again"
_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)
_PIPED_WIDTH = 200
"""Characters of a line of a table that does not go to a terminal."""
_ERROR = re.compile(r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Unreachable|Refused)): (.+)")
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
_PARSED = "_parsed"
_log = logging.getLogger(__name__)


class JobFailed(Exception):
    """A job cannot continue; the text says why, and what the user can do."""


class WrongQuery(JobFailed):
    """An option's SQL is invalid, or names a column or function that does not exist."""


@dataclass(frozen=True)
class Job(Generic[OptionsT]):
    """A job as a command."""

    name: str
    """Its name in ``martlet pipeline NAME``."""
    description: str
    """The first paragraph of its ``--help``."""
    options: type[OptionsT]
    work: Callable[[OptionsT, Run], int]
    check: Callable[[OptionsT], object] = lambda _options: None
    """Raises for invalid options, before Spark takes its seconds to start."""
    operands: tuple[str, ...] = ()
    """The flags that can be given as positional arguments, in order."""
    has_steps: bool = True
    """Whether a signal ends the job after its current step; without steps it interrupts the job."""


class Meter:
    """The metrics of one job; a job can add its own to `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rows = Counter(
            "martlet_pipeline_rows", "messages or rows that were done", registry=self.registry
        )
        self._batches = Histogram(
            "martlet_pipeline_batch_seconds",
            "how long a batch took",
            registry=self.registry,
            buckets=_BUCKETS_S,
        )
        self._last = Gauge(
            "martlet_pipeline_last_batch_timestamp_seconds",
            "when the last batch was done, in seconds since 1970",
            registry=self.registry,
        )
        self._lag = Gauge(
            "martlet_pipeline_lag",
            "messages stored and not read yet, as of the last batch",
            registry=self.registry,
        )

    @classmethod
    @contextmanager
    def serving(cls, address: str) -> Iterator[Meter]:
        """Serve a new meter at ``http://address/metrics``, unless that is empty. Raises OSError."""
        meter = cls()
        if not address:
            yield meter
            return
        parsed = Address.parse(address)
        try:
            server, thread = start_http_server(parsed.port, parsed.host, meter.registry)
        except OSError as error:
            why = error.strerror or error
            raise OSError(f"--metrics-address={address} cannot be bound: {why}") from None
        try:
            yield meter
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def batch(self, rows: int, seconds: float, *, lag: int | None = None) -> None:
        """Count a completed batch."""
        self._rows.inc(rows)
        self._batches.observe(seconds)
        self._last.set_to_current_time()
        if lag is not None:
            self._lag.set(lag)


class Run:
    """One run of a job."""

    def __init__(
        self,
        spark: SparkSession,
        meter: Meter | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self.spark = spark
        self.meter = meter or Meter()
        self.stopping = stopping or threading.Event()
        """Set when the job must end after its current step."""
        # Off a terminal no table is cut to a terminal's width. Cells are texts of strangers.
        width = None if sys.stdout.isatty() else _PIPED_WIDTH
        self.console = Console(width=width, markup=False, emoji=False)

    def say(self, line: str) -> None:
        """Print a line on standard output."""
        print(line, flush=True)


def is_late_python(error: Exception) -> bool:
    """Whether Spark has given up a Python process of its own before that had done anything: it has
    10 s to start, which is too little on a busy machine.
    """
    return _LATE_PYTHON in str(error)


def retried(work: Callable[[], ResultT], run: Run) -> ResultT:
    """Do what may be done again, up to 5 times if a Python of Spark's comes too late."""
    for _ in range(MAX_TRIES - 1):
        try:
            return work()
        except Exception as error:
            if run.stopping.is_set() or not is_late_python(error):
                raise
            _log.warning(TRYING_AGAIN)
    return work()


@contextmanager
def session(
    name: str, options: JobOptions, spark: SparkSession | None = None
) -> Iterator[SparkSession]:
    """Enter the session of a job: `spark`, the active one, or a new one that stops with the job."""
    from pyspark.sql import SparkSession

    active = spark or SparkSession.getActiveSession()
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
    """Return whether the JVM of a session has ended, or is about to."""
    from py4j.protocol import Py4JError

    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except (OSError, Py4JError):
        return True


def _submitted_master() -> str:
    """Return the master that spark-submit chose; local[*] if the job was started without it."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return "local[*]"
    from pyspark import SparkConf

    return SparkConf().get("spark.master") or "local[*]"


def carry_out(job: Job[OptionsT], options: OptionsT) -> int:
    """Run a job as a command and return the exit code of the process."""
    # pyspark also logs the errors that it raises, as lines of JSON with the stack of the JVM.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    stopping = threading.Event()
    try:
        with _handling_signals(stopping, at_once=True):
            job.check(options)
        with (
            _handling_signals(stopping, at_once=not job.has_steps),
            Meter.serving(options.metrics_address) as meter,
            session(job.name, options) as spark,
        ):
            if stopping.is_set():
                return _ended(job)
            run = Run(spark, meter, stopping)
            try:
                return job.work(options, run)
            except Exception:
                # A signal often goes to the JVM too, as from timeout(1) and systemd.
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
            # A signal while py4j reads an answer of the JVM appears as an error of that read.
            return _ended(job)
        _log.debug("%s has failed", job.name, exc_info=True)
        print(f"martlet pipeline {job.name}: {cause(error)}", file=sys.stderr)
        return FAILED


def _ended(job: Job[OptionsT]) -> int:
    if job.has_steps:
        return OK
    print(f"martlet pipeline {job.name}: ended before it was done", file=sys.stderr)
    return FAILED


@contextmanager
def _handling_signals(stopping: threading.Event, *, at_once: bool) -> Iterator[None]:
    """End the job after its current step on SIGTERM or SIGINT, and at once on a second signal."""

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
def query_errors_as(prefix: str) -> Iterator[None]:
    """Turn Spark's errors about SQL into the one line of a WrongQuery."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        message = next(filter(None, str(error).splitlines()), "")
        raise WrongQuery(f"{prefix}: {message}") from None


def cause(error: Exception) -> str:
    """Return the relevant line of an error of Spark's: the last one that names an error."""
    text = str(error).replace("option timeoutMs", "--timeout")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [match for match in map(_ERROR.match, lines) if match]
    if errors:
        return f"{errors[-1][1]}: {errors[-1][2]}"
    return _STREAM.sub("", (lines or [type(error).__name__])[0])


def require_topics(options: StreamJobOptions, named: Mapping[str, str]) -> None:
    """Check that the topics of a job exist, unless it allows missing ones; `named` is the option of
    the source that names them.

    Raises:
        OptionError: a topic does not exist, or a name or pattern is invalid.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
    """
    if options.allow_missing_topics:
        return
    try:
        source = ReadOptions.parse({**options.source, **named}, "batch")
        with closing(QueryBrokers(source)) as brokers:
            brokers.require_topics(brokers.poll(patient=True))
    except NoSuchTopicError as error:
        raise OptionError(
            f"{error}. --allow-missing-topics goes on without it, and reads it once it exists"
        ) from None
    except ValueError as error:
        raise OptionError(str(error)) from None


def with_fields(messages: DataFrame, schema: str) -> DataFrame:
    """Parse messages as JSON and add the fields that a schema names; nothing for an empty schema.
    Raises ParseException.

    A field that a message lacks is null; all fields are null if the message is not JSON.  A field
    replaces a column of the source that has the same name.
    """
    from pyspark.sql import functions as F

    if not schema:
        return messages
    read = messages.withColumn(_PARSED, F.from_json(F.col("value").cast("string"), schema))
    names = {name.lower() for name in read.select(f"{_PARSED}.*").columns}
    others = [name for name in messages.columns if name.lower() not in names]
    return read.select(*others, f"{_PARSED}.*")
