"""Forms that no page sends, in front of a real broker: each is refused, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.admin_page import Page, page_of
from tests.unit.console.pages.asking import notice_of, text_of

from martlet.client import Admin, Consumer, Producer
from martlet.testing import Broker

Fields = list[tuple[str, str]]
ORDERS: Fields = [("topic", "orders"), ("channel", "work")]
GROUP: Fields = [("topic", "orders"), ("group", "billing")]
OTHER: Fields = [("topic", "other"), ("channel", "work")]
LATER: Fields = [("topic", "later")]
PAID: Fields = [("id", "paid-1")]
CHOSEN: Fields = [("chosen", "yes")]
ALL: Fields = [("all", "yes")]
ID = "0123456789abcdef"
LONG = "9" * 5000
DIGIT = "\N{ARABIC-INDIC DIGIT THREE}"
HALF = "\N{LATIN SMALL LETTER O WITH STROKE}"

MAX_QUERY = 8000
AT_ONCE = ("create_topic", "publish_message")
"""The actions without a page that asks before them."""

# The action, its fields, and what the refusal says.
REFUSED: list[tuple[str, Fields, str]] = [
    ("", [], "there is no action ''"),
    ("purge" + LONG, ORDERS, "there is no action 'purge999"),
    ("redrive_dead_letters", [], "nothing was chosen"),
    ("redrive_dead_letters", ALL, "the channel is missing"),
    ("redrive_dead_letters", ORDERS, "nothing was chosen"),
    ("redrive_dead_letters", [*ORDERS, ("all", "no")], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, ("all", "0")], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, ("chosen", "off"), ("ids", ID)], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, ("ids", ID)], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, ("ids", ID), *ALL], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, ("reason", ""), ("since", " ")], "nothing was chosen"),
    ("purge_dead_letters", [*ORDERS, *CHOSEN], "no message was chosen"),
    ("purge_dead_letters", [*ORDERS, *CHOSEN, ("ids", "x" * 5000)], "is no message's id"),
    ("purge_dead_letters", [*ORDERS, *CHOSEN, ("ids", DIGIT * 16)], "is no message's id"),
    (
        "purge_dead_letters",
        [*ORDERS, *CHOSEN, *(("ids", f"{number:016x}") for number in range(501))],
        "501 messages were chosen; the maximum is 500",
    ),
    ("purge_dead_letters", [("topic", "orders"), *ALL], "the channel is missing"),
    (
        "purge_dead_letters",
        [*ORDERS, ("reason", "bad")],
        "reason: 'bad': it is one of",
    ),
    ("purge_dead_letters", [*ORDERS, ("error", "e" * 2000)], "error"),
    ("purge_dead_letters", [*ORDERS, ("since", "soon")], "is no time"),
    ("purge_dead_letters", [*ORDERS, ("since_ms", DIGIT), *ALL], "is no whole number"),
    ("purge_dead_letters", [*ORDERS, ("until_ms", LONG), *ALL], "is no whole number"),
    ("purge_dead_letters", [*ORDERS, *ALL, ("broker", "http://h:1")], "there is no broker"),
    ("redrive_dead_letters", [*ORDERS, *ALL, ("to_topic", HALF)], "is not valid: 1 to"),
    (
        "redrive_dead_letters",
        [("dead_letter_topic", "orders.work.dead"), *ALL, ("to_topic", "orders.work.dead")],
        "they are in topic orders.work.dead already",
    ),
    ("cancel_delayed", [], "is no name"),
    ("cancel_delayed", LATER, "nothing was chosen"),
    ("cancel_delayed", [*LATER, ("ids", ID)], "nothing was chosen"),
    ("cancel_delayed", [*LATER, ("chosen", ""), ("all", "")], "nothing was chosen"),
    ("cancel_delayed", [*LATER, *CHOSEN], "no message was chosen"),
    ("cancel_delayed", [*LATER, ("all", "false")], "nothing was chosen"),
    ("cancel_delayed", [*LATER, *CHOSEN, ("ids", "")], "is no message's id"),
    ("cancel_delayed", [("topic", "a" * 65), *ALL], "is no name"),
    ("cancel_delayed", [("topic", HALF), *ALL], "is no name"),
    ("reset_group", [], "the argument topic is missing"),
    ("reset_group", GROUP, "the argument to is missing"),
    ("reset_group", [*GROUP, ("to", "nowhere")], "nowhere"),
    ("reset_group", [*GROUP, ("to", "time")], "time"),
    ("reset_group", [*GROUP, ("to", "time"), ("time", "then")], "is no time"),
    ("reset_group", [*GROUP, ("to", "offset")], "offset"),
    ("reset_group", [*GROUP, ("to", "offset"), ("offset", "-1")], "is no whole number"),
    ("reset_group", [*GROUP, ("to", "first"), ("queue", LONG)], "is no whole number"),
    ("commit_transaction", [], "the argument id is missing"),
    ("commit_transaction", [("id", "p" * 256)], "id"),
    ("rollback_transaction", [("id", "")], "the argument id is missing"),
    ("rollback_transaction", [*PAID, ("broker", "x" * 5000)], "there is no broker 'xxx"),
    ("send_again", [("id", ID), ("id", ID[::-1])], "one message is sent again, and not 2"),
    ("send_again", [("id", ID), ("to_topic", "a b")], "is no name"),
    ("pause_topic", [], "no topic was chosen"),
    ("pause_topic", [("topics", f"t{number}") for number in range(501)], "the maximum is 500"),
    ("register", [("topic", "new")], "asks no lookup daemon"),
    ("create_topic", [("topic", "new"), ("queues", "many")], "queues"),
    ("create_topic", [("topic", "new"), ("queues", LONG)], "queues"),
    ("create_topic", [("topic", "new"), ("queues", DIGIT)], "queues"),
    ("publish_message", [*LATER, ("body", "b"), ("priority", DIGIT)], "the priority"),
    ("publish_message", [*LATER, ("body", "b"), ("defer", LONG + "h")], "deliver in"),
    *(
        ("publish_message", [*LATER, ("body", "b"), (name, value)], why)
        for name, value, why in (
            ("headers", "no colon", "this line is 'no colon'"),
            ("headers", "a\x7f: b", "has characters"),
            ("defer", "soon", "deliver in:"),
            ("defer", "-1s", "deliver in:"),
            ("tag", "a\0b", "a\\x00b' has characters"),
            ("order_key", "a\r\nX-Evil: 1", "has characters"),
        )
    ),
    ("publish_message", [*LATER, ("body", "")], "at least one byte"),
    ("add_queues", [("topic", "orders"), ("queues", LONG)], "is no whole number"),
    ("add_queues", [("topic", "orders"), ("queues", "0")], "from 1 to 1024"),
    ("configure", [*ORDERS, ("max_attempts", "x")], "max_attempts=x: it must be a whole number"),
    ("configure", [*ORDERS, ("max_attempts", "99999999")], "must be a whole number from -1"),
    ("configure", [*ORDERS, ("dead_letter_topic", "a b")], "must be the name of a topic"),
    ("configure", [*ORDERS, ("max_attempts", LONG)], "max_attempts"),
    ("configure", [*ORDERS, ("max_attempts", DIGIT * 5000)], "max_attempts"),
    ("replay_channel", ORDERS, "say where to"),
    ("replay_channel", [*ORDERS, ("to", "time")], "is no time"),
    ("restore_channel", [*ORDERS, ("undo", LONG)], "is no whole number"),
]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with two dead letters, a group, a delayed message and an open transaction."""
    async with Broker() as one, Admin(one.http_address) as admin:
        for topic, channel in (("orders", "work"), ("orders", "billing"), ("other", "work")):
            await admin.topics.create(topic)
            await admin.channels.create(topic, channel)
        await admin.channels.configure("orders", "billing", kind="offsets")
        async with Producer(one.tcp_address, group="paying") as producer:
            await producer.send("later", b"body", deliver_at=time.time() + 3600)
            for count, topic in enumerate(("orders", "other"), 1):
                await admin.channels.configure(topic, "work", max_attempts=1)
                await producer.publish(topic, b"lost")
                async with Consumer(topic, "work", one.tcp_address) as consumer:
                    (await anext(consumer)).requeue(error="no room", backoff=False)
                    while len((await admin.dead_letters.list()).joined()) < count:
                        pass
            await producer.transaction("paid-1", check_after_s=600).publish("orders", b"paid")
            yield one


@pytest.fixture
async def page(broker: Broker) -> AsyncIterator[Page]:
    async with page_of([broker]) as one:
        yield one


async def state_of(broker: Broker) -> list[Any]:
    """Return what forms could have changed."""
    async with Admin(broker.http_address) as admin:
        letters = (await admin.dead_letters.list()).joined()
        groups = (await admin.groups.describe("orders", "billing")).values.values()
        transactions = (await admin.transactions.list()).values.values()
        topics = (await admin.topics.list()).joined()
        return [
            {row.dead_letter_topic: row.count for row in letters},
            [queue.offset for group in groups for queue in group.queues],
            len((await admin.delayed.list("later")).joined()),
            [transaction.state for listed in transactions for transaction in listed],
            {topic.topic: (topic.message_count, topic.queue_count) for topic in topics},
        ]


async def send(page: Page, method: str, path: str, fields: Fields, **headers: str) -> str:
    """Return the status and the text of an answer."""
    body = urlencode(fields)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if method == "POST":
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    else:
        path, body = f"{path}?{body}", ""
    answer = await page.ask(method, path, body.encode(), **sent)
    return f"{answer.status} {answer.text}"


async def not_refused(page: Page, method: str, forms: Iterable[tuple[str, Fields, str]]) -> Any:
    """Return those forms that are not refused as they should be, with their answers."""
    unlike = {}
    for action, fields, why in forms:
        path = "/act" if method == "POST" else "/confirm"
        answer = text_of(await send(page, method, path, [("action", action), *fields]))
        if not answer.startswith("400 ") or why not in answer or LONG in answer:
            unlike[action, str(fields)[:80], why] = answer[300:600]
    return unlike


async def test_a_wrong_form_is_refused_and_changes_nothing(page: Page, broker: Broker) -> None:
    before = await state_of(broker)
    assert await not_refused(page, "POST", REFUSED) == {}
    assert await state_of(broker) == before


async def test_a_wrong_form_is_refused_before_it_is_confirmed(page: Page) -> None:
    asks = [
        (action, fields, why)
        for action, fields, why in REFUSED
        if action not in AT_ONCE and len(urlencode(fields)) < MAX_QUERY
    ]
    assert await not_refused(page, "GET", asks) == {}


async def test_no_form_acts_by_get_from_another_site_or_for_a_viewer(broker: Broker) -> None:
    forms: list[Fields] = [
        [("action", "purge_dead_letters"), *ORDERS, *ALL],
        [("action", "redrive_dead_letters"), *ORDERS, *ALL],
        [("action", "cancel_delayed"), *LATER, *ALL],
        [("action", "reset_group"), *GROUP, ("to", "last")],
        [("action", "commit_transaction"), *PAID],
        [("action", "rollback_transaction"), *PAID],
    ]
    before = await state_of(broker)
    async with (
        page_of([broker]) as page,
        page_of([broker], read_only=True) as viewed,
    ):
        for fields in forms:
            for origin in ("http://evil.example", "null", "http://[", f"{page.url}.evil.example"):
                answer = await send(page, "POST", "/act", fields, Origin=origin)
                assert answer.startswith("403 "), (origin, answer)
            answer = await send(page, "POST", "/act", fields, Sec_Fetch_Site="cross-site")
            assert answer.startswith("403 ")
            assert (await send(page, "GET", "/act", fields)).startswith("405 ")
            assert (await send(page, "POST", "/confirm", fields)).startswith("405 ")
            assert (await send(viewed, "POST", "/act", fields)).startswith("403 ")
            assert (await send(viewed, "GET", "/confirm", fields)).startswith("403 ")
    assert await state_of(broker) == before


async def test_ids_of_another_topic_are_not_there(page: Page, broker: Broker) -> None:
    async with Admin(broker.http_address) as admin:
        letters = await admin.dead_letters.show(topic="orders", channel="work")
        (waiting,) = (await admin.delayed.list("later")).joined()
    (letter,) = letters.joined()
    before = await state_of(broker)
    missing = [*OTHER, *CHOSEN, ("ids", letter.id)]
    for action, done in (("redrive", "redriven"), ("purge", "purged")):
        query = [("action", f"{action}_dead_letters"), *missing]
        assert "There is nothing to do" in await send(page, "GET", "/confirm", query)
        fields: dict[str, Any] = dict(missing)
        text = notice_of(await page.act(query[0][1], **fields))
        assert text == f"0 dead letters of channel work of other were {done}; 1 was not there"
    text = notice_of(await page.act("cancel_delayed", topic="other", chosen="yes", ids=waiting.id))
    assert text == "0 delayed messages of topic other were cancelled; 1 no longer waited"
    assert await state_of(broker) == before


async def test_a_dead_letter_topic_is_said_to_be_meant_as_a_whole(
    page: Page, broker: Broker
) -> None:
    form = [*OTHER, ("dead_letter_topic", "orders.work.dead"), *ALL]
    for action in ("redrive_dead_letters", "purge_dead_letters"):
        text = text_of(await send(page, "GET", "/confirm", [("action", action), *form]))
        assert (
            "The whole topic orders.work.dead is meant: the dead letters of every channel in it,"
            " not of channel work of other alone."
        ) in text
    fields: dict[str, Any] = dict(form)
    text = notice_of(await page.act("purge_dead_letters", **fields))
    assert text == "1 dead letter of topic orders.work.dead was purged"
    entry = page.server._audit.entries[-1]
    assert (entry.topic, entry.channel) == ("orders.work.dead", "")


async def test_no_form_makes_a_reset_a_dry_run_that_is_said_to_be_done(
    page: Page, broker: Broker
) -> None:
    before = await state_of(broker)
    fields: dict[str, Any] = dict(GROUP)
    await page.act("reset_group", **fields, to="last", dry_run="yes")
    assert [before[1], (await state_of(broker))[1]] == [[0], [1]]
