"""Undo of an empty, on the page of the channel."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.admin_page import Page, broker_of, change, page_of
from tests.unit.console.pages.asking import ask, button_of, form_of, notice_of, text_of

from martlet.client import Consumer, Producer
from martlet.client.admin import EmptiedChannel
from martlet.console import undos
from martlet.console.undos import Undos
from martlet.testing import Broker, BrokerProcess

WORK: dict[str, Any] = {"topic": "orders", "channel": "work"}
MILLION = 1_000_000


async def test_what_was_emptied_is_put_back_at_each_broker(page: Page) -> None:
    assert "5 waiting" in text_of(await page.get("/topics/orders/work"))
    await page.act("empty_channel", **WORK)
    html = await page.get("/topics/orders/work")
    assert "0 waiting" in text_of(html)
    assert "5 messages were emptied" in text_of(html)
    preview = await ask(page, "restore_channel", **WORK, undo="1")
    assert button_of(preview) == "Put back 5 messages"
    html = await page.act(**form_of(preview))
    assert notice_of(html) == (
        "5 messages were put back into channel work of orders, which has 5 messages now"
    )
    text = text_of(await page.get("/topics/orders/work"))
    assert "5 waiting" in text
    assert "were emptied" not in text
    assert "that was undone already" in await ask(page, "restore_channel", 400, **WORK, undo="1")
    assert "restore_channel" in await page.get("/audit")


async def test_deferred_messages_and_those_in_flight_come_back_too(
    page: Page, brokers: list[Broker]
) -> None:
    async with (
        Producer(brokers[0].tcp_address) as producer,
        Consumer("later", "work", brokers[0].tcp_address) as consumer,
    ):
        await producer.publish("later", b"in flight")
        await anext(consumer)
        await producer.publish("later", b"deferred", defer_ms=60_000)
        later: dict[str, Any] = {"topic": "later", "channel": "work"}
        preview = await ask(page, "empty_channel", **later)
        assert button_of(preview) == "Empty 2 messages on 1 broker"
        await page.act("empty_channel", **later)
        html = await page.act("restore_channel", **later, undo="1")
        assert notice_of(html).startswith("2 messages were put back")


async def test_an_empty_of_one_broker_is_undone_there(page: Page, brokers: list[Broker]) -> None:
    await page.act("empty_channel", **WORK, broker=f"http://{brokers[1].http_address}")
    await page.act("restore_channel", **WORK, undo="1")
    assert "5 waiting" in text_of(await page.get("/topics/orders/work"))


async def test_of_two_tabs_that_undo_the_same_one_does_it(page: Page) -> None:
    await page.act("empty_channel", **WORK)
    form = {"action": "restore_channel", **WORK, "undo": "1"}
    answers = await asyncio.gather(*(page.ask("POST", "/act", form) for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [303, *[400] * 5]
    assert all("was undone already" in answer.text for answer in answers if answer.status == 400)
    assert "5 waiting" in text_of(await page.get("/topics/orders/work"))


async def test_tabs_that_empty_and_undo_together_lose_nothing(
    page: Page, brokers: list[Broker]
) -> None:
    async def act(action: str, **fields: str) -> int:
        return (await page.ask("POST", "/act", {"action": action, **WORK, **fields})).status

    for number in range(1, 6):
        statuses = await asyncio.gather(
            act("empty_channel"),
            *(
                act("restore_channel", undo=str(undo_number))
                for undo_number in range(1, number + 1)
            ),
            act("empty_channel"),
        )
        assert set(statuses) <= {303, 400, 502}, statuses
    html = await page.get("/topics/orders/work")
    for undo_number in sorted(
        map(int, re.findall(r'name="undo" value="(\d+)"', html)), reverse=True
    ):
        assert await act("restore_channel", undo=str(undo_number)) == 303
    assert "5 waiting" in text_of(await page.get("/topics/orders/work"))


async def test_an_undo_that_a_broker_did_not_do_is_offered_for_that_one() -> None:
    async with broker_of(3) as first, AsyncExitStack() as away:
        second = await away.enter_async_context(broker_of(2))
        async with page_of([first, second]) as page:
            await page.act("empty_channel", **WORK)
            await away.aclose()
            html = await page.act("restore_channel", **WORK, undo="1")
            assert notice_of(html).startswith("3 messages were put back")
            assert "but not everywhere" in notice_of(html)
            assert "2 messages were emptied" in text_of(await page.get("/topics/orders/work"))
            await page.act("restore_channel", 502, **WORK, undo="1")
            assert "2 messages were emptied" in text_of(await page.get("/topics/orders/work"))


async def test_an_undo_of_a_deleted_channel_is_refused(page: Page, brokers: list[Broker]) -> None:
    await page.act("empty_channel", **WORK)
    for broker in brokers:
        await change(broker.http_address, "/channel/delete?topic=orders&channel=work")
    assert "work" in await page.act("restore_channel", 502, **WORK, undo="1")
    assert "no number" not in await page.act("restore_channel", 400, **WORK, undo="99")


def test_the_oldest_undo_goes_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undos, "MAX_UNDOS", 2)
    kept = Undos()
    emptied = EmptiedChannel([], 3, 10**9)
    for channel in "aab":
        kept.add("t", channel, "", {"http://h:1": emptied, "http://h:2": None})
    assert [one.number for one in kept.of("t", "a")] == [2]
    assert kept.get(1) is None
    assert kept.add("t", "a", "", {"http://h:2": None}) is None
    assert kept.add("t", "a", "", {"http://h:1": EmptiedChannel([], 0, 1)}) is None


async def test_a_million_messages_come_back() -> None:
    with BrokerProcess() as broker:
        await change(broker.http_address, "/topic/create?topic=orders")
        await change(broker.http_address, "/channel/create?topic=orders&channel=work")
        async with Producer(broker.tcp_address) as producer:
            body = b"x" * 100
            for _ in range(MILLION // 10_000):
                await producer.publish_many("orders", [body] * 10_000)
        async with page_of([broker]) as page:
            await page.act("empty_channel", **WORK, typed="orders / work")
            assert "0 waiting" in text_of(await page.get("/topics/orders/work"))
            html = await page.act("restore_channel", **WORK, undo="1")
            assert "1,000,000 messages were put back" in notice_of(html)
        seen: set[bytes] = set()
        async with Consumer("orders", "work", broker.tcp_address, max_in_flight=2500) as consumer:
            async for batch in consumer.batches():
                seen.update(batch.ids)
                await batch.finish()
                if len(seen) == MILLION:
                    break
