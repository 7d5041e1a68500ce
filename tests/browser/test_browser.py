"""The admin page as people use it, in Debian's Chromium: live, by keys, without JavaScript."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image
from tests.admin_page import Page, consumer_of, page_of, publish
from tests.browser.filled import EVIL, filled_brokers, job_page

from martlet.testing import Broker

CHROMIUM = Path("/usr/bin/chromium")
if not CHROMIUM.exists():
    pytest.skip(f"no {CHROMIUM}: apt-get install chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.async_api", reason="pip install -e '.[dev]'")
axe = pytest.importorskip("axe_playwright_python.async_playwright")

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

IN_DOCS = {
    **dict.fromkeys(("overview", "topics", "topic", "channel", "confirm", "audit", "broker"), ""),
    **dict.fromkeys(("message", "redrive", "delayed-topic", "group", "transaction"), ""),
    **dict.fromkeys(("topic-settings", "channel-settings", "jobs"), ""),
    "messages": "&key=order-1003",
    "dead-letters": "&error=mailbox",
}
"""The pages in the documentation, with what is added to their paths."""
CHOSEN = re.compile("Choose [0-9a-f]{16}")
NAME_FOLDER = """() => {
  for (const cell of document.querySelectorAll("td")) {
    cell.textContent = cell.textContent.replace(/^.*\\/orders.html$/, "/srv/jobs/orders.html");
  }
}"""
IMAGES = Path(__file__).parents[2] / "docs" / "operating" / "images"
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 800}
PROBLEM_PAGE = re.compile(r"Failed to load resource: .* status of 40[04] ")
PATHS = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders",
    "channel": "/topics/orders/work",
    "brokers": "/nodes",
    "broker": "/nodes/{broker}",
    "lookup": "/lookup",
    "counter": "/counter",
    "audit": "/audit",
    "confirm": "/confirm?action=delete_topic&topic=orders",
    "problem": "/topics/none",
    "messages": "/messages?topic=payments",
    "message": "/messages/{message}?topic=payments&broker=http://{broker}",
    "dead": "/dead",
    "dead-letters": "/dead/letters?topic=mails&channel=sender",
    "redrive": "/confirm?action=redrive_dead_letters&topic=mails&channel=sender",
    "delayed": "/delayed",
    "delayed-topic": "/delayed?topic=mails",
    "groups": "/groups",
    "group": "/groups/payments/billing",
    "transactions": "/transactions",
    "transaction": "/transactions/payment-17",
    "topic-settings": "/settings?topic=orders",
    "channel-settings": "/settings?topic=orders&channel=work",
    "jobs": "/jobs",
    "job": "/jobs/0/orders.html",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers() -> AsyncIterator[list[Broker]]:
    async with filled_brokers() as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(
    brokers: list[Broker], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Page]:
    jobs = (job_page(tmp_path_factory.mktemp("jobs")),)
    async with page_of(brokers, job_pages=jobs) as page:
        yield page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    async with playwright.async_playwright() as started:
        child = await started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield child
        await child.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paths(page: Page, brokers: list[Broker]) -> dict[str, str]:
    """The path of each page, by its name."""
    (*_, message) = re.findall(
        r"/messages/([0-9a-f]{16})\?", await page.get("/messages?topic=payments")
    )
    return {
        name: path.format(broker=brokers[0].http_address, message=message)
        for name, path in PATHS.items()
    }


@asynccontextmanager
async def tab_of(browser: Any, page: Page, **options: Any) -> AsyncIterator[Any]:
    """A tab in which no script fails, and none is refused by the policy."""
    context = await browser.new_context(**{"viewport": WIDE, **options}, base_url=page.url)
    tab = await context.new_page()
    tab.set_default_timeout(5000)
    problems: list[str] = []
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type in ("error", "warning") and not PROBLEM_PAGE.search(message.text)
            else None
        ),
    )
    yield tab
    await context.close()
    assert problems == []


async def test_numbers_change_without_a_reload(
    browser: Any, page: Page, brokers: list[Broker]
) -> None:
    async with tab_of(browser, page) as tab:
        await tab.goto("/topics")
        await tab.evaluate("window.loaded = 'once'")
        row = tab.locator("#topic-orders td.n").first
        before = int(await row.inner_text())
        await tab.get_by_label("Choose orders").check()
        await tab.get_by_label("Name").fill("half a na")
        await publish(brokers[0], "orders", 7)
        await playwright.expect(row).to_have_text(str(before + 7))
        assert await tab.evaluate("window.loaded") == "once"
        # What a user has begun stays over a change of the region.
        assert await tab.get_by_label("Choose orders").is_checked()
        assert await tab.get_by_label("Name").input_value() == "half a na"


async def test_new_messages_are_followed(browser: Any, page: Page, brokers: list[Broker]) -> None:
    async with tab_of(browser, page) as tab:
        await tab.goto(f"/messages?topic=followed&broker=http://{brokers[0].http_address}")
        assert await tab.locator("#follow").count() == 0, "there is no such topic yet"
        await publish(brokers[0], "followed", 1)
        await tab.reload()
        rows = tab.locator("[data-follow] tbody tr")
        await playwright.expect(rows).to_have_count(1)
        await tab.get_by_label("follow").check()
        await publish(brokers[0], "followed", 2)
        await playwright.expect(rows).to_have_count(3)
        await tab.goto("/messages?topic=followed&text=a")
        assert await tab.locator("#follow").count() == 0, "a search costs too much"
    await page.act("delete_topic", topic="followed", typed="followed")


async def test_a_body_is_copied(browser: Any, page: Page, paths: dict[str, str]) -> None:
    async with tab_of(browser, page, permissions=["clipboard-read", "clipboard-write"]) as tab:
        await tab.goto(paths["message"])
        await tab.get_by_role("button", name="Copy").click()
        await tab.get_by_role("button", name="Copied").wait_for()
        copied = await tab.evaluate("navigator.clipboard.readText()")
        assert copied == await tab.locator("pre.body").first.text_content()


async def test_a_message_that_is_being_written_stays(
    browser: Any, page: Page, brokers: list[Broker]
) -> None:
    async with tab_of(browser, page) as tab:
        await tab.goto("/topics/orders")
        await tab.get_by_label("Body").fill("half a body")
        await tab.get_by_label("Broker").select_option(index=1)
        await tab.get_by_label("Tag").focus()
        count = tab.locator(".tiles b").nth(3)
        before = await count.inner_text()
        await publish(brokers[0], "orders", 1)
        await playwright.expect(count).not_to_have_text(before)
        assert await tab.get_by_label("Body").input_value() == "half a body"
        chosen = sorted(f"http://{broker.http_address}" for broker in brokers)[1]
        assert await tab.get_by_label("Broker").input_value() == chosen
        assert await tab.evaluate("document.activeElement.name") == "tag"
        await tab.locator(".plot canvas").wait_for()


COLOURS = {"in": [47, 125, 209], "out": [47, 158, 110], "waiting": [199, 125, 22]}
KEEP_LABELS = """() => {
  window.labels = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
    window.labels.push(text);
    return fill.call(this, text, ...place);
  };
}"""
PIXELS = """(colours) => {
  const canvas = document.querySelector(".plot canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return Object.fromEntries(Object.entries(colours).map(([name, colour]) => {
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      const far = colour.map((each, n) => Math.abs(each - data[at + n]));
      count += data[at + 3] > 200 && Math.max(...far) < 12;
    }
    return [name, count];
  }));
}"""
"""How much of each colour is in the plot."""
NOON = 1795694400
PLOTS: dict[str, tuple[list[Any], set[str], set[str]]] = {
    "one point": ([[NOON], [5], [3], [0]], {"12:00:00", "11:59:00"}, {"waiting", "in", "out"}),
    "two points": (
        [[NOON, NOON + 10], [0.5, 0.5], [0, 0.25], [1, 0]],
        {"12:00:00", "0.2"},
        {"waiting", "in", "out"},
    ),
    "nothing but zeros": ([[NOON, NOON + 10], [0, 0], [0, 0], [0, 0]], {"0", "1"}, {"waiting"}),
    "a point between gaps": (
        [[NOON, NOON + 10, NOON + 20], [None, 1, None], [0, 0, 0], [None, None, 2]],
        {"1", "2"},
        {"in", "out", "waiting"},
    ),
    "nothing": ([[], [], [], []], set(), set()),
}
"""Answers of /data, texts that their plots have, and series that are seen."""


@pytest.mark.parametrize("name", PLOTS)
async def test_a_plot_of_few_values_shows_them(browser: Any, page: Page, name: str) -> None:
    data, texts, seen = PLOTS[name]
    async with tab_of(browser, page) as tab:
        await tab.add_init_script(f"({KEEP_LABELS})()")
        await tab.route("**/data/**", lambda route: route.fulfill(json=data))
        await tab.goto("/topics/orders/work")
        await tab.locator(".plot canvas").wait_for()
        async with asyncio.timeout(50):
            while not await tab.evaluate("window.labels.length"):
                pass
        labels = await tab.evaluate("window.labels")
        assert texts <= set(labels)
        times = [label for label in labels if ":" in label]
        assert len(set(times)) == len(times)
        assert len(times) <= 20
        pixels = await tab.evaluate(PIXELS, COLOURS)
        assert all(pixels[colour] > 3 for colour in seen), pixels


async def test_the_keyboard_is_enough(browser: Any, page: Page) -> None:
    async with tab_of(browser, page) as tab:
        await tab.goto("/")
        await tab.keyboard.press("?")
        await playwright.expect(tab.locator("#keys")).to_be_visible()
        await tab.keyboard.press("Escape")
        await playwright.expect(tab.locator("#keys")).to_be_hidden()
        await tab.keyboard.type("gt")
        await tab.wait_for_url("**/topics")
        await tab.keyboard.press("/")
        await playwright.expect(tab.get_by_label("Filter")).to_be_focused()
        await tab.keyboard.type("ord")
        await tab.wait_for_url("**/topics?q=ord**")
        assert await tab.evaluate("document.activeElement.value") == "ord"
        await _tab_to(tab, "orders")
        await tab.keyboard.press("Enter")
        await tab.wait_for_url("**/topics/orders")
        await _tab_to(tab, "Pause")
        await tab.keyboard.press("Enter")
        await tab.get_by_text("Topic orders was paused at 2 brokers").wait_for()
        await _tab_to(tab, "Unpause")
        await tab.keyboard.press("Enter")
        await tab.get_by_text("Topic orders was unpaused at 2 brokers").wait_for()
        await _tab_to(tab, "Delete…")
        await tab.keyboard.press("Enter")
        await tab.wait_for_url("**/confirm**")
        await playwright.expect(tab.locator("input[name=typed]")).to_be_focused()
        await tab.keyboard.type("wrong")
        await tab.keyboard.press("Enter")
        await tab.get_by_text("to confirm, and not 'wrong'").wait_for()
        await _tab_to(tab, "Back")
        await tab.keyboard.press("Enter")


async def _tab_to(tab: Any, text: str) -> None:
    """Press the key until that has the focus."""
    for _ in range(60):
        await tab.keyboard.press("Tab")
        if await tab.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"the key does not reach {text!r}")


async def test_without_javascript(browser: Any, page: Page) -> None:
    async with tab_of(browser, page, java_script_enabled=False) as tab:
        await tab.goto("/topics")
        await tab.get_by_label("Filter").fill("ord")
        await tab.get_by_role("button", name="Show").click()
        await tab.get_by_text("1 of 4 topics").wait_for()
        await tab.get_by_role("link", name="Waiting").click()
        await tab.get_by_role("link", name="orders").click()
        await tab.get_by_role("link", name="work").click()
        await tab.get_by_role("button", name="Pause").first.click()
        await tab.get_by_text("Channel work of orders was paused at 2 brokers").wait_for()
        assert await tab.locator(".tag").count() == 3
        await tab.get_by_role("button", name="Unpause").first.click()
        await tab.get_by_text("Channel work of orders was unpaused at 2 brokers").wait_for()
        await tab.get_by_role("button", name="Empty…").nth(1).click()
        await tab.get_by_role("button", name="Empty").click()
        await tab.get_by_text("Channel work of orders was emptied at").wait_for()


async def test_what_strangers_write_runs_nothing(
    browser: Any, page: Page, brokers: list[Broker]
) -> None:
    requests: list[str] = []
    text = EVIL + "\0\x1b[31m'"
    async with (
        consumer_of(brokers[0], client_id=text, hostname=text, user_agent=text),
        tab_of(browser, page) as tab,
    ):
        tab.on("request", lambda request: requests.append(request.url))
        await tab.goto("/topics/orders/work")
        cell = tab.locator("tbody th", has_text="<script>")
        await cell.wait_for()
        count = tab.locator(".tiles b").nth(2)
        before = await count.inner_text()
        await publish(brokers[0], "orders", 1)  # and after the region has changed
        await playwright.expect(count).not_to_have_text(before)
        shown = await cell.inner_text()
        assert "{{ 7*7 }}" in shown
        assert "\\u202eabc" in shown
        await tab.goto("/topics?q=" + "%3Cscript%3Epwned%3D1%3C%2Fscript%3E&notice=%3Cb%3Eevil")
        assert await tab.locator("h1").all_inner_texts() == ["Topics"]
        assert await tab.evaluate("typeof pwned") == "undefined"
    assert not [url for url in requests if "evil" in url.partition("?")[0] or url.endswith("/x")]


async def test_no_page_takes_a_text_for_html(
    browser: Any, page: Page, paths: dict[str, str]
) -> None:
    requests: list[str] = []
    shown = ""
    async with tab_of(browser, page) as tab:
        tab.on("request", lambda request: requests.append(request.url))
        for name, path in paths.items():
            await tab.goto(path)
            assert await tab.locator("h1").count() == 1, name
            assert await tab.evaluate("typeof pwned") == "undefined", name
            shown += await tab.locator("main").inner_text()
    assert shown.count("<script>pwned=1</script>") >= 6
    assert "\u202eabc" not in shown
    assert "\\u202eabc" in shown
    assert not [url for url in requests if "evil" in url.partition("?")[0] or url.endswith("/x")]


async def test_the_keyboard_redrives_a_letter(browser: Any, page: Page) -> None:
    async with tab_of(browser, page) as tab:
        await tab.goto("/")
        await tab.keyboard.type("gd")
        await tab.wait_for_url("**/dead")
        await _tab_to(tab, "mails / sender")
        await tab.keyboard.press("Enter")
        await tab.wait_for_url("**/dead/letters**")
        while await tab.evaluate("document.activeElement.type") != "checkbox":
            await tab.keyboard.press("Tab")
        await tab.keyboard.press("Space")
        await _tab_to(tab, "Redrive the chosen…")
        await tab.keyboard.press("Enter")
        await tab.wait_for_url("**/confirm**")
        await _tab_to(tab, "Redrive 1 dead letter on 1 broker")
        await tab.keyboard.press("Enter")
        await tab.get_by_text("1 dead letter of channel sender of mails was redriven").wait_for()


@pytest.mark.parametrize(
    ("scheme", "size"),
    [("light", WIDE), ("dark", NARROW)],
    ids=["wide and light", "narrow and dark"],
)
async def test_no_serious_fault_of_access(
    browser: Any,
    page: Page,
    brokers: list[Broker],
    paths: dict[str, str],
    scheme: str,
    size: dict[str, int],
) -> None:
    faults = []
    checker = axe.Axe()
    async with (
        consumer_of(brokers[0], client_id="clerk-7", hostname="host", user_agent="agent/1"),
        tab_of(browser, page, color_scheme=scheme, viewport=size) as tab,
    ):
        await page.act("pause_topic", topic="orders")
        for name, path in paths.items():
            await tab.goto(path)
            results = await checker.run(tab)
            faults += [
                (name, violation["id"], violation["nodes"][0]["html"])
                for violation in results.response["violations"]
                if violation["impact"] in ("serious", "critical")
            ]
            wide = await tab.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, f"{name} must be scrolled sideways"
        await page.act("unpause_topic", topic="orders")
    assert faults == []


@pytest.mark.skipif(
    os.environ.get("MARTLET_SCREENSHOTS") != "1", reason="set MARTLET_SCREENSHOTS=1 to write them"
)
async def test_screenshots(
    browser: Any, page: Page, brokers: list[Broker], paths: dict[str, str]
) -> None:
    IMAGES.mkdir(exist_ok=True)
    async with (
        consumer_of(brokers[0], client_id="clerk-7", hostname="desk", user_agent="martlet/0.2"),
        # A picture ends where the page does.
        tab_of(browser, page, viewport={**WIDE, "height": 200}) as tab,
    ):
        await publish(brokers[1], "refunds", 3)
        await page.act("pause_channel", topic="orders", channel="work")
        for name, more in IN_DOCS.items():
            await tab.goto(paths[name] + more)
            if name in ("topic", "channel"):
                await tab.locator(".plot canvas").wait_for()
            for box in await tab.get_by_label(CHOSEN).all() if name == "dead-letters" else []:
                await box.check()
            if name == "jobs":
                await tab.evaluate(NAME_FOLDER)
            path = IMAGES / f"admin-{name}.png"
            await tab.screenshot(path=path, full_page=True)
            Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
        await page.act("unpause_channel", topic="orders", channel="work")
