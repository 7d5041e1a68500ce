"""Each page of the admin, over HTTP and in front of two brokers."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import AsyncExitStack

import aiohttp
import pytest
from tests.admin_page import (
    EVENTS,
    Links,
    Page,
    broker_of,
    change,
    consumer_of,
    looked_up,
    page_of,
    publish,
    two_brokers,
    until,
)
from tests.unit.console.pages.asking import text_of

from martlet.console import site as site_module
from martlet.testing import Broker, BrokerProcess

PAGES = (
    *("/", "/topics", "/topics/orders", "/topics/orders/work", "/nodes", "/lookup", "/counter"),
    *("/jobs", "/audit", "/confirm?action=empty_topic&topic=orders"),
)
ANN = ("ann", "10.0.0.1")
STRANGERS = [("", f"10.0.0.{number}") for number in (2, 3, 4, 5)]
NAVIGATION = (
    "/",
    "/topics",
    "/messages",
    "/dead",
    "/delayed",
    "/groups",
    "/transactions",
    "/nodes",
    "/lookup",
    "/jobs",
    "/counter",
    "/audit",
)


async def test_numbers_are_those_of_all_brokers(page: Page, brokers: list[Broker]) -> None:
    first, second = (broker.http_address for broker in brokers)
    overview = text_of(await page.get("/"))
    assert "5 waiting" in overview
    assert f"{first} healthy" in overview
    assert "orders / work 5" in overview, "the longest queue"
    topics = text_of(await page.get("/topics"))
    assert "orders 5 0 0 1 1 0 5 " in topics
    topic = text_of(await page.get("/topics/orders"))
    assert "5 waiting" in topic
    assert "5 published" in topic
    assert f"{first} 0 3 1 1 Pause Empty… Delete…" in topic
    assert f"{second} 0 2 1 1 Pause Empty… Delete…" in topic
    channel = text_of(await page.get("/topics/orders/work"))
    assert f"{first} 3 0 0 0 0 0 3 0 Pause Empty… Delete…" in channel
    assert "No consumer is connected." in channel
    nodes = text_of(await page.get("/nodes"))
    assert re.search(rf"{first} healthy Martlet \S+ \S+ \S+ 1 3 0 [\d.]+ MB [\d.]+ GB", nodes)
    node = text_of(await page.get(f"/nodes/{second}"))
    assert "orders 0 2 1" in node
    assert text_of(await page.get("/counter")).count("5 messages that all channels") == 1
    assert "Nothing was done yet." in await page.get("/audit")
    assert "asks brokers by their addresses" in await page.get("/lookup")


async def test_a_channel_shows_its_consumers(page: Page, brokers: list[Broker]) -> None:
    async with page.events("/topics/orders/work") as regions:
        await until(regions, "No consumer is connected.")
        async with consumer_of(brokers[0], client_id="clerk-7", user_agent="agent/1\u202e"):
            region = text_of(await until(regions, "clerk-7"))
            assert f" {brokers[0].http_address} 0 0 0 0 " in region
            assert "agent/1\\u202e no" in region
            assert "1 consumer " in region
            assert "clerk-7" not in await page.get("/topics/orders/work?q=another")
        await until(regions, "No consumer is connected.")


async def test_no_link_is_dead_under_any_base_path(brokers: list[Broker]) -> None:
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, base_path="/in/martlet") as page:
        seen, waiting = set(), {"/in/martlet/"}
        root = page.url.removesuffix("/in/martlet")
        while waiting:
            link = waiting.pop()
            seen.add(link)
            if link == "/in/martlet/act":
                continue  # Forms alone go there.
            assert link.startswith(("/in/martlet/", "#")), link
            async with page.session.get(root + link) as answer:
                assert answer.status == (200 if link != "/in/martlet/confirm" else 400), link
                html = await answer.text() if answer.content_type == "text/html" else ""
            if len(seen) < 200:
                links = {link for link in Links(html).found if not link.startswith("#")}
                waiting |= links - seen
        pages = {link.removeprefix("/in/martlet").partition("?")[0] for link in seen}
        expected = {*NAVIGATION, "/topics/orders", "/topics/orders/work", "/data/orders/work"}
        assert expected <= pages
        assert f"/nodes/{addresses[0]}" in {page.replace("%3A", ":") for page in pages}
        async with page.session.get(root + "/") as answer:
            assert answer.status == 404


async def test_the_navigation_has_the_pages_and_no_other(page: Page) -> None:
    html = await page.get("/")
    navigation = html[html.index("<nav") : html.index("</nav>")]
    assert re.findall(r'href="([^"]+)"', navigation) == list(NAVIGATION)
    for path in NAVIGATION:
        assert f'href="{path}"' in navigation
        shown = await page.get(path)
        (current,) = re.findall(r'href="([^"]+)" data-keys="..." aria-current="page"', shown)
        assert current == path


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/topics/none", "/topics/orders/none", "/nodes/h:1", "/dead/none",
     "/topics/%00", "/topics/a%2Fb", "/topics/orders/billing/more", "/../server.py"],
)  # fmt: skip
async def test_what_is_not_there_is_a_page_with_404(page: Page, path: str) -> None:
    html = await page.get(path, 404)
    assert 'aria-label="Pages"' in html


async def test_a_region_follows_each_look(page: Page, brokers: list[Broker]) -> None:
    async with page.events("/topics") as regions:
        await until(regions, '<td class="n">5</td>')
        await publish(brokers[1], "orders", 40)
        region = await until(regions, '<td class="n">45</td>')
    assert "<html" not in region
    assert "<h1>Topics</h1>" in region


async def test_a_topic_that_is_deleted_says_so_and_comes_back(
    page: Page, brokers: list[Broker]
) -> None:
    async with page.events("/topics/orders") as regions:
        await until(regions, "Topic orders")
        for broker in brokers:
            await change(broker.http_address, "/topic/delete?topic=orders")
        await until(regions, "no broker that answers has a topic &#39;orders&#39;")
        await change(brokers[0].http_address, "/topic/create?topic=orders")
        await until(regions, "Topic orders")


async def test_a_killed_broker_is_named_and_the_others_stay(one_broker: Broker) -> None:
    with BrokerProcess() as killed:
        await change(killed.http_address, "/topic/create?topic=payments")
        async with page_of([one_broker, killed]) as page, page.events("/") as regions:
            await until(regions, "healthy")
            killed.kill()
            region = await until(regions, "1 of 2 brokers answer")
            assert f"<b>{killed.http_address}</b>: connection refused" in region
            assert "<b>3</b> waiting" in region
            killed.restart()
            await until(regions, "<b>2</b> topics")


async def test_a_broker_that_lookup_daemons_forget_is_named() -> None:
    async with looked_up(3) as (lookup, _, page), page.events("/") as regions:
        async with broker_of(2, lookup=lookup.tcp_address) as second:
            stopped = second.http_address
            await until(regions, "<b>5</b> waiting")
        region = await until(regions, "1 of 2 brokers answer")
        assert f"<b>{stopped}</b>" in region
        assert "<b>3</b> waiting" in region
        assert stopped in await page.get(f"/nodes/{stopped}")


async def test_all_brokers_are_away() -> None:
    async with AsyncExitStack() as stack:
        async with two_brokers() as brokers:
            page = await stack.enter_async_context(page_of(brokers))
            await page.get("/")
        async with page.events("/nodes") as regions:
            region = await until(regions, "No broker answers")
        assert region.count("refused") >= 2
        for path in ("/", "/topics", "/nodes", "/counter"):
            assert "No broker answers" in await page.get(path)
        await page.get("/topics/orders", 404)


@pytest.mark.parametrize("limit", ["MAX_STREAMS", "MAX_STREAMS_OF_ONE"])
async def test_the_oldest_page_of_who_has_most_makes_room_for_another(
    page: Page, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, limit, 2)
    async with page.events("/topics") as oldest, page.events("/nodes") as second:
        await anext(oldest)
        await anext(second)
        async with page.events("/") as newest:
            await anext(newest)
            with pytest.raises(aiohttp.ClientError):
                await until(oldest, "what no region has")
            await anext(second)
            assert "Overview" in await page.get("/")


@pytest.mark.parametrize(
    ("limit", "owners", "later", "ended"),
    [
        (3, [ANN, STRANGERS[0], STRANGERS[0]], [ANN], [0, 1, 0]),
        (4, [ANN, ANN, *STRANGERS[:2]], STRANGERS[2:], [0, 0, 1, 1]),
    ],
    ids=["many live pages", "many addresses"],
)
async def test_who_has_many_live_pages_or_addresses_takes_none_of_a_user(
    page: Page,
    limit: int,
    owners: list[tuple[str, str]],
    later: list[tuple[str, str]],
    ended: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(site_module, "MAX_STREAMS", limit)
    site = page.server.site
    waits = [asyncio.create_task(asyncio.Event().wait()) for _ in (*owners, *later)]
    site.streams |= dict(zip(waits, owners, strict=False))
    for task, owner in zip(waits[len(owners) :], later, strict=True):
        site._make_room(owner)
        site.streams[task] = owner
    assert [wait.cancelling() for wait in waits[: len(owners)]] == ended
    for wait in waits:
        wait.cancel()
    site.streams.clear()


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "localhost"),
        ("127.8.9.10", "localhost"),
        ("::1", "localhost"),
        ("::ffff:127.0.0.9", "localhost"),
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:2", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_a_machine_with_many_addresses_is_of_one_network(address: str, network: str) -> None:
    assert site_module._network(address) == network


async def test_a_live_page_that_is_not_read_makes_room(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_module, "MAX_STREAMS", 1)
    monkeypatch.setattr(site_module, "_UNREAD_S", 0.1)
    monkeypatch.setattr(
        site_module, "_event", lambda html: b"data: more than buffers\n" * 1_000_000
    )
    host, _, port = page.server.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n".encode())
    with contextlib.closing(writer):
        await asyncio.sleep(0.5)  # The first look, and the time to read it, are over.
        async with asyncio.timeout(50):
            while True:
                async with page.session.get(f"{page.url}/", headers=EVENTS) as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.05)


async def test_filter_sort_and_page_are_in_the_address(brokers: list[Broker]) -> None:
    address = brokers[0].http_address
    for number in range(55):
        await change(address, f"/topic/create?topic=t{number:02}")
    async with page_of([address]) as page:
        shown = await page.get("/topics?sort=name&page=2")
        assert re.findall(r'<tr id="topic-(\w+)"', shown) == [f"t{at}" for at in range(49, 55)]
        assert "Page 2 of 2" in shown
        filtered = await page.get("/topics?q=T1&sort=-name")
        assert re.findall(r'<tr id="topic-(\w+)"', filtered)[0] == "t19"
        assert "10 of 56 topics" in text_of(filtered)
        nothing = await page.get("/topics?q=%3Cscript%3E%E2%80%AE")
        assert "&lt;script&gt;\\u202e" in nothing
        assert "<script>" not in nothing


async def test_the_history_is_given_to_plots(page: Page) -> None:
    await page.get("/")
    async with page.session.get(f"{page.url}/data/orders/work") as answer:
        times, came, done, depth = await answer.json()
    assert len(times) == len(came) == len(done) == 1
    assert depth == [5.0]


async def test_every_answer_forbids_what_the_page_does_not_need(page: Page) -> None:
    for path in (*PAGES, "/static/admin.js", "/static/admin.css", "/data", "/nothing", "/ping"):
        async with page.session.get(page.url + path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            html = await answer.text()
        if answer.content_type == "text/html":
            assert " style=" not in html
            assert not re.search(r"<script(?! src=)| on[a-z]+=|hx-on|javascript:", html)


async def test_a_proxy_may_ask_for_its_health(page: Page) -> None:
    assert await page.get("/ping") == "OK"


async def test_an_address_that_is_taken_is_named(page: Page) -> None:
    with pytest.raises(
        OSError, match=rf"listen \({page.server.address}\) failed: .* with --http-address"
    ):
        async with page_of(["127.0.0.1:1"], http_address=page.server.address):
            raise AssertionError("it listens")
