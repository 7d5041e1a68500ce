"""`martlet pipeline`: what it knows, and what it says of what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from martlet.cli.pipeline import JOBS, main


def test_help_names_every_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name} " in output for name in JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_each_job_lists_its_options(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([job, "--help"])
    assert ended.value.code in (None, 0)
    output = capsys.readouterr().out
    assert "--addresses" in output
    assert "--master" in output


def test_the_file_for_spark_submit_is_there_and_hides_no_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--submit-file"]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert [path.name for path in file.parent.glob("*.py")] == ["__init__.py", file.name]
    done = subprocess.run(
        [sys.executable, file, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("usage: martlet pipeline JOB")


@pytest.mark.parametrize("job", sorted(JOBS))
def test_without_the_extra_a_job_says_how_to_install_it(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    monkeypatch.setattr("martlet.cli.pipeline.importlib.import_module", missing)
    assert main([job, "--topic=t"]) == 2
    assert f"martlet pipeline {job} wants pyspark" in capsys.readouterr().err
