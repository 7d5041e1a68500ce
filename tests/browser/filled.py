"""Brokers that have some of everything that the admin page shows, hostile texts among it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.admin_page import two_brokers

from martlet.client import Admin, Consumer, Producer
from martlet.pipeline.html_page import HtmlTable, Page, Text
from martlet.testing import Broker

HOSTILE = (
    "<script>pwned=1</script>",
    '"><img src=x onerror="pwned=1">',
    '<p hx-get="/evil" hx-trigger="load">{{ 7*7 }}</p>',
    "</td></tr></table><h1>evil</h1>\u202eabc",
)
EVIL = "".join(HOSTILE)
"""What a property may have; a body may have control characters, too."""


@asynccontextmanager
async def filled_brokers() -> AsyncIterator[list[Broker]]:
    """Two brokers; their topics are orders, mails, payments and those of dead letters."""
    async with two_brokers() as brokers:
        first, second = brokers
        async with Admin(first.http_address) as admin:
            await admin.topics.create("payments", 3)
            await admin.channels.create("payments", "billing")
            await admin.channels.configure("payments", "billing", kind="offsets")
            await _letters(admin, first)
        async with Producer(second.tcp_address) as producer:
            for minutes in (2, 30, 30, 500):
                await producer.send(
                    "mails", b"a reminder", tag="late", deliver_at=time.time() + 60 * minutes
                )
        async with Producer(first.tcp_address, group="billing") as producer:
            for number in range(9):
                order = {
                    "order": 1000 + number,
                    "customer": f"c{number % 3}",
                    "amount": 19.5 * number,
                }
                await producer.send(
                    "payments",
                    json.dumps(order).encode(),
                    tag="card" if number % 2 else "cash",
                    keys=[f"order-{1000 + number}"],
                    headers={"source": "web"},
                )
            await producer.send(
                "payments",
                EVIL.encode() + b"\0\x1b[31m",
                tag="<b>",
                keys=["<i>"],
                headers={"x": EVIL},
            )
            transaction = producer.transaction("payment-17", check_after_s=600)
            await transaction.publish("payments", b"paid")
            yield brokers


async def _letters(admin: Admin, broker: Broker) -> None:
    """Have three dead letters, one of which nobody but a stranger would write."""
    await admin.topics.create("mails")
    await admin.channels.create("mails", "sender")
    await admin.channels.configure("mails", "sender", max_attempts=1)
    errors = {b"to: ann@example.org": "mailbox full", b"to: bob@example.org": "mailbox full"}
    errors[EVIL.encode()] = EVIL
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many("mails", list(errors))
    async with Consumer("mails", "sender", broker.tcp_address) as consumer:
        for _ in errors:
            message = await anext(consumer)
            message.requeue(error=errors[message.body], backoff=False)
        async with asyncio.timeout(50):
            while await _count(admin) < len(errors):
                pass


async def _count(admin: Admin) -> int:
    return sum(topic.count for topic in (await admin.dead_letters.list()).joined())


def job_page(folder: Path) -> str:
    """Write a page as a job does, and return its file."""
    table = HtmlTable("sales", ["country", "count"], [["BE", 3], [EVIL, 4]])
    Page("Orders by country", "of today", [Text("nothing is lost", "good"), table]).write(
        folder / "orders.html"
    )
    return str(folder / "orders.html")
