"""Every route of the page as every role: none does more than its role, and none has no class."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.admin_page import Page, counts, page_of

from martlet.client import Admin, Consumer, Producer
from martlet.console.pages import ACTIONS
from martlet.console.server import AdminServer
from martlet.console.site import Site
from martlet.options.admin import AdminOptions
from martlet.pipeline.html_page import Page as JobPage
from martlet.pipeline.html_page import Text
from martlet.testing import Broker

SECRET = "secret-of-a-message"
ROLES = ("viewer", "reader", "operator")
NAMED: dict[str, Any] = {"admin_users": ("operator",), "reader_users": ("reader",)}

NUMBERS = {
    "/": "/",
    "/topics": "/topics",
    "/topics/{topic}": "/topics/orders",
    "/topics/{topic}/{channel}": "/topics/orders/work",
    "/nodes": "/nodes",
    "/nodes/{node}": "/nodes/BROKER",
    "/lookup": "/lookup",
    "/counter": "/counter",
    "/audit": "/audit",
    "/data": "/data",
    "/data/{topic}": "/data/orders",
    "/data/{topic}/{channel}": "/data/orders/work",
    "/dead": "/dead",
    "/groups": "/groups",
    "/groups/{topic}/{group}": "/groups/orders/group",
    "/transactions": "/transactions",
    "/jobs": "/jobs",
    "/settings": "/settings?topic=orders",
    "/ping": "/ping",
    "/static/{name}": "/static/admin.css",
    "/api/topics": "/api/topics",
    "/api/topics/{topic}": "/api/topics/orders",
    "/api/topics/{topic}/{channel}": "/api/topics/orders/work",
    "/api/nodes": "/api/nodes",
    "/api/nodes/{node}": "/api/nodes/BROKER",
    "/api/counter": "/api/counter",
    "/api/graphite": "/api/graphite?metric=rate&target=x",
    "/config/{name}": "/config/admin_users",
}
"""What every user may read, and that has nothing of messages."""
PARTS = {
    "/messages": "/messages?topic=orders",
    "/messages/{id}": "/messages/MESSAGE?topic=orders",
    "/dead/letters": "/dead/letters?topic=orders&channel=work",
    "/delayed": "/delayed?topic=orders",
    "/transactions/{id}": "/transactions/paid",
}
"""What every user may read, and that shows bodies and properties to readers alone."""
BODIES = {"/jobs/{number}/{name}": "/jobs/0/job.html"}
"""What readers alone may read."""
EXPORTS = {
    "/messages/export": "/messages/export?topic=orders",
    "/messages/{id}/body": "/messages/MESSAGE/body?topic=orders",
    "/dead/export": "/dead/export?topic=orders&channel=work",
}
"""Downloads of bodies, for readers."""
NUMBERS_EXPORTS = {"/audit/export": "/audit/export"}
"""Downloads without bodies, for every user."""
ACTS: dict[tuple[str, str], tuple[str, Any]] = {
    ("GET", "/confirm"): ("/confirm?action=delete_topic&topic=orders", None),
    ("POST", "/act"): ("/act", {"action": "pause_topic", "topic": "orders"}),
    ("POST", "/api/topics"): ("/api/topics", b'{"topic": "made"}'),
    ("POST", "/api/topics/{topic}"): ("/api/topics/orders", b'{"action": "pause"}'),
    ("DELETE", "/api/topics/{topic}"): ("/api/topics/orders", None),
    ("POST", "/api/topics/{topic}/{channel}"): (
        *("/api/topics/orders/work", b'{"action": "pause"}'),
    ),
    ("DELETE", "/api/topics/{topic}/{channel}"): ("/api/topics/orders/work", None),
    ("DELETE", "/api/nodes/{node}"): ("/api/nodes/BROKER", b'{"topic": "orders"}'),
    ("PUT", "/config/{name}"): ("/config/log_level", b"info"),
}
"""What changes something, or asks before it: for operators alone."""
READS = {**NUMBERS, **PARTS, **BODIES, **EXPORTS, **NUMBERS_EXPORTS}


def test_every_route_has_a_class() -> None:
    options = AdminOptions(nsqd_http_addresses=("127.0.0.1:1",))
    server = AdminServer(options, logging.getLogger("martlet"))

    class Nothing:
        async def end_streams(self, _: object) -> None:
            raise AssertionError

    app = server._app(cast(Site, Nothing()))
    routes = {
        (route.method, re.sub(r":[^{}]+}", "}", route.resource.canonical))
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    reads = [("GET", path) for path in READS]
    assert routes == {*reads, *ACTS}
    assert len(reads) == sum(map(len, (NUMBERS, PARTS, BODIES, EXPORTS, NUMBERS_EXPORTS)))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker that has everything that the page shows, each time with the secret."""
    sent: dict[str, Any] = {
        "tag": SECRET,
        "keys": [SECRET],
        "headers": {"name": SECRET},
        "order_key": SECRET,
    }
    async with Broker() as broker, Admin(broker.http_address) as admin:
        await admin.topics.create("orders")
        await admin.channels.create("orders", "work")
        await admin.channels.configure("orders", "work", max_attempts=1)
        await admin.channels.create("orders", "group")
        await admin.channels.configure("orders", "group", kind="offsets")
        async with Producer(broker.tcp_address, group="billing") as producer:
            await producer.send("orders", SECRET.encode(), **sent)
            async with Consumer("orders", "work", broker.tcp_address) as consumer:
                (await anext(consumer)).requeue(error="refused", backoff=False)
                async with asyncio.timeout(50):
                    while not (await admin.dead_letters.list()).joined():
                        pass
            await producer.send("orders", SECRET.encode(), **sent)
            await producer.send("orders", SECRET.encode(), deliver_at=time.time() + 600, **sent)
            transaction = producer.transaction("paid", check_after_s=600)
            await transaction.publish("orders", SECRET.encode(), **sent)
            yield broker


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("jobs") / "job.html"
    JobPage("Orders", "of today", [Text(SECRET)]).write(path)
    return str(path)


async def ask(
    page: Page, role: str, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, str]:
    """Return the status and the text of an answer to a user."""
    answer = await page.ask(method, path, body, **{"X-Forwarded-User": role, **headers})
    return answer.status, answer.text


async def paths_of(page: Page, broker: Broker) -> dict[str, str]:
    """Return the path with real names, by that without."""
    _, html = await ask(page, "viewer", "GET", "/messages?topic=orders")
    ids = re.findall(r"/messages/([0-9a-f]{16})\?", html)
    return {
        name: path.replace("BROKER", broker.http_address).replace("MESSAGE", ids[0])
        for name, path in READS.items()
    }


async def state(broker: Broker) -> Any:
    """Return what actions would change."""
    names = ("topic_name", "channel_name", "paused", "depth")
    topic = await counts(broker, "orders")
    return [[stats.get(name) for name in names] for stats in (topic, *topic["channels"])]


async def test_each_role_reads_what_is_its_own(broker: Broker, job: str) -> None:
    async with page_of([broker], job_pages=(job,), **NAMED) as page:
        paths = await paths_of(page, broker)
        for role in ROLES:
            sees = role != "viewer"
            for name, path in paths.items():
                status, text = await ask(page, role, "GET", path)
                is_refused = not sees and name in {**BODIES, **EXPORTS}
                assert status == (403 if is_refused else 200), (role, name, text)
                has = name in {**PARTS, **BODIES, **EXPORTS} and sees
                assert (SECRET in text) == has, (role, name)
                if status == 200 and not path.startswith(("/api", "/config")):
                    assert (await ask(page, role, "HEAD", path))[0] == 200, (role, name)


@pytest.mark.parametrize("role", ROLES)
async def test_options_take_from_every_role(broker: Broker, job: str, role: str) -> None:
    options: dict[str, Any] = {"job_pages": (job,), **NAMED}
    async with page_of([broker], bodies=False, **options) as page:
        for name, path in (await paths_of(page, broker)).items():
            status, text = await ask(page, role, "GET", path)
            assert status == (403 if name in {**BODIES, **EXPORTS} else 200), (name, text)
            assert SECRET not in text, name
            if name in PARTS and name != "/delayed":  # That has no column for them.
                assert "hidden from this user" in text, name
            assert not re.search(r'href="[^"]*/(dead/export|messages/export|body|jobs/0)\b', text)
    async with page_of([broker], export=False, **options) as page:
        for name, path in (await paths_of(page, broker)).items():
            status, text = await ask(page, role, "GET", path)
            is_refused = name in {**EXPORTS, **NUMBERS_EXPORTS} or (
                name in BODIES and role == "viewer"
            )
            assert status == (403 if is_refused else 200), (name, text)
            if status == 403 and name not in BODIES and role != "viewer":
                assert "see --export" in text
            assert not re.search(r'href="[^"]*/(export|body)\b', text), name


async def test_only_operators_change_something(broker: Broker) -> None:
    async with page_of([broker], **NAMED) as page:
        before = await state(broker)
        for role in ("viewer", "reader"):
            for (method, _), (path, body) in ACTS.items():
                path = path.replace("BROKER", broker.http_address)
                status, text = await ask(page, role, method, path, body)
                assert status == 403, (role, method, path, text)
                if path.startswith(("/api", "/config")):
                    assert text == '{"message":"FORBIDDEN"}'
            for action in (*ACTIONS, "none"):
                fields = {"action": action, "topic": "orders", "channel": "work", "typed": "orders"}
                status, text = await ask(page, role, "POST", "/act", fields)
                assert (status, "may not act" in text) == (403, True), action
                path = f"/confirm?action={action}&topic=orders&channel=work"
                assert (await ask(page, role, "GET", path))[0] == 403, action
        assert await state(broker) == before
        assert not await counts(broker, "made")
        results = {(entry.user, entry.result) for entry in page.server._audit.entries}
        assert results == {("viewer", "refused"), ("reader", "refused")}


async def test_a_page_that_is_read_only_lets_no_operator_act(broker: Broker, job: str) -> None:
    async with page_of([broker], read_only=True, job_pages=(job,), **NAMED) as page:
        for (method, _), (path, body) in ACTS.items():
            path = path.replace("BROKER", broker.http_address)
            assert (await ask(page, "operator", method, path, body))[0] == 403, (method, path)
        for name, path in (await paths_of(page, broker)).items():
            status, text = await ask(page, "operator", "GET", path)
            assert (status, name not in PARTS or SECRET in text) == (200, True), name
            if 'aria-label="Pages"' in text:
                assert "read-only" in text
                for form in ('method="post"', 'class="act"', "<button name="):
                    assert form not in text, (name, form)


async def test_operators_may_do_all_that_others_may_not() -> None:
    async with (
        Broker(broadcast_address="127.0.0.1") as broker,
        Admin(broker.http_address) as admin,
        page_of([broker], **NAMED) as page,
    ):
        for (method, name), (path, body) in ACTS.items():
            await admin.topics.create("orders")
            await admin.channels.create("orders", "work")
            path = path.replace("BROKER", broker.http_address)
            status, text = await ask(page, "operator", method, path, body)
            assert status == (303 if name == "/act" else 200), (path, text)


async def test_a_live_page_shows_no_more_than_the_page(broker: Broker) -> None:
    async with page_of([broker], **NAMED) as page:
        headers = {"Accept": "text/event-stream", "X-Forwarded-User": "viewer"}
        for path in ("/", "/topics", "/topics/orders", "/topics/orders/work", "/nodes"):
            async with page.session.get(page.url + path, headers=headers) as answer:
                html = (await answer.content.readuntil(b"\n\n")).decode()
            assert "<form" not in html or 'action="/act"' not in html, path
            assert SECRET not in html, path
