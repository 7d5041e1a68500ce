"""Rates that the page shows, in Chromium, beside what a publisher says of itself."""

from __future__ import annotations

import asyncio
import statistics
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from tests.admin_page import broker_of, page_of

from martlet.client import Producer
from martlet.testing import Broker

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no {CHROMIUM}: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.async_api", reason="pip install -e '.[dev]'")

pytestmark = pytest.mark.browser

MESSAGES_PER_S, TOGETHER = 1000, 10
SAMPLE = """() => {
  window.samples = [];
  const take = () => {
    const cells = document.querySelectorAll("#topic-orders td.n");
    const [rate, count] = [cells[1], cells[6]].map(
      (each) => Number(each.innerText.replaceAll(",", "")));
    if (window.samples.at(-1)?.[1] !== count) window.samples.push([rate, count]);
    if (window.samples.length === 6) window.enough(window.samples);
  };
  new MutationObserver(take).observe(
    document.querySelector("main"), { subtree: true, childList: true, characterData: true });
}"""
"""Collect the rate and the number of messages of each look that the page shows."""
WAIT = "() => new Promise((resolve) => { window.enough = resolve; })"
"""Not by a condition in a string: the page's policy forbids its evaluation."""


@asynccontextmanager
async def steady_publisher(broker: Broker) -> AsyncIterator[list[tuple[int, float]]]:
    """Publish, and yield the count with its time after each answer."""
    answered: list[tuple[int, float]] = []

    async def publish() -> None:
        async with Producer(broker.tcp_address) as producer:
            began_s, count = time.monotonic(), 0
            while True:
                await producer.publish_many("orders", [b"a body"] * TOGETHER)
                count += TOGETHER
                answered.append((count, time.monotonic()))
                due_s = began_s + count / MESSAGES_PER_S
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    task = asyncio.create_task(publish())
    try:
        yield answered
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_rate_is_right_within_seconds() -> None:
    """A rate is what a publisher did between the looks that the page took, also where the machine
    is so busy that the publisher falls behind its pace.
    """
    async with (
        broker_of(0) as broker,
        page_of([broker], poll_interval_ns=1_000_000_000) as page,
        playwright.async_playwright() as started,
    ):
        browser = await started.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox"]
        )
        tab = await browser.new_page()
        await tab.goto(f"{page.url}/topics")
        await tab.evaluate(SAMPLE)
        async with steady_publisher(broker) as answered:
            async with asyncio.timeout(60):
                samples = await tab.evaluate(WAIT)
        await browser.close()

    def when(count: int) -> float:
        return answered[bisect_left(answered, (count, 0.0))][1]

    # The first look has a part before the load began.
    counts = [count for _, count in samples[1:6]]
    true = [
        (later - earlier) / (when(later) - when(earlier)) for earlier, later in pairwise(counts)
    ]
    ratios = [rate / at for (rate, _), at in zip(samples[2:6], true, strict=True)]
    assert 0.9 < statistics.median(ratios) < 1.1, list(zip(samples, true, strict=False))
