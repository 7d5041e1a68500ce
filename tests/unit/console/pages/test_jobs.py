"""The pages of jobs, as the admin page lists and answers them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.admin_page import page_of

from martlet.console.pages import jobs as job_pages
from martlet.pipeline.html_page import Page as HtmlPage
from martlet.pipeline.html_page import Plot, Text

NOWHERE = ("127.0.0.1:1",)


def report(path: Path, title: str = "Orders <b>") -> Path:
    plot = Plot("p", [1.0, 2.0, 3.0], {"a": [1.0, 2.0, 3.0]})
    HtmlPage(title, "", [Text("it is good", "good"), plot]).write(path)
    return path


async def test_pages_are_listed_and_answered_under_a_policy_of_their_own(tmp_path: Path) -> None:
    lone = report(tmp_path / "orders.html")
    report(tmp_path / "audits" / "audit.html", "Audit")
    os.utime(lone, (1, 1))
    (tmp_path / "audits" / "audit.json").write_text("{}")
    places = (str(lone), str(tmp_path / "audits"))
    async with page_of(NOWHERE, job_pages=places, base_path="/m") as page:
        text = await page.get("/jobs")
        assert text.index('href="/m/jobs/1/audit.html"') < text.index(
            'href="/m/jobs/0/orders.html"'
        )
        assert "Orders &lt;b&gt;" in text
        assert "json" not in text
        async with page.session.get(page.url + "/jobs/0/orders.html") as answer:
            assert answer.content_type == "text/html"
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'sha256-")
            assert "unsafe" not in policy
            assert '<a class="brand" href="/m/jobs">' in await answer.text()


async def test_no_other_file_is_answered(tmp_path: Path) -> None:
    report(tmp_path / "out" / "a.html")
    (tmp_path / "secret.html").write_text("secret")
    (tmp_path / "out" / "b.txt").write_text("secret")
    async with page_of(NOWHERE, job_pages=(str(tmp_path / "out"),)) as page:
        for path in ("0/b.txt", "0/..%2Fsecret.html", "1/a.html", "0/c.html", "9999999/a.html"):
            assert "no job has written" in await page.get(f"/jobs/{path}", 404)


async def test_what_cannot_be_listed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_pages, "MAX_FILES", 2)
    monkeypatch.setattr(job_pages, "MAX_FILE_BYTES", 9_000)
    for number in range(3):
        report(tmp_path / f"{number}.html")
    (tmp_path / "3.html").write_bytes(b"x" * 10_000)
    places = (str(tmp_path / "missing.html"), str(tmp_path))
    async with page_of(NOWHERE, job_pages=places) as page:
        text = await page.get("/jobs")
        assert "missing.html: No such file or directory" in text
        assert "has 4 files: the newest 2" in text
        assert "3.html has 10,000 bytes, and 9,000 are shown" in await page.get(
            "/jobs/1/3.html", 404
        )


async def test_without_a_place_the_page_says_how_to_name_one() -> None:
    async with page_of(NOWHERE) as page:
        assert "--job-page=FILE" in await page.get("/jobs")
