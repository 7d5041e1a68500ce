"""The page of a job, in Chromium, as ``martlet admin --job-page`` shows it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.admin_page import page_of
from tests.spark.publish import publish

from martlet.pipeline.report import LiveReportOptions, parse, report
from martlet.testing import BrokerProcess

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no {CHROMIUM}: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.async_api", reason="pip install -e '.[dev]'")

# A machine that is busy elsewhere starts a Java virtual machine in a minute.
pytestmark = [pytest.mark.spark, pytest.mark.browser, pytest.mark.timeout(300)]
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOSTILE = "<img src=x onerror=pwned=1>"
DESCRIPTION = """
title = "Orders by country"
topics = ["orders"]
schema = "country STRING, at TIMESTAMP"
time = "at"

[figures.sales]
window = "1 minute"
by = ["country"]
count = true
"""


def test_the_page_of_a_report_is_shown_by_the_admin_page(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "orders.html"
    with BrokerProcess() as broker:
        bodies = [
            f'{{"country": "{country}", "at": "{START + timedelta(minutes=minute):%FT%TZ}"}}'
            for minute in range(5)
            for country in ("NL", "NL", "BE", HOSTILE)
        ]
        publish(broker.http_address, "orders", [text.encode() for text in bodies])
        options = LiveReportOptions(
            addresses=(broker.http_address,), once=True, console=False, page=str(file)
        )
        report(options, parse(DESCRIPTION), spark=spark)
        shown = asyncio.run(_read_pages(broker.http_address, file))
    assert shown["link"] == "Orders by country"
    assert shown["title"] == "Orders by country"
    assert shown["problems"] == []
    assert not shown["pwned"]
    assert HOSTILE in shown["text"]
    assert shown["drawings"] >= 1
    assert not shown["is_too_wide"]


async def _read_pages(broker: str, file: Path) -> dict[str, Any]:
    """Go to the page from the list of jobs, on a narrow screen."""
    problems: list[str] = []
    async with (
        page_of([broker], job_pages=(str(file),)) as page,
        playwright.async_playwright() as started,
    ):
        browser = await started.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox"]
        )
        tab = await browser.new_page(viewport={"width": 390, "height": 800})
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on(
            "console",
            lambda message: (
                problems.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        await tab.goto(f"{page.url}/jobs")
        link = tab.locator("tbody th a")
        text = await link.inner_text()
        await link.click()
        await tab.locator("h1").wait_for()
        shown = {
            "link": text,
            "title": await tab.locator("h1").first.inner_text(),
            "text": await tab.locator("body").inner_text(),
            "drawings": await tab.locator("svg").count(),
            "pwned": await tab.evaluate("typeof pwned !== 'undefined'"),
            "is_too_wide": await tab.evaluate("document.documentElement.scrollWidth > innerWidth"),
            "problems": problems,
        }
        await browser.close()
    return shown
