"""The pages of messages: what they find, within which limits, and what they give away to whom."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from tests.admin_page import Page, page_of
from tests.unit.console.pages.asking import ask, button_of, form_of, next_of, notice_of, text_of

from martlet.client import Admin, Consumer, Limits, Outgoing, Producer, Properties
from martlet.console.pages import reading
from martlet.testing import Broker

HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e\0"
BIG = b"x" * 3_100_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(max_msg_size=4 << 20) as one:
        async with Admin(one.http_address) as admin:
            await admin.topics.create("orders")
            await admin.channels.create("orders", "work")
        yield one


def out(body: bytes, **properties: Any) -> Outgoing:
    return Outgoing(body, Properties(**{**properties, "keys": tuple(properties.get("keys", ()))}))


async def send(broker: Broker, *bodies: Any, topic: str = "orders") -> None:
    limits = Limits(max_message_bytes=4 << 20)
    async with Producer(broker.tcp_address, limits=limits) as producer:
        for body in bodies:
            await producer.publish(topic, body)


def ids_of(html: str) -> list[str]:
    return re.findall(r'<th scope="row"><a class="id" href="[^"]*">(\w{16})<', html)


async def test_without_a_topic_the_page_asks_for_one(page: Page) -> None:
    html = await page.get("/messages")
    assert '<option value="orders">' in html
    assert "<table>" not in html
    assert "No messages." in await page.get("/messages?topic=orders")
    assert "Not found" in await page.get("/messages?topic=none", 404)
    assert "is no name" in await page.get("/messages?topic=a%20b", 400)


async def test_bodies_are_text_json_or_hex(page: Page, broker: Broker) -> None:
    await send(broker, HOSTILE.encode(), b'{"id": 1.0, "tags": ["a", {}]}', b"\xff\x00\x01", BIG)
    html = await page.get("/messages?topic=orders&from=first")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\u001b[2J\\u202e\\u0000" in html
    assert "<script>alert" not in html
    assert "{\n  &#34;id&#34;: 1.0,\n  &#34;tags&#34;: [\n    &#34;a&#34;,\n    {}\n  ]\n}" in html
    assert "00000000  ff 00 01" in html
    assert "shown 2.0 kB of 3.1 MB" in html
    assert len(html) < 100_000
    as_hex = await page.get("/messages?topic=orders&from=first&as=hex")
    assert "00000000  7b 22 69 64" in as_hex
    last = ids_of(html)[-1]
    assert "shown 20.0 kB of 3.1 MB" in await page.get(f"/messages/{last}?topic=orders")
    async with page.session.get(f"{page.url}/messages/{last}/body?topic=orders") as answer:
        assert await answer.read() == BIG
        assert answer.content_type == "application/octet-stream"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{last}.bin"'
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_reading_from_first_last_an_offset_and_a_time(page: Page, broker: Broker) -> None:
    await send(broker, *(b"m%d" % number for number in range(120)))
    await asyncio.sleep(0.05)  # The broker's clock is not quite the system's.
    between_ms = time.time_ns() // 1_000_000
    await asyncio.sleep(0.05)
    await send(broker, b"after")
    first = await page.get("/messages?topic=orders&from=first")
    assert len(ids_of(first)) == 50
    assert "looked at 50, with" in text_of(first)
    assert "Continue from offset 50" in text_of(first)
    second = await page.get(next_of(first))
    assert '<pre class="body" tabindex="0">m50</pre>' in second
    assert "to the end" in text_of(await page.get(next_of(second)))
    last = await page.get("/messages?topic=orders")
    assert last.index(">after<") < last.index(">m119<")
    assert ">m71<" in last
    earlier = await page.get(next_of(last, "prev"))
    assert ">m21<" in earlier
    assert ">m20<" not in earlier
    since = await page.get(f"/messages?topic=orders&from=time&time={between_ms / 1000}")
    assert ids_of(since) == ids_of(last)[:1]
    assert ">m118<" in await page.get("/messages?topic=orders&from=offset&offset=118")
    assert "is no time" in await page.get("/messages?topic=orders&from=time&time=soon", 400)
    assert "no such queue" in await page.get("/messages?topic=orders&queue=3", 400)
    assert "does not continue" in await page.get("/messages?topic=orders&go=x|y|z", 400)
    assert "there is no broker" in await page.get("/messages?topic=orders&broker=http://h", 400)


async def test_a_search_ends_at_its_limits_and_says_where_to_go_on(
    page: Page, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(
        broker,
        *(out(b"plain %d" % number) for number in range(30)),
        out(b"a needle", keys=["k1"], headers={"colour": "red"}),
    )
    search = "/messages?topic=orders&from=first"
    for fields in ("text=needle", "key=k1", "header=colour", "header=colour%3Dred"):
        html = await page.get(f"{search}&{fields}")
        assert len(ids_of(html)) == 1, fields
        assert "looked at 31" in text_of(html)
        assert "to the end" in text_of(html)
    assert "No message among those looked at" in await page.get(f"{search}&header=colour%3Dblue")
    assert "a needle" not in await page.get("/messages?topic=orders&key=k1&text=hay")
    monkeypatch.setattr(reading, "MAX_READ", 20)
    html = await page.get(f"{search}&text=needle")
    assert "0 messages; looked at 20" in text_of(html)
    assert "stopped: 20 messages looked at" in html
    assert "Continue from offset 20" in text_of(html)
    assert len(ids_of(await page.get(next_of(html)))) == 1
    monkeypatch.setattr(reading, "MAX_READ_BYTES", 1)
    monkeypatch.setattr(reading, "_READ_BYTES", 1)
    assert "looked at 1, with 7 B" in text_of(await page.get(f"{search}&text=needle"))


async def test_a_search_by_key_needs_no_reading_and_continues(
    page: Page, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_READ", 1)
    monkeypatch.setattr(reading, "MAX_FOUND", 3)
    await send(broker, *(out(b"%d" % n, keys=["even" if n % 2 == 0 else "odd"]) for n in range(10)))
    first = await page.get("/messages?topic=orders&key=even")
    assert re.findall(r">(\d)</pre>", first) == ["8", "6", "4"]
    assert "3 messages; looked at 3, with 3 B" in text_of(first)
    second = await page.get(next_of(first))
    assert re.findall(r">(\d)</pre>", second) == ["2", "0"]
    assert "to the end" in text_of(second)
    later = f"&from=time&time={time.time() + 60:.3f}"
    assert "No message among" in await page.get(f"/messages?topic=orders&key=even{later}")
    for after in ("x", "[]", '{"http://evil": "1"}', '{"http://h:1": 2}'):
        html = await page.get(f"/messages?topic=orders&key=even&after={quote(after)}", 400)
        assert "does not continue there" in html


@pytest.mark.parametrize("key", ["", "&key=k"])
@pytest.mark.parametrize(
    ("time", "is_before"),
    [("1900-01-01", True), ("0", True), ("9999-12-31", False), ("99999999999999999999", False)],
)
async def test_any_time_is_before_or_after_all_messages(
    page: Page, broker: Broker, key: str, time: str, is_before: bool
) -> None:
    await send(broker, out(b"m", keys=["k"]))
    html = await page.get(f"/messages?topic=orders&from=time&time={time}{key}")
    assert len(ids_of(html)) == is_before


async def test_a_key_that_no_message_can_have_is_refused(page: Page) -> None:
    html = await page.get(f"/messages?topic=orders&key={'k' * 1025}", 400)
    assert "key must be a text of at most 1024 characters" in text_of(html)


async def test_all_queues_of_all_brokers_are_read(broker: Broker) -> None:
    async with Broker() as other, Admin([broker.http_address, other.http_address]) as admin:
        await admin.topics.create("several", 3)
        for server in (broker, other):
            await send(server, *(b"m" for _ in range(6)), topic="several")
        async with page_of([broker, other]) as page:
            html = await page.get("/messages?topic=several&from=first")
            assert len(set(ids_of(html))) == 12
            assert len(re.findall(rf"<td>[012] · {other.http_address}</td>", html)) == 6
            one = f"/messages?topic=several&queue=1&broker=http://{other.http_address}"
            assert len(ids_of(await page.get(one))) == 2


async def test_unfinished_messages_of_a_channel(page: Page, broker: Broker) -> None:
    await send(broker, b"in flight", b"waits")
    async with Consumer("orders", "work", broker.tcp_address, max_in_flight=1) as consumer:
        message = await anext(consumer)
        of = "/messages?topic=orders&channel=work"
        html = await page.get(of)
        assert len(ids_of(html)) == 2
        assert re.search(r"in flight .* 1 0 0 · ", text_of(html))
        assert len(ids_of(await page.get(f"{of}&state=waiting"))) == 1
        assert "None." in await page.get(f"{of}&state=deferred")
        assert "is none of" in await page.get(f"{of}&state=odd", 400)
        message.finish()
    assert "no channel" in (await page.get("/messages?topic=orders&channel=none", 404)).lower()


async def test_a_message_by_its_id_without_a_trace(page: Page, broker: Broker) -> None:
    await send(broker, out(b"found", keys=["k"], tag="t"))
    (message_id,) = ids_of(await page.get("/messages?topic=orders"))
    html = await page.get(f"/messages?id={message_id.upper()}")
    text = text_of(html)
    assert f"Message {message_id}" in text
    assert "work waiting 0 -" in text
    assert "is not traced" in text
    assert ">found</pre>" in html
    assert "tag t keys k" in text
    assert "no broker that answers has a message" in await page.get(f"/messages/{'0' * 16}", 404)
    assert "is no message" in await page.get("/messages?id=xyz", 400)


async def test_a_traced_message_shows_where_it_has_been(page: Page, broker: Broker) -> None:
    async with Admin(broker.http_address) as admin:
        await admin.topics.configure("orders", trace="on")
    await send(broker, b"traced")
    async with Consumer("orders", "work", broker.tcp_address) as consumer:
        (await anext(consumer)).finish()
    (message_id,) = ids_of(await page.get("/messages?topic=orders"))
    text = text_of(await page.get(f"/messages/{message_id}?topic=orders"))
    assert "Where it has been" in text
    assert re.search(r"UTC work delivered 1 ", text)
    assert re.search(r"UTC work finished ", text)
    assert "work done" in text


async def test_send_again_as_it_is_and_edited(page: Page, broker: Broker) -> None:
    carried = {"tag": "t", "keys": ["k"], "headers": {"h": "v", "b": b"\xff"}, "order_key": b"\xfe"}
    await send(broker, out(b"\xffbinary", **carried), b"one\ntwo")
    edited, binary = ids_of(await page.get("/messages?topic=orders"))
    preview = await ask(page, "send_again", id=binary, topic="orders", to_topic="other")
    assert button_of(preview) == "Publish it to other"
    answer = await page.act(**form_of(preview))
    assert notice_of(answer) == (
        f"Message {binary} of orders was sent again, to other at {broker.http_address}"
    )
    async with Admin(broker.http_address) as admin:
        (read,) = (await admin.messages.read("other", 0)).values.values()
        (sent,) = read.messages
        assert sent.body == b"\xffbinary"
        assert sent.properties == {
            "tag": "t",
            "keys": ["k"],
            "headers": {"h": "v"},
            "headers_base64": {"b": "/w=="},
            "order_key_base64": "/g==",
        }
        assert "order key, base64" in await page.get("/messages?topic=other")
        html = await page.get(f"/messages/{edited}?topic=orders")
        assert '<textarea name="body" rows="8" required>\none\ntwo</textarea>' in html
        assert "Send it again, edited" not in await page.get(f"/messages/{binary}?topic=orders")
        await page.act("publish_message", topic="other", body="one\r\nthree")
        (read,) = (await admin.messages.read("other", 1)).values.values()
        assert [message.body for message in read.messages] == [b"one\nthree"]


async def test_export_of_what_is_shown(page: Page, broker: Broker) -> None:
    await send(broker, b"one", b"\xff")
    for query, key in (("from=first", "timestamp_ns"), ("channel=work", "state")):
        url = f"{page.url}/messages/export?topic=orders&{query}"
        async with page.session.get(url) as answer:
            rows = [json.loads(line) for line in (await answer.text()).splitlines()]
        assert [row.get("body") or row["body_base64"] for row in rows] == ["one", "/w=="]
        assert all(key in row for row in rows)


async def test_a_channel_of_which_no_broker_answers_is_not_exported_as_empty() -> None:
    async with page_of(["127.0.0.1:1"]) as page:
        for path in ("/messages/export", "/messages"):
            html = await page.get(f"{path}?topic=orders&channel=work", 502)
            assert "127.0.0.1:1" in html, path


async def test_who_sees_no_bodies_searches_none(broker: Broker) -> None:
    async with page_of([broker], bodies=False) as page:
        assert "searches none" in await page.get("/messages?topic=orders&text=secret", 403)


async def test_a_channel_called_messages_has_its_page(page: Page, broker: Broker) -> None:
    assert "Messages of" in await page.get("/topics/orders/messages")
    async with Admin(broker.http_address) as admin:
        await admin.channels.create("orders", "messages")
    async with page.events("/topics") as regions:
        await anext(regions)
    assert "No consumer is connected." in await page.get("/topics/orders/messages")
