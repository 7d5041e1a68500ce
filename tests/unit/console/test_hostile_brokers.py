"""A broker that answers nonsense is shown as one that does not answer; the others go on."""

from __future__ import annotations

import asyncio
import json
import resource
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import Page, broker_of, page_of
from tests.answering import answering

PAGES = ("/", "/topics", "/topics/orders", "/nodes", "/delayed", "/groups", "/messages", "/counter")
API = ("/api/topics", "/api/topics/orders", "/api/topics/orders/work", "/api/nodes", "/api/counter")
COUNTS = ("depth", "backend_depth", "message_count")
HUGE = 10**400
SECOND_NS = 1_000_000_000
PATIENT: dict[str, Any] = {"http_client_request_timeout_ns": 60 * SECOND_NS}
"""On a slow machine the good broker's answer is awaited all the same."""
PIECE = b" " * (1 << 20)
Reply = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def channel(**fields: Any) -> dict[str, Any]:
    return {"channel_name": "work", **dict.fromkeys(COUNTS, 0), "paused": False, **fields}


def topic(**fields: Any) -> dict[str, Any]:
    usual = {"topic_name": "orders", **dict.fromkeys(COUNTS, 0), "paused": False}
    return {**usual, "channels": [channel()], **fields}


def stats(*topics: Any, **fields: Any) -> str:
    return json.dumps({"version": "1.3.0", "health": "OK", "topics": topics, **fields})


def saying(answer: str) -> Reply:
    """Return a handler that answers that to everything."""

    async def reply(_: web.BaseRequest) -> web.Response:
        return web.Response(text=answer, content_type="application/json")

    return reply


@asynccontextmanager
async def beside(reply: Reply, **options: Any) -> AsyncIterator[tuple[Page, str]]:
    """The page in front of a broker and a server with that handler; yields its address, too."""
    async with (
        answering(reply, handler_cancellation=True) as address,
        broker_of(3) as broker,
        page_of([broker, address], **{**PATIENT, **options}) as page,
    ):
        yield page, address


async def test_a_redirect_is_not_followed() -> None:
    followed: list[web.BaseRequest] = []

    async def reply(request: web.BaseRequest) -> web.Response:
        if request.path == "/elsewhere":
            followed.append(request)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async with beside(reply) as (page, address):
        text = await page.get("/nodes")
        assert f"{address}" in text
        assert "it redirects to &#39;/elsewhere&#39;: give the broker&#39;s address" in text
    assert not followed


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
    async with beside(saying(answer)) as (page, address):
        for path in PAGES:
            text = await page.get(path)
            assert address in text, path
            assert "fault of this page" not in text
        assert "orders" in await page.get("/topics")
        for path in API:
            shown = json.loads(await page.get(path))
            assert shown["message"].startswith(f"WARNING: http://{address}"), path


async def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    answer = stats(topic(), health="NOK - \udc00 \U0001f600")
    async with beside(saying(answer)) as (page, address):
        assert "NOK - ? \U0001f600" in await page.get(f"/nodes/{address}")


async def test_percentiles_that_are_no_numbers_are_a_warning() -> None:
    wrong = {"count": 1, "percentiles": [{"quantile": [], "value": "1"}]}
    for answer in (topic(e2e_processing_latency=wrong), topic(e2e_processing_latency=[1])):
        async with beside(saying(stats(answer))) as (page, address):
            shown = json.loads(await page.get("/api/topics/orders"))
            assert address in shown["message"]


async def _begin(request: web.BaseRequest, **headers: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", **headers})
    await response.prepare(request)
    return response


async def _announced(request: web.BaseRequest) -> web.StreamResponse:
    """100 MB, as announced."""
    response = await _begin(request, **{"Content-Length": str(100 << 20)})
    for _ in range(100):
        await response.write(PIECE)
    return response


async def _endless(request: web.BaseRequest) -> web.StreamResponse:
    """An answer without an end."""
    response = await _begin(request)
    while True:
        await response.write(PIECE)


async def _slow(request: web.BaseRequest) -> web.StreamResponse:
    """A byte now and then."""
    response = await _begin(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def _silent(request: web.BaseRequest) -> web.StreamResponse:
    """Nothing."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Half an answer, and the end of the connection."""
    response = await _begin(request)
    await response.write(b'{"topics": [')
    assert request.transport is not None
    request.transport.abort()
    return response


async def _swollen(request: web.BaseRequest) -> web.StreamResponse:
    """A body that is a thousand times as large once it is unpacked."""
    response = await _begin(request, **{"Content-Encoding": "deflate"})
    packing = zlib.compressobj()
    await response.write(packing.compress(PIECE) + packing.flush(zlib.Z_FULL_FLUSH))
    again = packing.compress(PIECE) + packing.flush(zlib.Z_FULL_FLUSH)
    while True:
        await response.write(again)
        await asyncio.sleep(0)


async def _misnamed(request: web.BaseRequest) -> web.StreamResponse:
    """What is no gzip, though it says so."""
    response = await _begin(request, **{"Content-Encoding": "gzip"})
    await response.write(b"{}")
    return response


async def _led_away(request: web.BaseRequest) -> web.StreamResponse:
    """A redirect to itself."""
    raise web.HTTPFound(request.path)


@pytest.mark.parametrize(
    "reply", [_announced, _endless, _slow, _silent, _cut, _swollen, _misnamed, _led_away]
)
async def test_a_broker_without_measure_keeps_no_page_waiting(reply: Reply) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limit: dict[str, Any] = {"http_client_request_timeout_ns": SECOND_NS}
    async with beside(reply, **limit) as (page, address), asyncio.timeout(90):
        for path in ("/topics", "/delayed", "/groups", "/messages?topic=orders"):
            text = await page.get(path)
            assert address in text, path
            assert "fault of this page" not in text
        assert "orders" in await page.get("/topics")
        for path in API[:2]:
            shown = json.loads(await page.get(path))
            assert shown["message"].startswith(f"WARNING: http://{address}"), path
        await page.get(f"/nodes/{address}")
        await page.act("pause_channel", topic="orders", channel="work")
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    assert grown_kb < 400_000, f"the process has grown by {grown_kb >> 10} MB"
