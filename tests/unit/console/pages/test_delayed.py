"""The pages of delayed messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.admin_page import Page
from tests.unit.console.pages.asking import ask, button_of, form_of, next_of, notice_of, text_of
from tests.unit.console.pages.test_messages import ids_of

from martlet.client import Admin, Producer
from martlet.testing import Broker

TOPIC: dict[str, Any] = {"topic": "later"}


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as one, Producer(one.tcp_address) as producer:
        for minutes in (5, 30, 30, 60 * 24 * 3):
            await producer.send("later", b"body", deliver_at=time.time() + 60 * minutes)
        yield one


async def test_topics_are_listed_with_their_count(page: Page) -> None:
    assert "later 4" in text_of(await page.get("/delayed"))
    assert "No message waits" in await page.get("/delayed?q=x")


async def test_a_topic_has_a_histogram_and_its_messages(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = await page.get("/delayed?topic=later")
    text = text_of(html)
    assert "4 messages wait." in text
    assert "within 1 min 0 within 10 min 1 within 1 h 2 within 6 h 0 within 1 d 0" in text
    assert "within 7 d 1 later 0" in text
    assert '<rect width="50.0" height="10"/>' in html
    ids = ids_of(html)
    assert len(ids) == 4
    monkeypatch.setattr("martlet.console.pages.delayed._ROWS", 3)
    first = await page.get("/delayed?topic=later")
    assert ids_of(first) == ids[:3]
    assert ids_of(await page.get(next_of(first))) == ids[3:]


async def test_cancel_chosen_and_all(
    page: Page, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(await page.get("/delayed?topic=later"))
    message = await page.get(f"/messages/{ids[0]}?topic=later")
    assert "waits until" in message
    assert "Cancel…" in message
    preview = await ask(page, "cancel_delayed", **TOPIC, chosen="yes", ids=ids[:1])
    assert button_of(preview) == "Cancel 1 delayed message"
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "1 delayed message of topic later was cancelled"
    answer = await page.act("cancel_delayed", **TOPIC, chosen="yes", ids=ids[:2])
    assert notice_of(answer) == "1 delayed message of topic later was cancelled; 1 no longer waited"
    monkeypatch.setattr("martlet.console.pages.delayed.TYPED_FROM", 1)
    preview = await ask(page, "cancel_delayed", **TOPIC, all="yes")
    assert button_of(preview) == "Cancel 2 delayed messages"
    assert "to confirm" in await page.act(status=400, **form_of(preview))
    answer = await page.act(**form_of(preview), typed="later")
    assert notice_of(answer) == "2 delayed messages of topic later were cancelled"
    async with Admin(broker.http_address) as admin:
        assert (await admin.delayed.list("later")).joined() == []
