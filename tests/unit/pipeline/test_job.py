"""How a command of a job ends: what it is told, and what it answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from martlet.options.pipeline import JobOptions
from martlet.pipeline import job as module
from martlet.pipeline.job import FAILED, OK, Job, Run, carry_out


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(name: str, options: JobOptions) -> Iterator[None]:
        yield None

    monkeypatch.setattr(module, "session", session)


def _told_to_end(_options: JobOptions, run: Run) -> int:
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.stopping.wait(10)
    return OK


@pytest.mark.usefixtures("no_spark")
def test_a_job_of_steps_ends_at_its_next_one_and_well() -> None:
    job = Job("steps", "", JobOptions, _told_to_end)
    assert carry_out(job, JobOptions()) == OK


@pytest.mark.usefixtures("no_spark")
def test_a_job_without_steps_ends_at_once_and_never_as_if_it_were_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job("whole", "", JobOptions, _told_to_end, has_steps=False)
    assert carry_out(job, JobOptions()) == FAILED
    assert capsys.readouterr().err == "martlet pipeline whole: ended before it was done\n"
