"""The pages of transactions: what they show, and their ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.admin_page import Page, counts, page_of
from tests.unit.console.pages.asking import ask, button_of, form_of, notice_of, text_of

from martlet.client import Admin, Producer
from martlet.testing import Broker


@asynccontextmanager
async def producing(
    broker: Broker, *names: str, group: str = "billing", **options: Any
) -> AsyncIterator[None]:
    """Have open transactions, with a message for orders and one for mails each."""
    async with Producer(broker.tcp_address, group=group) as producer:
        for name in names:
            transaction = producer.transaction(name, **{"check_after_s": 600, **options})
            await transaction.publish("orders", b"<b>one</b>", tag="red")
            await transaction.publish("mails", b"\xff")
        yield


async def test_commit_and_roll_back(page: Page, broker: Broker) -> None:
    async with producing(broker, "paid-1", "paid/2"):
        html = await page.get("/transactions")
        text = text_of(html)
        assert "2 transactions have not ended." in text
        assert re.search(r"paid-1 group billing open \S+ s ago 0 mails 1, orders 1 2 \d+ B", text)
        link = (
            f"/transactions/paid%2F2?broker=http%3A%2F%2F{broker.http_address.replace(':', '%3A')}"
        )
        assert f'href="{link}"' in html
        shown = await page.get(link)
        assert "&lt;b&gt;one&lt;/b&gt;" in shown
        assert "00000000  ff" in shown
        preview = await ask(page, "commit_transaction", id="paid-1")
        assert button_of(preview) == f"Commit 2 messages at {broker.http_address}"
        assert "2 messages become visible in mails, orders, together." in preview
        answer = await page.act(**form_of(preview))
        assert notice_of(answer) == "Transaction paid-1 is committed"
        preview = await ask(page, "rollback_transaction", id="paid/2")
        assert "2 messages of mails, orders are dropped" in preview
        answer = await page.act(**form_of(preview))
        assert notice_of(answer) == "Transaction paid/2 is rolled-back"
        assert (await counts(broker, "orders"))["message_count"] == 1
        again = await ask(page, "rollback_transaction", id="paid-1")
        assert "It is committed already." in again
        assert "There is nothing to do." in again
        assert "committed" in await page.get("/transactions/paid-1")
        assert "0 transactions have not ended." in text_of(await page.get("/transactions"))
    assert "Not found" in await page.get("/transactions/none", 404)


async def test_a_transaction_with_the_longest_id_is_ended(page: Page, broker: Broker) -> None:
    longest = "t" * 255
    async with producing(broker, longest):
        preview = await ask(page, "rollback_transaction", id=longest)
        answer = await page.act(**form_of(preview))
        assert notice_of(answer) == f"Transaction {longest} is rolled-back"
    too_long = await page.act("rollback_transaction", 400, id=longest + "t")
    assert "id must be a text of at most 255 characters" in too_long


async def test_those_set_aside_come_first() -> None:
    often: dict[str, Any] = {"transaction_checks": 1, "transaction_check_interval_ns": 20_000_000}
    async with (
        Broker(**often) as broker,
        Admin(broker.http_address) as admin,
        page_of([broker]) as page,
    ):
        async with (
            producing(broker, "old"),
            producing(broker, "lost", group="", check_after_s=0.02),
        ):
            async with asyncio.timeout(50):
                while not (await admin.transactions.list(state="set-aside")).joined():
                    pass
            text = text_of(await page.get("/transactions"))
        assert text.index("lost") < text.index("old")
        assert "no producer knew its end" in await page.get("/transactions/lost")
