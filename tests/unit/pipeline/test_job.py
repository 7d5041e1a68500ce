"""How a command of a job ends: its signals, and its exit code."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from rich.table import Table

from martlet.pipeline import job as module
from martlet.pipeline.job import FAILED, OK, WRONG, Job, Run, WrongQuery, carry_out
from martlet.pipeline.options import JobOptions


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(name: str, options: JobOptions) -> Iterator[None]:
        yield None

    monkeypatch.setattr(module, "session", session)


def _ends_early(_options: JobOptions, run: Run) -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.stopping.wait(10)
    return OK


@pytest.mark.usefixtures("no_spark")
def test_a_job_of_steps_ends_at_its_next_one_and_well() -> None:
    job = Job("steps", "", JobOptions, _ends_early)
    assert carry_out(job, JobOptions()) == OK


@pytest.mark.usefixtures("no_spark")
def test_a_job_without_steps_ends_at_once_and_never_as_if_it_were_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job("whole", "", JobOptions, _ends_early, has_steps=False)
    assert carry_out(job, JobOptions()) == FAILED
    assert capsys.readouterr().err == "martlet pipeline whole: ended before it was done\n"


@pytest.mark.usefixtures("no_spark")
def test_a_stop_that_became_an_error_in_spark_is_reported_as_a_stop(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(_options: JobOptions, _run: Run) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyError("p") from None
        return OK

    assert carry_out(Job("whole", "", JobOptions, work, has_steps=False), JobOptions()) == FAILED
    assert capsys.readouterr().err == "martlet pipeline whole: ended before it was done\n"


def test_a_job_stopped_while_spark_starts_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def session(name: str, options: JobOptions) -> Iterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        yield None

    monkeypatch.setattr(module, "session", session)
    done: list[JobOptions] = []

    def work(options: JobOptions, _run: Run) -> int:
        done.append(options)
        return FAILED

    assert carry_out(Job("steps", "", JobOptions, work), JobOptions()) == OK
    assert done == []


@pytest.mark.usefixtures("no_spark")
def test_sql_that_is_wrong_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    def work(_options: JobOptions, _run: Run) -> int:
        raise WrongQuery("--where=nosuch: there is no such column")

    assert carry_out(Job("asking", "", JobOptions, work), JobOptions()) == WRONG
    assert "--where=nosuch" in capsys.readouterr().err


@pytest.mark.usefixtures("no_spark")
def test_a_metrics_address_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        job = Job("measured", "", JobOptions, lambda _options, _run: OK)
        assert carry_out(job, JobOptions(metrics_address=address)) == FAILED
    assert f"--metrics-address={address} cannot be bound: " in capsys.readouterr().err


def test_a_table_shows_what_strangers_wrote_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    values = ("[errno 5] gone", "[/b]", ":warning:")
    table = Table(box=None)
    for value in values:
        table.add_column(value)
    table.add_row(*values)
    Run(None).console.print(table)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [value for line in lines for value in values if value in line] == [*values, *values]
