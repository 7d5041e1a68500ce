"""What each of Spark's processes imports: the fewer, the sooner a query starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("statement", "too_heavy"),
    [
        # Spark looks sources up, and makes one.
        (
            "from martlet.spark.source import MartletDataSource; MartletDataSource({}).schema()",
            {"pandas", "asyncio", "martlet.log", "martlet.client"},
        ),
        # It plans a query, and reads in a task.
        (
            "import martlet.spark.read.batch, martlet.spark.read.stream",
            {"pandas", "asyncio", "martlet.broker"},
        ),
        # It plans a write.
        (
            "import martlet.spark.write.sink",
            {"pandas", "asyncio", "martlet.client.producer", "martlet.broker"},
        ),
        # It writes in a task, and commits.
        (
            "import martlet.spark.write.broker_transaction",
            {"pandas", "martlet.client.consumer", "martlet.client.group", "martlet.broker"},
        ),
    ],
)
def test_each_process_imports_what_it_needs(statement: str, too_heavy: set[str]) -> None:
    assert too_heavy & modules_after(statement) == set()


def test_tasks_read_without_pandas(tmp_path: Path) -> None:
    # pyarrow imports it with the first `pa.array` or `pa.scalar`.
    program = f"""
from pathlib import Path
from tests.spark.folder import Folder
from martlet.reader.decode import Columns, chunk_of
from martlet.spark.read.schema import SCHEMA, arrow_schema
import numpy as np
folder = Folder(Path({str(tmp_path)!r}) / "f")
folder.append("t", [b"a", b"bc"])
(row,) = folder.index("t")
data = folder.record(int(row["position"]), int(row["length"]))
chunk = chunk_of(data, np.zeros(1, np.int64), topic_id=folder.topics["t"], queue=0)
batch = Columns(arrow_schema(SCHEMA), topic="t", queue=0, broker="b").batch(chunk, 0, 2)
assert batch.num_rows == 2
"""
    assert "pandas" not in modules_after(program)


def modules_after(program: str) -> set[str]:
    """The modules that a program has imported."""
    program += "\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stdout.split())
