"""The page of settings: policies, queues and replays, each with its preview."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.admin_page import Page, counts, two_brokers
from tests.unit.console.pages.asking import ask, button_of, form_of, notice_of

from martlet.client import Admin
from martlet.testing import Broker

WORK: dict[str, Any] = {"topic": "orders", "channel": "work"}
SETTINGS = "/settings?topic=orders&channel=work"


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    async with two_brokers() as both:
        yield both


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
    preview = await ask(page, "configure", **WORK, max_attempts="5", was_max_attempts="5")
    assert "There is nothing to do." in preview
    assert "nothing was changed" in await page.act("configure", 400, **WORK)


async def test_add_queues(page: Page, brokers: list[Broker]) -> None:
    preview = await ask(page, "add_queues", topic="orders", queues="4")
    assert f"{brokers[0].http_address} has 1 queue now." in preview
    assert button_of(preview) == "Have 4 queues at 2 brokers"
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "Topic orders has 4 queues at 2 brokers"
    assert len((await counts(brokers[1], "orders"))["queues"]) == 4
    assert "There is nothing to do." in await ask(page, "add_queues", topic="orders", queues="2")


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
    channels = (await counts(brokers[0], "orders"))["channels"]
    depth_of = {channel["channel_name"]: channel["depth"] for channel in channels}
    assert depth_of == {"work": 3, "anew": 2}
    assert "There is nothing to do." in await ask(
        page, "replay_channel", **WORK, **{**one, "offset": "9"}
    )
    assert "offsets of its own" in await ask(
        page, "replay_channel", 400, **WORK, to="offset", offset="1"
    )
