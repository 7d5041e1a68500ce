"""A broker that answers nonsense is shown as one that does not answer; the others go on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import Page, broker_of, page_of

PAGES = ("/", "/topics", "/topics/orders", "/nodes", "/delayed", "/groups", "/messages", "/counter")
API = ("/api/topics", "/api/topics/orders", "/api/topics/orders/work", "/api/nodes", "/api/counter")
COUNTS = ("depth", "backend_depth", "message_count")
HUGE = 10**400


def channel(**fields: Any) -> dict[str, Any]:
    return {"channel_name": "work", **dict.fromkeys(COUNTS, 0), "paused": False, **fields}


def topic(**fields: Any) -> dict[str, Any]:
    known = {"topic_name": "orders", **dict.fromkeys(COUNTS, 0), "paused": False}
    return {**known, "channels": [channel()], **fields}


def stats(*topics: Any, **fields: Any) -> str:
    return json.dumps({"version": "1.3.0", "health": "OK", "topics": topics, **fields})


@asynccontextmanager
async def beside(answer: str) -> AsyncIterator[tuple[Page, str]]:
    """The page in front of a broker and a server with that one answer; yields its address, too."""

    async def reply(_: web.Request) -> web.Response:
        return web.Response(text=answer, content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", reply)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with broker_of(3) as broker, page_of([broker.http_address, address]) as page:
            yield page, address
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "answer",
    [
        stats(topic(topic_name="\ud800")),
        stats(topic(topic_name="<script>")),
        stats(topic(topic_name="../../x")),
        stats(topic(topic_name=1)),
        stats(topic(channels=[channel(channel_name="")])),
        stats(topic(depth=HUGE)),
        stats(topic(depth=float("nan"))),
        stats(topic(depth=float("inf"))),
        stats(topic(depth="3")),
        stats(topic(channels=[channel(oldest_message_age_ms=HUGE)])),
        stats(topic(channels=[channel(clients=[{"finish_count": HUGE}])])),
        stats(topic(channels={"work": 1})),
        stats("orders"),
        stats(start_time="yesterday"),
        stats(health=None),
        '{"topics": {"orders": 1}}',
        "[" * 100_000,
        "[]",
        "3",
    ],
)
async def test_an_unintelligible_broker_is_named_and_the_others_go_on(answer: str) -> None:
    async with beside(answer) as (page, address):
        for path in PAGES:
            text = await page.get(path)
            assert address in text, path
            assert "fault of this page" not in text
        assert "orders" in await page.get("/topics")
        for path in API:
            found = json.loads(await page.get(path))
            assert found["message"].startswith(f"WARNING: http://{address}"), path


async def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    async with beside(stats(topic(), health="NOK - \udc00 \U0001f600")) as (page, address):
        assert "NOK - ? \U0001f600" in await page.get(f"/nodes/{address}")


async def test_percentiles_that_are_no_numbers_are_a_warning() -> None:
    wrong = {"count": 1, "percentiles": [{"quantile": [], "value": "1"}]}
    for each in (topic(e2e_processing_latency=wrong), topic(e2e_processing_latency=[1])):
        async with beside(stats(each)) as (page, address):
            found = json.loads(await page.get("/api/topics/orders"))
            assert address in found["message"]
