"""Each action, at brokers that do it: what changes there, what the page says, what is refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tests.admin_page import (
    Page,
    broker_of,
    change,
    consumer_of,
    counts,
    looked_up,
    page_of,
    publish,
)
from tests.unit.console.pages.asking import ask, notice_of

from martlet.client.admin.http import AdminHttp
from martlet.testing import Broker

HOUR_NS = 3_600_000_000_000
ORDERS: dict[str, Any] = {"topic": "orders"}
WORK: dict[str, Any] = {"topic": "orders", "channel": "work"}


def url(broker: Broker) -> str:
    return f"http://{broker.http_address}"


async def channels(brokers: list[Broker]) -> list[dict[str, Any]]:
    """What each broker says of the channel work."""
    return [(await counts(broker, "orders"))["channels"][0] for broker in brokers]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that the page sends, as ``METHOD URL``."""
    sent: list[str] = []
    exchange = AdminHttp._exchange

    async def counted(
        http: AdminHttp, method: str, url: str, path: str, *more: Any, **named: Any
    ) -> Any:
        sent.append(f"{method} {url}{path}")
        return await exchange(http, method, url, path, *more, **named)

    monkeypatch.setattr(AdminHttp, "_exchange", counted)
    return sent


async def post(page: Page, action: str, **fields: str) -> str:
    """Send the form of an action, and return what the next page would tell."""
    answer = await page.ask("POST", "/act", {"action": action, **fields})
    assert answer.status == 303, answer.text
    return answer.headers["Location"].partition("notice=")[2].replace("+", " ")


async def test_pause_and_unpause_a_channel(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("pause_channel", **WORK, back="/topics/orders/work")
    assert notice_of(html) == "Channel work of orders was paused at 2 brokers"
    # Without JavaScript the page that follows is all that a user sees.
    assert html.count('<span class="tag">paused</span>') == 3
    assert [channel["paused"] for channel in await channels(brokers)] == [True, True]
    one = url(brokers[1])
    html = await page.act("unpause_channel", **WORK, broker=one, back="/topics/orders/work")
    assert notice_of(html) == f"Channel work of orders was unpaused at {brokers[1].http_address}"
    assert [channel["paused"] for channel in await channels(brokers)] == [True, False]


async def test_pause_and_unpause_a_topic(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("pause_topic", **ORDERS, broker=url(brokers[0]))
    assert notice_of(html) == f"Topic orders was paused at {brokers[0].http_address}"
    assert [(await counts(broker, "orders"))["paused"] for broker in brokers] == [True, False]
    assert notice_of(await page.act("unpause_topic", **ORDERS)) == (
        "Topic orders was unpaused at 2 brokers"
    )
    assert [(await counts(broker, "orders"))["paused"] for broker in brokers] == [False, False]


@pytest.mark.parametrize("verb", ["pause", "unpause"])
@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_a_pause_is_one_request_to_each_broker_that_has_it(
    brokers: list[Broker], requests: list[str], verb: str, kind: str
) -> None:
    first, second = brokers
    for path in ("/topic/create?topic=alone", "/channel/create?topic=alone&channel=work"):
        await change(first.http_address, path)
    for broker in brokers:
        await change(broker.http_address, "/topic/create?topic=halved")
    await change(second.http_address, "/channel/create?topic=halved&channel=work")
    async with page_of(brokers, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics/orders")
        for topic, fields, asked in (
            ("orders", {}, brokers),
            ("orders", {"broker": url(second)}, [second]),
            ("alone", {}, [first]),
            ("halved", {}, brokers if kind == "topic" else [second]),
        ):
            requests.clear()
            text = await post(page, f"{verb}_{kind}", **{**WORK, "topic": topic}, **fields)
            subject = f"Channel work of {topic}" if kind == "channel" else f"Topic {topic}"
            where = "2 brokers" if len(asked) == 2 else asked[0].http_address
            assert text == f"{subject} was {verb}d at {where}"
            assert sorted(requests) == sorted(f"POST {url(one)}/{kind}/{verb}" for one in asked)
        assert page.server.site.audit.entries[-1].action == f"{verb}_{kind}"


async def test_a_lookup_daemon_says_which_broker_gets_a_pause(requests: list[str]) -> None:
    async with (
        looked_up(3, poll_interval_ns=HOUR_NS) as (lookup, broker, page),
        Broker(broadcast_address="127.0.0.1", lookupd_tcp_addresses=(lookup.tcp_address,)),
    ):
        await page.get("/topics")
        requests.clear()
        await post(page, "pause_channel", **WORK)
        assert requests == [
            f"GET http://{lookup.http_address}/lookup",
            f"POST {url(broker)}/channel/pause",
        ]


async def test_a_broker_that_got_the_topic_by_the_page_is_paused_too(brokers: list[Broker]) -> None:
    await change(brokers[0].http_address, "/topic/create?topic=new")
    async with page_of(brokers, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics/new")
        await post(page, "create_topic", topic="new")
        text = await post(page, "pause_topic", topic="new")
        assert text == "Topic new was paused at 2 brokers"


async def test_a_topic_that_no_look_has_seen_is_paused(brokers: list[Broker]) -> None:
    async with page_of(brokers, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics")
        await change(brokers[1].http_address, "/topic/create?topic=new")
        text = await post(page, "pause_topic", topic="new")
        assert text == f"Topic new was paused at {brokers[1].http_address}"


async def test_a_form_may_name_a_broker_that_no_look_has_seen() -> None:
    async with looked_up(1, poll_interval_ns=HOUR_NS) as (lookup, _, page):
        await page.get("/topics")
        async with broker_of(1, lookup=lookup.tcp_address) as later:
            text = await post(page, "pause_topic", **ORDERS, broker=url(later))
            assert text == f"Topic orders was paused at {later.http_address}"


async def test_what_removes_no_message_reads_no_counts(
    brokers: list[Broker], requests: list[str]
) -> None:
    async with page_of(brokers, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics/orders")
        requests.clear()
        await post(page, "publish_message", **ORDERS, body="x")
        assert requests == [f"POST {url(brokers[0])}/pub"]
        requests.clear()
        await post(page, "create_channel", topic="orders", channel="more")
        assert sorted(requests) == sorted(
            f"POST {url(broker)}/channel/create" for broker in brokers
        )


async def test_empty_a_channel(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("empty_channel", **WORK, broker=url(brokers[0]))
    assert notice_of(html) == (
        f"Channel work of orders was emptied at {brokers[0].http_address};"
        " it can be undone on the page of the channel"
    )
    assert [channel["depth"] for channel in await channels(brokers)] == [0, 2]
    await page.act("empty_channel", **WORK)
    assert [channel["depth"] for channel in await channels(brokers)] == [0, 0]


async def test_empty_a_topic_leaves_its_channels(page: Page, brokers: list[Broker]) -> None:
    await change(brokers[0].http_address, "/topic/create?topic=new")
    await publish(brokers[0], "new", 4)
    html = await page.act("empty_topic", topic="new")
    assert notice_of(html) == f"Topic new was emptied at {brokers[0].http_address}"
    assert (await counts(brokers[0], "new"))["depth"] == 0
    await page.act("empty_topic", **ORDERS)
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 2]


async def test_delete_a_channel_and_a_topic(page: Page, brokers: list[Broker]) -> None:
    back = "/topics/orders/work"
    await page.act("delete_channel", **WORK, typed="orders / work", broker=url(brokers[0]))
    assert [len((await counts(one, "orders"))["channels"]) for one in brokers] == [0, 1]
    html = await page.act("delete_channel", **WORK, typed="orders / work", back=back)
    assert notice_of(html) == f"Channel work of orders was deleted at {brokers[1].http_address}"
    assert "<h1>Topic orders" in html
    assert [(await counts(broker, "orders"))["channels"] for broker in brokers] == [[], []]
    html = await page.act("delete_topic", **ORDERS, typed="orders", back="/topics/orders?q=a")
    assert notice_of(html) == "Topic orders was deleted at 2 brokers"
    assert "<h1>Topics</h1>" in html
    assert [await counts(broker, "orders") for broker in brokers] == [{}, {}]


async def test_create_a_topic_and_a_channel(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("create_topic", topic="new", queues="3", back="/topics")
    assert notice_of(html) == "Topic new was created at 2 brokers"
    assert [len((await counts(broker, "new"))["queues"]) for broker in brokers] == [3, 3]
    html = await page.act("create_channel", topic="new", channel="c#ephemeral", back="/topics/new")
    assert notice_of(html) == "Channel c#ephemeral of new was created at 2 brokers"
    assert 'href="/topics/new/c%23ephemeral"' in html
    assert "<h1>" in await page.get("/topics/new/c%23ephemeral")


async def test_publish_a_message(page: Page, brokers: list[Broker]) -> None:
    html = await page.act(
        "publish_message", **ORDERS, broker=url(brokers[1]), body="Grüße", tag="red", keys="k1 k2",
        headers="a: b\n\nc:d", order_key="o",
    )  # fmt: skip
    assert notice_of(html) == f"A message was published to orders at {brokers[1].http_address}"
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 3]
    await page.act("publish_message", **ORDERS, broker=url(brokers[1]), body="x", defer="1h")
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 3]


async def test_several_topics_at_once(page: Page, brokers: list[Broker]) -> None:
    for name in ("a", "b"):
        await change(brokers[0].http_address, f"/topic/create?topic={name}")
    preview = await ask(page, "pause_topic", topics=["a", "b"])
    assert "Pause 2 topics on 1 broker" in preview
    assert "a, b" in preview
    html = await page.act("pause_topic", topics=["a", "none", "b"], back="/topics")
    assert notice_of(html).startswith(
        f"Topic b was paused at {brokers[0].http_address}, and so was 1 other topic,"
        " but 1 topic failed:"
    )
    assert (await counts(brokers[0], "a"))["paused"]
    assert "2 topics" in await page.act("delete_topic", 400, topics=["a", "b"], typed="a")
    await page.act("delete_topic", topics=["a", "b"], typed="2 topics")
    assert [await counts(brokers[0], name) for name in ("a", "b")] == [{}, {}]
    await page.act("pause_topic", 502, topics=["none", "other"])


async def test_confirmations_have_the_numbers(page: Page, brokers: list[Broker]) -> None:
    async with consumer_of(brokers[0], client_id="c"), consumer_of(brokers[1], client_id="d"):
        preview = await ask(page, "empty_channel", **WORK, broker=url(brokers[0]))
        assert f"Empty 3 messages on {brokers[0].http_address}</button>" in preview
        assert 'name="typed"' not in preview
        everywhere = await ask(page, "empty_channel", **WORK)
        assert "Empty 5 messages on 2 brokers</button>" in everywhere
        preview = await ask(page, "delete_topic", **ORDERS)
    assert "Delete topic orders with 5 messages on 2 brokers</button>" in preview
    assert "1 channel and all policies are deleted, too" in preview
    assert "<code>orders</code>" in preview
    assert 'name="typed" required' in preview


async def test_a_count_that_grew_while_a_user_read_it_wants_the_name(
    page: Page, brokers: list[Broker]
) -> None:
    preview = await ask(page, "empty_channel", **WORK)
    assert 'name="typed"' not in preview
    await publish(brokers[0], "orders", 996)
    preview = await ask(page, "empty_channel", **WORK)
    assert "Empty 1,001 messages on 2 brokers</button>" in preview
    assert 'name="typed" required' in preview
    refused = await page.act("empty_channel", 400, **WORK)
    assert "Empty 1,001 messages on 2 brokers: type &#39;orders / work&#39; to confirm" in refused
    await page.act("empty_channel", 400, **WORK, typed="orders/work")
    assert [channel["depth"] for channel in await channels(brokers)] == [999, 2]
    await page.act("empty_channel", **WORK, typed=" orders / work ")
    assert [channel["depth"] for channel in await channels(brokers)] == [0, 0]


@pytest.mark.parametrize("name", ["delete_topic", "delete_channel"])
@pytest.mark.parametrize("typed", ["", "order", "ORDERS", "work"])
async def test_a_deletion_without_its_name_is_refused(
    page: Page, brokers: list[Broker], name: str, typed: str
) -> None:
    assert "to confirm" in await page.act(name, 400, **WORK, typed=typed)
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 2]


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "../stats", "a" * 65, "<script>", "a\0", "\u202e", "a?b=c", "%61"]
)
async def test_a_name_that_is_none_is_refused(page: Page, name: str) -> None:
    shown = await page.act("create_topic", 400, topic=name)
    assert "<script>" not in shown
    assert "no name of a topic" in shown or name == ""
    await page.act("create_channel", 400, topic="orders", channel=name)
    await ask(page, "delete_topic", 400, topic=name)


@pytest.mark.parametrize(
    "broker", ["http://127.0.0.1:1", "http://evil.example", "127.0.0.1:4151", "file:///etc/passwd"]
)
async def test_no_token_goes_to_an_address_that_a_form_makes_up(page: Page, broker: str) -> None:
    assert "there is no broker" in await page.act("pause_topic", 400, **ORDERS, broker=broker)


async def test_other_forms_that_are_wrong(page: Page) -> None:
    with open("/dev/null", "rb") as file:
        assert (await page.ask("POST", "/act", {"action": file})).status == 400
    large, kind = io.BytesIO(b"body=" + bytes(3 << 20)), "application/x-www-form-urlencoded"
    assert (await page.ask("POST", "/act", large, **{"Content-Type": kind})).status == 413
    await page.act("pause_topic", 502, topic="unknown")


@pytest.mark.parametrize(
    "back",
    ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)",
     "\\\\evil.example", "/\t/evil.example", "evil", "/elsewhere/topics"],
)  # fmt: skip
async def test_a_form_leads_to_no_other_site(brokers: list[Broker], back: str) -> None:
    async with page_of([brokers[0]], base_path="/in") as page:
        answer = await page.ask("POST", "/act", {"action": "pause_topic", **ORDERS, "back": back})
        assert answer.status == 303
        assert answer.headers["Location"].startswith("/in/?notice=")


async def test_a_broker_that_does_not_do_it_is_named(brokers: list[Broker]) -> None:
    addresses = [brokers[0].http_address, "127.0.0.1:1"]
    async with page_of(addresses) as page:
        preview = await ask(page, "empty_channel", **WORK)
        assert "Nothing happens at 127.0.0.1:1" in preview
        text = notice_of(await page.act("pause_channel", **WORK))
    assert text.startswith(f"Channel work of orders was paused at {brokers[0].http_address}, but")
    assert "127.0.0.1:1: connection refused" in text


async def test_a_lookup_daemons_topics() -> None:
    async with looked_up(3) as (_, broker, page):
        html = await page.act("register", topic="later", channel="", back="/lookup")
        assert notice_of(html) == "Topic later was created at 1 lookup daemon"
        assert '<th scope="row">later</th>' in html
        html = await page.act("register", topic="later", channel="first", back="/lookup")
        assert notice_of(html) == "Channel first of later was created at 1 lookup daemon"
        assert "<td>first</td>" in html
        html = await page.act("register", topic="orders", channel="more", back="/lookup")
        assert notice_of(html).endswith("was created at 1 broker and 1 lookup daemon")
        after = (await counts(broker, "orders"))["channels"]
        assert "more" in {channel["channel_name"] for channel in after}
        html = await page.act("delete_topic", topic="later", typed="later", back="/lookup")
        assert notice_of(html) == "Topic later was deleted at 1 lookup daemon"
        assert "None: each topic that a daemon knows has a broker." in html


async def test_a_broker_is_hidden_from_lookups() -> None:
    async with looked_up(3) as (lookup, broker, page):
        node = f"/nodes/{broker.http_address}"
        assert 'value="tombstone_topic_producer"' in await page.get(node)
        form: dict[str, Any] = {"topic": "orders", "broker": url(broker), "back": node}
        preview = await ask(page, "tombstone_topic_producer", **form)
        assert f"Hide topic orders of {broker.http_address}</button>" in preview
        html = await page.act("tombstone_topic_producer", **form)
        assert notice_of(html) == (
            f"Topic orders of {broker.http_address} was hidden at 1 lookup daemon"
        )
        assert not lookup.registry.producers("orders")
        await page.act("tombstone_topic_producer", 400, topic="orders")
