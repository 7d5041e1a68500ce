"""The pages of dead letters: what they show, and that a dry run says what a redrive then moves."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.admin_page import Page, change, counts, page_of
from tests.unit.console.pages.asking import ask, button_of, form_of, next_of, notice_of, text_of

from martlet.client import Admin, Consumer, Producer
from martlet.testing import Broker

WHOSE: dict[str, Any] = {"topic": "orders", "channel": "work"}
LETTERS = "/dead/letters?topic=orders&channel=work"
HOSTILE = b"<script>alert(1)</script>\x1b[2J\xe2\x80\xae"


async def die(
    broker: Broker, *bodies: bytes, error: str = "no room", topic: str = "orders"
) -> None:
    """Have messages of the channel work become dead letters."""
    async with Admin(broker.http_address) as admin:
        await admin.topics.create(topic)
        await admin.channels.create(topic, "work")
        await admin.channels.configure(topic, "work", max_attempts=1)
    async with Producer(broker.tcp_address) as producer:
        await producer.publish_many(topic, list(bodies))
    async with Consumer(topic, "work", broker.tcp_address) as consumer:
        for _ in bodies:
            (await anext(consumer)).requeue(error=error, backoff=False)
        async with Admin(broker.http_address) as admin:
            while await waiting(admin, topic) < len(bodies):
                pass


async def waiting(admin: Admin, topic: str) -> int:
    answers = await admin.dead_letters.list()
    return sum(
        letters.count for letters in answers.joined() if letters.dead_letter_topic.startswith(topic)
    )


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    async with Broker() as first, Broker() as second:
        await die(first, b"one", b"two", HOSTILE)
        await die(second, b"four", error="a <b>bold</b> error")
        yield [first, second]


async def test_letters_are_grouped_by_channel_reason_and_error(page: Page) -> None:
    html = await page.get("/dead")
    text = text_of(html)
    assert "4 dead letters" in text
    assert re.search(r"orders.work.dead 4 dead letters", text)
    assert re.search(r"orders / work max_attempts 3 1 \S+ s ago no room \S+ s ago no room", text)
    assert re.search(r"max_attempts 1 1 \S+ s ago a <b>bold</b> error", text)
    assert "<b>bold" not in html
    assert "There are no dead letters in a topic with “other”." in text_of(
        await page.get("/dead?q=other")
    )


async def test_letters_are_shown_with_their_bodies_as_text(page: Page) -> None:
    html = await page.get(LETTERS)
    assert html.count('name="ids"') == 4
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u001b[2J\\u202e" in html
    assert "<script>alert" not in html
    filtered = await page.get(f"{LETTERS}&error=bold")
    assert filtered.count('name="ids"') == 1
    assert "No dead letter has that." in await page.get(
        "/dead/letters?dead_letter_topic=orders.work.dead&since=2030-01-01"
    )


async def test_a_dry_run_says_what_a_redrive_then_moves(page: Page, brokers: list[Broker]) -> None:
    preview = await ask(page, "redrive_dead_letters", **WHOSE, all="yes")
    assert button_of(preview) == "Redrive 4 dead letters on 2 brokers"
    # One that dies after the dry run is not of those that it has counted.
    await die(brokers[0], b"late")
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == "4 dead letters of channel work of orders were redriven"
    depths = [(await counts(broker, "orders"))["channels"][0]["depth"] for broker in brokers]
    assert depths == [3, 1]
    again = await ask(page, "redrive_dead_letters", **WHOSE, all="yes")
    assert button_of(again) == "Redrive 1 dead letter on 1 broker"


async def test_chosen_letters_go_to_another_topic(page: Page, brokers: list[Broker]) -> None:
    html = await page.get(f"{LETTERS}&error=room")
    ids = re.findall(r'name="ids" value="(\w+)"', html)
    chosen = {**WHOSE, "chosen": "yes", "ids": ids[:2], "to_topic": "later"}
    preview = await ask(page, "redrive_dead_letters", **chosen)
    assert button_of(preview) == "Redrive 2 dead letters on 1 broker to topic later"
    assert "Only those chosen." in preview
    answer = await page.act(**form_of(preview))
    assert "2 dead letters of channel work of orders were redriven to topic later" in answer
    assert (await counts(brokers[0], "later"))["message_count"] == 2
    assert (await counts(brokers[0], "orders.work.dead"))["channels"][0]["depth"] == 1


async def test_purge(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    preview = await ask(page, "purge_dead_letters", **WHOSE, reason="timeout")
    assert "There is nothing to do." in preview
    monkeypatch.setattr("martlet.console.pages.dead_letters.TYPED_FROM", 3)
    preview = await ask(page, "purge_dead_letters", **WHOSE, all="yes")
    assert button_of(preview) == "Purge 4 dead letters on 2 brokers"
    assert "type &#39;channel work of orders&#39; to confirm" in await page.act(
        status=400, **form_of(preview)
    )
    answer = await page.act(**form_of(preview), typed="channel work of orders")
    assert notice_of(answer) == "4 dead letters of channel work of orders were purged"
    assert "There are no dead letters." in await page.get("/dead")
    audit = text_of(await page.get("/audit"))
    assert "purge_dead_letters orders / work done 4 dead letters" in audit


async def test_letters_continue_on_a_next_page(
    page: Page, brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("martlet.console.pages.dead_letters._ROWS", 2)
    html = await page.get(LETTERS)
    assert html.count('name="ids"') == 3
    rest = await page.get(next_of(html))
    assert rest.count('name="ids"') == 1
    assert not set(re.findall(r'name="ids" value="(\w+)"', html)) & set(
        re.findall(r'name="ids" value="(\w+)"', rest)
    )
    broken = await page.get(f"{LETTERS}&on=[1]", 400)
    assert "does not continue there" in broken


async def test_export(page: Page) -> None:
    async with page.session.get(f"{page.url}/dead/export", params=WHOSE) as answer:
        assert answer.headers["Content-Disposition"] == 'attachment; filename="dead-letters.jsonl"'
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        rows = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert sorted(row["body"].encode() for row in rows) == sorted(
        [b"one", b"two", HOSTILE, b"four"]
    )
    assert "export_dead_letters" in await page.get("/audit")


async def test_letters_of_no_known_reason_are_linked_without_one(
    page: Page, brokers: list[Broker]
) -> None:
    async with Producer(brokers[0].tcp_address) as producer:
        await producer.publish("orders.work.dead", b"by hand")
    html = await page.get("/dead")
    link = re.search(r'href="(/dead/letters[?]dead_letter_topic=orders[.]work[.]dead[^"]*)"', html)
    assert link is not None
    assert "by hand" in await page.get(link[1].replace("&amp;", "&"))


async def test_a_channel_without_dead_letters_is_no_error(page: Page) -> None:
    html = await page.get("/dead/letters?topic=orders&channel=x")
    assert "No dead letters: none of its messages failed too often." in html
    assert "alarm" not in html


async def test_a_topic_without_dead_letters_is_said(page: Page, brokers: list[Broker]) -> None:
    for broker in brokers:
        await change(broker.http_address, "/topic/create?topic=plain")
    assert "is no dead-letter topic" in await page.get("/dead/letters?dead_letter_topic=plain", 404)


async def test_viewers_of_numbers_see_no_error_texts() -> None:
    """Nor are they told by links, groups or a search."""
    options: dict[str, Any] = {"admin_users": ("ann",), "reader_users": ("bob",)}
    async with Broker(trace=True) as broker, page_of([broker], **options) as page:
        await die(broker, b"one", error="card Visa refused")
        async with Admin(broker.http_address) as admin:
            answers = await admin.dead_letters.show("orders", "work")
        (letter,) = answers.joined()
        paths = ["/dead", LETTERS, f"/messages/{letter.message_id}?topic=orders"]
        for user, sees in (("bob", True), ("viewer", False), ("ann", True)):
            page.session.headers["X-Forwarded-User"] = user
            for path in paths:
                html = await page.get(path)
                assert "max_attempts" in html or "max attempts" in html or "given up" in html
                assert ("Visa" in html) is sees, (user, path)
            if sees:
                assert "Visa" in await page.get(f"{LETTERS}&error=Visa")
                assert "No dead letter has that." in await page.get(f"{LETTERS}&error=Diners")
            else:
                for error in ("Visa", "Diners"):
                    refused = await page.get(f"{LETTERS}&error={error}", 403)
                    assert "does not see errors" in refused
                await page.get(f"/dead/export?topic=orders&channel=work&error={error}", 403)
                # Nor by an address that goes on at other fields than a list does.
                further = {"broker": f"http://{broker.http_address}", "on": '{"error": "Visa"}'}
                await page.get(f"{LETTERS}&{urlencode(further)}", 502)
