"""The checkpoint of a replay: what is damaged in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from martlet.pipeline.job import JobFailed
from martlet.pipeline.replay.progress import Ledger


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "cannot be read"), ("[]", "is not a file of a replay"), ("{}", "is not a file of")],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    ledger = Ledger(str(tmp_path))
    for name in ("plan.json", "step.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(JobFailed, match=f"plan.json {why}"):
        ledger.plan({}, lambda: ({}, {}))
    with pytest.raises(JobFailed, match=f"step.json {why}"):
        ledger.progress()
