"""The files of the audit: their size, the older files, and what of them the page shows."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tests.admin_page import Page, page_of

MINUTE = 1_800_000_000 // 60 * 60
"""The first second of a minute, since 1970."""


async def act(page: Page, *numbers: int) -> None:
    """Have an entry for each number, of an action that fails: its topic has it in its name."""
    for number in numbers:
        await page.act("create_topic", 502, topic=f"topic-{number}")


async def refuse(page: Page, *hosts: str) -> None:
    for number, host in enumerate(hosts):
        assert (await page.ask("GET", f"/topics/{number}", Host=host)).status == 403


def entries_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers_in(path: Path) -> list[int]:
    return [int(entry["topic"].removeprefix("topic-")) for entry in entries_in(path)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def page(file: Path, **options: Any) -> Any:
    return page_of(["127.0.0.1:1"], audit_file=str(file), **options)


async def shown(page: Page) -> list[int]:
    return [int(number) for number in re.findall(r"<td>topic-(\d+)", await page.get("/audit"))]


async def test_the_file_is_rotated_by_size_and_old_ones_are_deleted(
    tmp_path: Path, file: Path
) -> None:
    async with page(file) as one:
        await act(one, 0)
    size = file.stat().st_size
    async with page(file, max_audit_bytes=2 * size + 50, audit_backups=2) as one:
        await act(one, *range(1, 9))
        assert await shown(one) == [*range(8, -1, -1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.refused")
    ]
    kept = [numbers_in(tmp_path / f"audit.jsonl{end}") for end in (".2", ".1", "")]
    assert kept == [[4, 5], [6, 7], [8]]
    async with page(file, audit_backups=2) as one:
        assert await shown(one) == [8, 7, 6, 5, 4]


async def test_the_page_shows_the_newest_over_all_files(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page(file, max_audit_bytes=1, audit_backups=9) as one:
        await act(one, *range(6))
    monkeypatch.setattr("martlet.console.audit.MAX_SHOWN", 4)
    async with page(file) as one:
        assert await shown(one) == [5, 4, 3, 2]


async def test_without_a_limit_there_is_one_file(tmp_path: Path, file: Path) -> None:
    async with page(file, max_audit_bytes=0) as one:
        await act(one, *range(5))
    assert not [*tmp_path.glob("audit.jsonl.[0-9]")]
    assert numbers_in(file) == [*range(5)]


async def test_an_entry_is_kept_where_the_file_cannot_be_rotated(
    tmp_path: Path, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "audit.jsonl.1" / "taken").mkdir(parents=True)
    async with page(file, max_audit_bytes=1, audit_backups=1) as one:
        await act(one, 1, 2)
    assert numbers_in(file) == [1, 2]
    assert "AUDIT: the file could not be rotated" in caplog.text


async def test_a_line_that_was_cut_spoils_no_other(file: Path) -> None:
    file.write_text('{"action": "half')
    async with page(file) as one:
        await act(one, 1)
    async with page(file) as one:
        assert await shown(one) == [1]


async def test_the_files_are_for_their_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with page(tmp_path / "audit", max_audit_bytes=300) as made:
            await act(made, *range(3))
            await refuse(made, "evil.example")
    finally:
        os.umask(before)
    paths = list(tmp_path.iterdir())
    assert len(paths) > 1
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}


async def test_refusals_are_one_line_for_each_address_reason_and_minute(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client makes up, such as the host, is no other reason."""
    now_s = MINUTE
    monkeypatch.setattr("martlet.console.audit.time.time", lambda: now_s)
    async with page(file) as one:
        await refuse(one, *(f"evil-{number}.example" for number in range(20)))
        now_s = MINUTE + 59
        await refuse(one, "evil.example")
        form = {"action": "create_topic", "topic": "t"}
        for site in ("cross-site", "same-site"):
            assert (await one.ask("POST", "/act", form, **{"Sec-Fetch-Site": site})).status == 403
        now_s = MINUTE + 60
        await refuse(one, "evil.example")
        text = await one.get("/audit")
    assert "and 20 more in that minute" in text
    assert not file.read_text()
    kept = entries_in(tmp_path / "audit.jsonl.refused")
    assert [(entry["reason"], entry["timestamp"] - MINUTE) for entry in kept] == [
        ("host", 0),
        ("other site", 59),
        ("host", 60),
    ]
    assert "evil-0.example" in kept[0]["detail"]
    assert caplog.text.count("AUDIT: {") == 3


async def test_a_flood_of_refusals_leaves_what_was_done(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any number of minutes, in memory, in the file and after the next start."""
    monkeypatch.setattr("martlet.console.audit.MAX_SHOWN", 3)
    now_s = MINUTE
    monkeypatch.setattr("martlet.console.audit.time.time", lambda: now_s)
    async with page(file, max_audit_bytes=1000, audit_backups=1) as one:
        await act(one, 1)
        for _ in range(10):
            now_s += 60
            await refuse(one, "evil.example")
        assert await shown(one) == [1]
        refusals = [entry for entry in one.server._audit.entries if entry.result == "refused"]
        assert len(refusals) == 3
    assert numbers_in(file) == [1]
    assert not (tmp_path / "audit.jsonl.1").exists()
    async with page(file, max_audit_bytes=1000, audit_backups=1) as one:
        assert await shown(one) == [1]
        # One that was in the file before the start stands for more of its minute.
        await refuse(one, "evil.example")
    assert len(entries_in(tmp_path / "audit.jsonl.refused")) <= 3


async def test_refusals_in_the_file_of_an_earlier_version_take_no_place_of_actions(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with page(file) as one:
        await act(one, 1)
    (entry,) = entries_in(file)
    del entry["reason"], entry["count"]
    old = {**entry, "topic": "", "result": "refused"}
    file.write_text("".join(json.dumps(row) + "\n" for row in [entry, *[old] * 9]))
    monkeypatch.setattr("martlet.console.audit.MAX_SHOWN", 3)
    async with page(file) as one:
        assert await shown(one) == [1]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("audit.jsonl", r"audit\.jsonl\.refused cannot be written: Is a directory"),
        ("missing/audit", r"--audit-file=/.*/missing/audit cannot be written"),
    ],
)
async def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "audit.jsonl.refused").mkdir()
    with pytest.raises(OSError, match=why):
        async with page(tmp_path / name):
            raise AssertionError


async def test_viewers_of_numbers_see_no_names_in_the_audit(tmp_path: Path) -> None:
    """Nor are they told by a filter, an order or a download, which adds nothing to the audit."""
    users: dict[str, Any] = {"admin_users": ("zoe",), "reader_users": ("bob",)}
    async with page(tmp_path / "audit.jsonl", **users) as one:
        headers = one.session.headers
        headers["X-Forwarded-User"] = "zoe"
        await act(one, 1)
        headers["X-Forwarded-User"] = "carl-the-viewer"
        await refuse(one, "evil-host.example")
        before = one.server._audit.entries
        for path in ("/audit", "/audit?sort=user", "/audit?sort=-address", "/audit/export"):
            text = await one.get(path)
            assert "create_topic" in text, path
            for hidden in ("zoe", "127.0.0.1", "evil-host", "connection refused"):
                # The page names its own user, and brokers that do not answer, above the table.
                table = text.partition("<table>")[2] or text
                assert hidden not in table, (path, hidden)
        for name in ("zoe", "127.0.0.1"):
            assert "create_topic" not in (await one.get(f"/audit?q={name}")).partition("<table>")[2]
            assert not await one.get(f"/audit/export?q={name}")
        assert one.server._audit.entries == before
        headers["X-Forwarded-User"] = "bob"
        text = await one.get("/audit?q=zoe")
        for seen in ("zoe", "127.0.0.1", "create_topic"):
            assert seen in text.partition("<table>")[2]
        assert json.loads((await one.get("/audit/export?q=zoe")).splitlines()[0])["user"] == "zoe"
        assert "export_audit" in [entry.action for entry in one.server._audit.entries]
