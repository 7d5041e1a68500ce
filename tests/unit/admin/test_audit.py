"""The file of the audit: its size, the older files, and what of them the page shows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.admin_page import Page, page_of


async def refuse(page: Page, *numbers: int) -> None:
    """Have an entry for each number, in the path of what was refused."""
    for number in numbers:
        path = f"{page.url}/topics/{number}"
        async with page.session.get(path, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 403


def numbers_in(path: Path) -> list[int]:
    actions = [json.loads(line)["action"] for line in path.read_text().splitlines()]
    return [int(action.removeprefix("GET /topics/")) for action in actions]


def page(file: Path, **options: Any) -> Any:
    return page_of(["127.0.0.1:1"], audit_file=str(file), **options)


async def shown(page: Page) -> list[int]:
    return [int(number) for number in re.findall(r"GET /topics/(\d+)", await page.get("/audit"))]


async def test_the_file_is_rotated_by_size_and_old_ones_are_deleted(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with page(file) as one:
        await refuse(one, 0)
    size = file.stat().st_size
    async with page(file, max_audit_bytes=2 * size + 50, audit_backups=2) as one:
        await refuse(one, *range(1, 9))
        assert await shown(one) == [*range(8, -1, -1)]
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        *("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2")
    ]
    kept = [numbers_in(tmp_path / f"audit.jsonl{end}") for end in (".2", ".1", "")]
    assert kept == [[4, 5], [6, 7], [8]]
    async with page(file, audit_backups=2) as one:
        assert await shown(one) == [8, 7, 6, 5, 4]


async def test_the_page_shows_the_newest_over_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.jsonl"
    async with page(file, max_audit_bytes=1, audit_backups=9) as one:
        await refuse(one, *range(6))
    monkeypatch.setattr("martlet.admin.audit.MAX_SHOWN", 4)
    async with page(file) as one:
        assert await shown(one) == [5, 4, 3, 2]


async def test_without_a_limit_there_is_one_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with page(file, max_audit_bytes=0) as one:
        await refuse(one, *range(5))
    assert [each.name for each in tmp_path.iterdir()] == ["audit.jsonl"]
    assert numbers_in(file) == [*range(5)]


async def test_an_entry_is_kept_where_the_file_cannot_be_rotated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "audit.jsonl"
    (tmp_path / "audit.jsonl.1" / "taken").mkdir(parents=True)
    async with page(file, max_audit_bytes=1, audit_backups=1) as one:
        await refuse(one, 1, 2)
    assert numbers_in(file) == [1, 2]
    assert "AUDIT: the file could not be rotated" in caplog.text


async def test_a_line_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"action": "half')
    async with page(file) as one:
        await refuse(one, 1)
    async with page(file) as one:
        assert await shown(one) == [1]


async def test_the_files_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with page(tmp_path / "audit", max_audit_bytes=300) as made:
            await refuse(made, *range(3))
    finally:
        os.umask(before)
    found = list(tmp_path.iterdir())
    assert len(found) > 1
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
