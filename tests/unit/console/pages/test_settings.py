"""The page of settings: policies, queues and replays, each with its preview."""

from __future__ import annotations

from typing import Any

from tests.admin_page import Page, counts, page_of
from tests.unit.console.pages.asking import ask, button_of, form_of, notice_of, text_of

from martlet.client import Admin
from martlet.testing import Broker

WORK: dict[str, Any] = {"topic": "orders", "channel": "work"}
SETTINGS = "/settings?topic=orders&channel=work"


async def test_change_settings(page: Page, brokers: list[Broker]) -> None:
    html = await page.get("/settings?topic=orders")
    assert '<input id="retention_ms" name="retention_ms" value=""' in html
    preview = await ask(page, "configure", topic="orders", retention_ms="72h", was_retention_ms="",
                      trace="", was_trace="")  # fmt: skip
    assert button_of(preview) == "Change 1 setting at all brokers with the topic"
    assert "retention_ms: default becomes 259200000." in preview
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "retention_ms of topic orders was changed at 2 brokers"
    assert 'name="retention_ms" value="259200000"' in await page.get("/settings?topic=orders")
    changes: dict[str, Any] = {
        "max_attempts": "5",
        "retry_delays_ms": "1s,5s",
        "dead_letter_topic": "bad",
    }
    preview = await ask(page, "configure", **WORK, **changes)
    assert "retry_delays_ms: default becomes 1000,5000." in preview
    await page.act(**form_of(preview), broker=f"http://{brokers[0].http_address}")
    html = await page.get(SETTINGS)
    assert f"{brokers[1].http_address}: default" in html, "brokers that differ are shown"
    preview = await ask(page, "configure", **WORK, max_attempts="", was_max_attempts="5")
    assert "max_attempts: 5 becomes default." in preview
    await page.act(**form_of(preview))
    async with Admin(brokers[0].http_address) as admin:
        (described,) = (await admin.topics.describe("orders")).values.values()
    assert described.channel_policies == {
        "work": {"retry_delays_ms": [1000, 5000], "dead_letter_topic": "bad"}
    }


async def test_wrong_settings_are_refused(page: Page) -> None:
    for fields, why in [
        ({"max_attempts": "x"}, "max_attempts=x: it must be a whole number"),
        ({"max_attempts": "99999999"}, "max_attempts must be a whole number from -1"),
        ({"dead_letter_topic": "a b"}, "must be the name of a topic"),
        ({}, "nothing was changed"),
    ]:
        assert why in text_of(await page.act("configure", 400, **WORK, **fields))
    preview = await ask(page, "configure", **WORK, max_attempts="5", was_max_attempts="5")
    assert "There is nothing to do." in preview


async def test_add_queues(page: Page, brokers: list[Broker]) -> None:
    preview = await ask(page, "add_queues", topic="orders", queues="4")
    assert f"{brokers[0].http_address} has 1 queue now." in preview
    assert button_of(preview) == "Have 4 queues at 2 brokers"
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "Topic orders has 4 queues at 2 brokers"
    assert len((await counts(brokers[1], "orders"))["queues"]) == 4
    assert "There is nothing to do." in await ask(page, "add_queues", topic="orders", queues="2")
    assert "from 1 to 1024" in await page.act("add_queues", 400, topic="orders", queues="0")


async def test_a_replay_delivers_what_its_preview_says(page: Page, brokers: list[Broker]) -> None:
    await page.act("empty_channel", **WORK)
    preview = await ask(page, "replay_channel", **WORK, to="beginning")
    assert button_of(preview) == "Deliver 5 messages to work again"
    assert f"Queue 0 at {brokers[1].http_address}: 2 messages from offset 0 on." in preview
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "5 messages of orders are delivered to channel work"
    depths = [(await counts(broker, "orders"))["channels"][0]["depth"] for broker in brokers]
    assert depths == [3, 2]
    preview = await ask(page, "replay_channel", **WORK, to="time", time="1h")
    assert button_of(preview) == "Deliver 5 messages to work again"
    assert form_of(preview)["time"] != "1h"
    one: dict[str, Any] = {
        "broker": f"http://{brokers[0].http_address}",
        "to": "offset",
        "offset": "1",
    }
    preview = await ask(page, "replay_channel", topic="orders", channel="anew", new="yes", **one)
    assert button_of(preview) == "Deliver 2 messages to anew"
    await page.act(**form_of(preview))
    depth_of = {
        count["channel_name"]: count["depth"]
        for count in (await counts(brokers[0], "orders"))["channels"]
    }
    assert depth_of == {"work": 3, "anew": 2}
    assert "There is nothing to do." in await ask(
        page, "replay_channel", **WORK, **{**one, "offset": "9"}
    )
    assert "offsets of its own" in await ask(
        page, "replay_channel", 400, **WORK, to="offset", offset="1"
    )
    assert "say where to" in await page.act("replay_channel", 400, **WORK)


async def test_a_reader_sees_settings_and_changes_none(brokers: list[Broker]) -> None:
    async with page_of([brokers[0].http_address], read_only=True) as page:
        html = await page.get(SETTINGS)
        assert "max_attempts" in html
        assert "<input id=" not in html
        assert "Replay" not in html
        assert "may not act" in await ask(page, "configure", 403, **WORK, max_attempts="5")
