"""Each action, at brokers that do it: what changes there, what the page says, what is refused."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.admin_page import (
    Page,
    broker_of,
    change,
    consumer_of,
    counts,
    lookup_daemon,
    page_of,
    publish,
)

from martlet.client.admin.http import AdminHttp
from martlet.console.pages import ACTIONS
from martlet.testing import Broker

HOUR_NS = 3_600_000_000_000
ORDERS: dict[str, Any] = {"topic": "orders"}
WORK: dict[str, Any] = {"topic": "orders", "channel": "work"}


def url(broker: Broker) -> str:
    return f"http://{broker.http_address}"


def notice(html: str) -> str:
    (text,) = re.findall(r'<p class="notice" role="status">([^<]*)</p>', html)
    return str(text)


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
    form = {"action": action, **fields}
    async with page.session.post(f"{page.url}/act", data=form, allow_redirects=False) as answer:
        assert answer.status == 303, await answer.text()
        return answer.headers["Location"].partition("notice=")[2].replace("+", " ")


async def test_pause_and_unpause_a_channel(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("pause_channel", **WORK, back="/topics/orders/work")
    assert notice(html) == "Channel work of orders was paused at 2 brokers"
    # Without JavaScript the page that follows is all that a user sees.
    assert html.count('<span class="tag">paused</span>') == 3
    assert [channel["paused"] for channel in await channels(brokers)] == [True, True]
    one = url(brokers[1])
    html = await page.act("unpause_channel", **WORK, broker=one, back="/topics/orders/work")
    assert notice(html) == f"Channel work of orders was unpaused at {brokers[1].http_address}"
    assert [channel["paused"] for channel in await channels(brokers)] == [True, False]


async def test_pause_and_unpause_a_topic(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("pause_topic", **ORDERS, broker=url(brokers[0]))
    assert notice(html) == f"Topic orders was paused at {brokers[0].http_address}"
    assert [(await counts(broker, "orders"))["paused"] for broker in brokers] == [True, False]
    assert notice(await page.act("unpause_topic", **ORDERS)) == (
        "Topic orders was unpaused at 2 brokers"
    )
    assert [(await counts(broker, "orders"))["paused"] for broker in brokers] == [False, False]


@pytest.mark.parametrize("verb", ["pause", "unpause"])
@pytest.mark.parametrize("kind", ["topic", "channel"])
async def test_a_pause_is_one_request_to_each_broker_that_has_it(
    brokers: list[Broker], requests: list[str], verb: str, kind: str
) -> None:
    first, second = brokers
    await change(first.http_address, "/topic/create?topic=alone")
    for broker in brokers:
        await change(broker.http_address, "/topic/create?topic=halved")
    await change(second.http_address, "/channel/create?topic=halved&channel=work")
    await change(first.http_address, "/channel/create?topic=alone&channel=work")
    action, path = f"{verb}_{kind}", f"/{kind}/{verb}"
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics/orders")
        requests.clear()
        assert (
            await post(page, action, **WORK)
            == f"{subject(kind, 'orders')} was {verb}d at 2 brokers"
        )
        assert sorted(requests) == sorted(f"POST {url(broker)}{path}" for broker in brokers)
        requests.clear()
        text = await post(page, action, **WORK, broker=url(second))
        assert text == f"{subject(kind, 'orders')} was {verb}d at {second.http_address}"
        assert requests == [f"POST {url(second)}{path}"]
        requests.clear()
        text = await post(page, action, topic="alone", channel="work")
        assert text == f"{subject(kind, 'alone')} was {verb}d at {first.http_address}"
        assert requests == [f"POST {url(first)}{path}"]
        if kind == "channel":
            requests.clear()
            await post(page, action, topic="halved", channel="work")
            assert requests == [f"POST {url(second)}{path}"]
        assert page.server.site.audit.entries[-1].action == action


def subject(kind: str, topic: str) -> str:
    return f"Channel work of {topic}" if kind == "channel" else f"Topic {topic}"


async def test_a_lookup_daemon_says_which_broker_gets_a_pause(requests: list[str]) -> None:
    async with (
        lookup_daemon() as lookup,
        broker_of(3, lookup=lookup.tcp_address) as broker,
        Broker(broadcast_address="127.0.0.1", lookupd_tcp_addresses=(lookup.tcp_address,)),
        page_of(lookup=lookup.http_address, poll_interval_ns=HOUR_NS) as page,
    ):
        await page.get("/topics")
        requests.clear()
        await post(page, "pause_channel", **WORK)
        assert requests == [
            f"GET http://{lookup.http_address}/lookup",
            f"POST {url(broker)}/channel/pause",
        ]


async def test_a_broker_that_got_the_topic_by_the_page_is_paused_too(
    brokers: list[Broker],
) -> None:
    await change(brokers[0].http_address, "/topic/create?topic=new")
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics/new")
        await post(page, "create_topic", topic="new")
        assert await post(page, "pause_topic", topic="new") == "Topic new was paused at 2 brokers"


async def test_a_topic_that_no_look_has_seen_is_paused(brokers: list[Broker]) -> None:
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, poll_interval_ns=HOUR_NS) as page:
        await page.get("/topics")
        await change(brokers[1].http_address, "/topic/create?topic=new")
        text = await post(page, "pause_topic", topic="new")
        assert text == f"Topic new was paused at {brokers[1].http_address}"


async def test_a_form_may_name_a_broker_that_no_look_has_seen() -> None:
    async with (
        lookup_daemon() as lookup,
        broker_of(1, lookup=lookup.tcp_address),
        page_of(lookup=lookup.http_address, poll_interval_ns=HOUR_NS) as page,
    ):
        await page.get("/topics")
        async with broker_of(1, lookup=lookup.tcp_address) as later:
            text = await post(page, "pause_topic", **ORDERS, broker=url(later))
            assert text == f"Topic orders was paused at {later.http_address}"


async def test_what_removes_no_message_reads_no_counts(
    brokers: list[Broker], requests: list[str]
) -> None:
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, poll_interval_ns=HOUR_NS) as page:
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
    assert notice(html) == (
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
    assert notice(html) == f"Topic new was emptied at {brokers[0].http_address}"
    assert (await counts(brokers[0], "new"))["depth"] == 0
    await page.act("empty_topic", **ORDERS)
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 2]


async def test_delete_a_channel_and_a_topic(page: Page, brokers: list[Broker]) -> None:
    back = "/topics/orders/work"
    html = await page.act("delete_channel", **WORK, typed="orders / work", back=back)
    assert notice(html) == "Channel work of orders was deleted at 2 brokers"
    assert "<h1>Topic orders" in html
    assert [(await counts(broker, "orders"))["channels"] for broker in brokers] == [[], []]
    html = await page.act("delete_topic", **ORDERS, typed="orders", back="/topics/orders?q=a")
    assert notice(html) == "Topic orders was deleted at 2 brokers"
    assert "<h1>Topics</h1>" in html
    assert [await counts(broker, "orders") for broker in brokers] == [{}, {}]


async def test_create_a_topic_and_a_channel(page: Page, brokers: list[Broker]) -> None:
    html = await page.act("create_topic", topic="new", queues="3", back="/topics")
    assert notice(html) == "Topic new was created at 2 brokers"
    assert [len((await counts(broker, "new"))["queues"]) for broker in brokers] == [3, 3]
    html = await page.act("create_channel", topic="new", channel="c#ephemeral", back="/topics/new")
    assert notice(html) == "Channel c#ephemeral of new was created at 2 brokers"
    assert 'href="/topics/new/c%23ephemeral"' in html
    assert "<h1>" in await page.get("/topics/new/c%23ephemeral")
    await page.act("create_topic", 400, topic="new", queues="many")


async def test_publish_a_message(page: Page, brokers: list[Broker]) -> None:
    html = await page.act(
        "publish_message", **ORDERS, broker=url(brokers[1]), body="Grüße", tag="red", keys="k1 k2",
        headers="a: b\n\nc:d", order_key="o",
    )  # fmt: skip
    assert notice(html) == f"A message was published to orders at {brokers[1].http_address}"
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 3]
    await page.act("publish_message", **ORDERS, broker=url(brokers[1]), body="x", defer="1h")
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 3]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"body": ""}, "at least one byte"),
        ({"body": "x", "headers": "no colon"}, "this line is &#39;no colon&#39;"),
        ({"body": "x", "defer": "soon"}, "deliver in:"),
        ({"body": "x", "defer": "-1s"}, "deliver in:"),
        ({"body": "x", "tag": "a\0b"}, "a\\x00b&#39; has characters"),
        ({"body": "x", "order_key": "a\r\nX-Evil: 1"}, "has characters"),
        ({"body": "x", "headers": "a\x7f: b"}, "has characters"),
    ],
)
async def test_a_message_that_cannot_be_published(
    page: Page, brokers: list[Broker], fields: dict[str, str], problem: str
) -> None:
    assert problem in await page.act("publish_message", 400, **ORDERS, **fields)
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 2]


async def test_several_topics_at_once(page: Page, brokers: list[Broker]) -> None:
    for name in ("a", "b"):
        await change(brokers[0].http_address, f"/topic/create?topic={name}")
    query = urlencode({"action": "pause_topic", "topics": ["a", "b"]}, doseq=True)
    preview = await page.get(f"/confirm?{query}")
    assert "Pause 2 topics on 1 broker" in preview
    assert "a, b" in preview
    html = await page.act("pause_topic", topics=["a", "none", "b"], back="/topics")
    assert notice(html).startswith(
        f"Topic b was paused at {brokers[0].http_address}, and so was 1 other topic,"
        " but 1 topic failed:"
    )
    assert (await counts(brokers[0], "a"))["paused"]
    assert "2 topics" in await page.act("delete_topic", 400, topics=["a", "b"], typed="a")
    await page.act("delete_topic", topics=["a", "b"], typed="2 topics")
    assert [await counts(brokers[0], name) for name in ("a", "b")] == [{}, {}]
    await page.act("pause_topic", 502, topics=["none", "other"])


async def test_confirmations_have_the_numbers(page: Page, brokers: list[Broker]) -> None:
    one = urlencode({**WORK, "action": "empty_channel", "broker": url(brokers[0])})
    everywhere = urlencode({**WORK, "action": "empty_channel"})
    topic = urlencode({**ORDERS, "action": "delete_topic"})
    async with consumer_of(brokers[0], client_id="c"), consumer_of(brokers[1], client_id="d"):
        preview = await page.get(f"/confirm?{one}")
        assert f"Empty 3 messages on {brokers[0].http_address}</button>" in preview
        assert 'name="typed"' not in preview
        assert "Empty 5 messages on 2 brokers</button>" in await page.get(f"/confirm?{everywhere}")
        preview = await page.get(f"/confirm?{topic}")
    assert "Delete topic orders with 5 messages on 2 brokers</button>" in preview
    assert "1 channel and all policies are deleted, too" in preview
    assert "<code>orders</code>" in preview
    assert 'name="typed" required' in preview


async def test_a_count_that_grew_while_a_user_read_it_wants_the_name(
    page: Page, brokers: list[Broker]
) -> None:
    preview = await page.get("/confirm?action=empty_channel&topic=orders&channel=work")
    assert 'name="typed"' not in preview
    await publish(brokers[0], "orders", 996)
    preview = await page.get("/confirm?action=empty_channel&topic=orders&channel=work")
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
    await page.get(f"/confirm?{urlencode({'action': 'delete_topic', 'topic': name})}", 400)


@pytest.mark.parametrize(
    "broker", ["http://127.0.0.1:1", "http://evil.example", "127.0.0.1:4151", "file:///etc/passwd"]
)
async def test_no_token_goes_to_an_address_that_a_form_makes_up(page: Page, broker: str) -> None:
    assert "there is no broker" in await page.act("pause_topic", 400, **ORDERS, broker=broker)


async def test_other_forms_that_are_wrong(page: Page) -> None:
    assert "there is no action &#39;explode&#39;" in await page.act("explode", 400, **ORDERS)
    assert "no topic was chosen" in await page.act("pause_topic", 400)
    many = [f"t{number}" for number in range(501)]
    assert "the maximum is 500" in await page.act("pause_topic", 400, topics=many)
    assert "asks no lookup daemon" in await page.act("register", 400, topic="new")
    with open("/dev/null", "rb") as file:
        answer = await page.session.post(f"{page.url}/act", data={"action": file})
    async with answer:
        assert answer.status == 400
    large, kind = io.BytesIO(b"body=" + bytes(3 << 20)), "application/x-www-form-urlencoded"
    async with page.session.post(
        f"{page.url}/act", data=large, headers={"Content-Type": kind}
    ) as answer:
        assert answer.status == 413
    await page.act("pause_topic", 502, topic="unknown")


@pytest.mark.parametrize(
    "back",
    ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)",
     "\\\\evil.example", "/\t/evil.example", "evil", "/elsewhere/topics"],
)  # fmt: skip
async def test_a_form_leads_to_no_other_site(brokers: list[Broker], back: str) -> None:
    async with page_of([brokers[0].http_address], base_path="/in") as page:
        form = {"action": "pause_topic", **ORDERS, "back": back}
        async with page.session.post(f"{page.url}/act", data=form, allow_redirects=False) as answer:
            assert answer.status == 303
            assert answer.headers["Location"].startswith("/in/?notice=")


async def test_a_broker_that_does_not_do_it_is_named(brokers: list[Broker]) -> None:
    addresses = [brokers[0].http_address, "127.0.0.1:1"]
    async with page_of(addresses) as page:
        preview = await page.get("/confirm?action=empty_channel&topic=orders&channel=work")
        assert "Nothing happens at 127.0.0.1:1" in preview
        text = notice(await page.act("pause_channel", **WORK))
    assert text.startswith(f"Channel work of orders was paused at {brokers[0].http_address}, but")
    assert "127.0.0.1:1: connection refused" in text


async def test_those_who_may_not_act_are_refused(brokers: list[Broker], tmp_path: Path) -> None:
    file = tmp_path / "audit"
    addresses = [broker.http_address for broker in brokers]
    async with page_of(addresses, admin_users=("ann",), audit_file=str(file)) as page:
        for name in ACTIONS:
            form: dict[str, Any] = {**WORK, "typed": "orders", "body": "x"}
            assert "may not act" in await page.act(name, 403, **form)
        await page.get("/confirm?action=empty_topic&topic=orders", 403)
        page.session.headers["X-Forwarded-User"] = "ann"
        await page.act("pause_channel", **WORK)
        shown = await page.get("/audit?q=ann")
    assert [channel["depth"] for channel in await channels(brokers)] == [3, 2]
    (entry,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (entry["action"], entry["user"], entry["result"]) == ("pause_channel", "ann", "done")
    refused = (tmp_path / "audit.refused").read_text().splitlines()
    assert {json.loads(line)["result"] for line in refused} == {"refused"}
    assert "Channel work of orders was paused at 2 brokers" in shown


async def test_a_lookup_daemons_topics() -> None:
    async with (
        lookup_daemon() as lookup,
        broker_of(3, lookup=lookup.tcp_address) as broker,
        page_of(lookup=lookup.http_address) as page,
    ):
        html = await page.act("register", topic="later", channel="", back="/lookup")
        assert notice(html) == "Topic later was created at 1 lookup daemon"
        assert '<th scope="row">later</th>' in html
        html = await page.act("register", topic="later", channel="first", back="/lookup")
        assert notice(html) == "Channel first of later was created at 1 lookup daemon"
        assert "<td>first</td>" in html
        html = await page.act("register", topic="orders", channel="more", back="/lookup")
        assert notice(html) == "Channel more of orders was created at 1 broker and 1 lookup daemon"
        after = (await counts(broker, "orders"))["channels"]
        assert "more" in {channel["channel_name"] for channel in after}
        html = await page.act("delete_topic", topic="later", typed="later", back="/lookup")
        assert notice(html) == "Topic later was deleted at 1 lookup daemon"
        assert "None: each topic that a daemon knows has a broker." in html


async def test_a_broker_is_hidden_from_lookups() -> None:
    async with (
        lookup_daemon() as lookup,
        broker_of(3, lookup=lookup.tcp_address) as broker,
        page_of(lookup=lookup.http_address) as page,
    ):
        node = f"/nodes/{broker.http_address}"
        assert 'value="tombstone_topic_producer"' in await page.get(node)
        form: dict[str, Any] = {"topic": "orders", "broker": url(broker), "back": node}
        query = urlencode({"action": "tombstone_topic_producer", **form})
        preview = await page.get(f"/confirm?{query}")
        assert f"Hide topic orders of {broker.http_address}</button>" in preview
        html = await page.act("tombstone_topic_producer", **form)
        assert notice(html) == (
            f"Topic orders of {broker.http_address} was hidden at 1 lookup daemon"
        )
        assert not lookup.registry.producers("orders")
        await page.act("tombstone_topic_producer", 400, topic="orders")
