"""The blocks of code in the documents run as they stand, and print what stands behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.page import ROOT, Page, pages
from tests.docs.runner import Runner, matches

pytestmark = pytest.mark.interop

PAGES = [page for page in pages() if page.blocks and not page.needs_spark]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_blocks_run(page: Page, tmp_path: Path) -> None:
    with Runner(page, tmp_path) as runner:
        for block in page.blocks:
            runner.run(block)


def test_a_page_leaves_the_config_file_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    for each in (home, folder):
        each.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("MARTLET_CONFIG", raising=False)
    path = tmp_path / "page.md"
    path.write_text(
        "```console\n"
        "$ martlet config set address 127.0.0.1:4151\n"
        "$ true; martlet config\n...address = ...\n"
        "```\n"
    )
    page = Page(path)
    with Runner(page, folder) as runner:
        for block in page.blocks:
            block.page = ROOT / "page.md"
            runner.run(block)
    assert not list(home.iterdir())


def test_output_is_compared_without_the_parts_that_vary() -> None:
    assert matches("id 7034abaf56382623 at 127.0.0.1:4150", "id 7034abaf56382624 at 127.0.0.1:9")
    assert matches("one\n...\ntwo 3 ms", "one\n1\n2\ntwo 45 s\n")
    assert not matches("1 message", "2 messages")
    assert not matches("one\n...\ntwo", "one\nthree")
