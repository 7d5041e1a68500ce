"""The pages of groups: what they show, and that a preview is what a reset then does."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.admin_page import Page
from tests.unit.console.pages.asking import ask, button_of, form_of, notice_of, text_of

from martlet.client import Admin, Producer
from martlet.testing import Broker

GROUP: dict[str, Any] = {"topic": "orders", "group": "billing"}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as one, Admin(one.http_address) as admin:
        await admin.topics.create("orders", 2)
        await admin.channels.create("orders", "billing")
        await admin.channels.configure("orders", "billing", kind="offsets")
        async with Producer(one.tcp_address) as producer:
            for number in range(6):
                await producer.publish("orders", b"%d" % number)
        yield one


async def join(broker: Broker) -> None:
    """Have a member in the group, which has all queues."""
    url = f"http://{broker.http_address}/call/group.join"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={**GROUP, "client_id": "clerk"}) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def test_groups_and_their_lag_by_queue(page: Page, broker: Broker) -> None:
    assert "orders / billing 6 0 2 1" in text_of(await page.get("/groups"))
    assert "No groups with “x”." in text_of(await page.get("/groups?q=x"))
    text = text_of(await page.get("/groups/orders/billing"))
    assert "6 lag" in text
    assert "No members." in text
    assert "0 none 0 0 3 3 0 0 1 none 0 0 3 3 0 0" in text
    await join(broker)
    text = text_of(await page.get("/groups/orders/billing"))
    assert re.search(r"clerk(?: \S+)? 127.0.0.1:\d+ 0, 1 \S+ s ago 2 min", text)
    assert re.search(r" 1 \S+ 0 0 3 3 0 0", text)
    assert "Not found" in await page.get("/groups/orders/none", 404)


async def test_a_reset_does_what_its_preview_says(page: Page, broker: Broker) -> None:
    preview = await ask(page, "reset_group", **GROUP, to="last")
    assert button_of(preview) == "Reset to the end: lag 0"
    assert (
        f"Queue 1 at {broker.http_address}: from offset 0 to 3, which leaves a lag of 0." in preview
    )
    assert "6 offsets are passed" in preview
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "Group billing of orders was reset; its lag is 0"
    preview = await ask(page, "reset_group", **GROUP, to="offset", offset="1", queue="1")
    assert button_of(preview) == "Reset to offset 1: lag 2"
    await page.act(**form_of(preview))
    async with Admin(broker.http_address) as admin:
        assert (await admin.groups.lag("orders", "billing")).total(int) == 2
    preview = await ask(page, "reset_group", **GROUP, to="time", time="1h")
    assert button_of(preview) == "Reset to a time given: lag 6"
    assert form_of(preview)["time"] != "1h", "another moment when the button is pressed"


async def test_members_keep_a_group_from_being_reset(page: Page, broker: Broker) -> None:
    await join(broker)
    preview = await ask(page, "reset_group", **GROUP, to="first")
    assert "There is nothing to do." not in preview
    assert "It has 1 member: stop it first" in preview
    assert "<button class" not in preview
    assert "has 1 member" in await page.act("reset_group", 502, **GROUP, to="first")
    forced = await ask(page, "reset_group", **GROUP, to="first", force="yes")
    assert button_of(forced) == "Reset to the first stored message: lag 6"
    await page.act(**form_of(forced))
    assert "No members." in await page.get("/groups/orders/billing")
