"""The Python of the README runs as it stands, and prints what the README says."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(
    r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```\n)?", TEXT, re.MULTILINE | re.DOTALL
)
"""Each with what is shown behind it, or nothing."""
SPARK = "martlet.spark"
"""What has this in it is run with Spark's tests."""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


def run(code: str, broker: BrokerProcess) -> dict[str, Any]:
    """Run a block as the main program; the names that it has made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = code.replace("127.0.0.1:4150", broker.tcp_address)
    code = code.replace("127.0.0.1:4151", broker.http_address)
    exec(compile(code, str(README), "exec"), names)
    return names


def without_ids(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{16}\b", "ID", text)


def test_they_are_found() -> None:
    assert len(BLOCKS) == TEXT.count("```python") > 4
    assert sum(SPARK in code for code, _ in BLOCKS) == 1
    assert sum(bool(shown) for _, shown in BLOCKS) == 7


@pytest.mark.parametrize(
    ("code", "shown"),
    [block for block in BLOCKS if SPARK not in block[0]],
    ids=range(len(BLOCKS) - 1),
)
def test_a_block_runs(
    broker: BrokerProcess,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    code: str,
    shown: str,
) -> None:
    names = run(code, broker)
    fixtures = {"tmp_path": tmp_path, "martlet_broker": broker}
    for name, test in names.items():
        if name.startswith("test_"):
            asyncio.run(test(*(fixtures[each] for each in inspect.signature(test).parameters)))
    assert without_ids(capsys.readouterr().out).strip() == without_ids(shown).strip()
