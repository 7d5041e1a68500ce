"""nsqadmin's API: sums over brokers, users, warnings, notifications."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import Page, page_of

from martlet.console.nsqadmin import api
from martlet.console.nsqadmin.cluster import (
    _version,
    add_channel,
    add_topic,
    new_channel,
    new_topic,
)
from martlet.testing import Broker
from martlet.text import go_json

GONE = "127.0.0.1:1"
JSON = {"Content-Type": "application/json"}


async def ask(
    page: Page, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, Any]:
    async with page.session.request(
        method, page.url + path, data=json.dumps(body), headers={**JSON, **headers}
    ) as answer:
        return answer.status, await answer.json()


def channel(host: str, depth: int, *, quantiles: tuple[tuple[float, float], ...] = ()) -> Any:
    stats = new_channel(f"{host}:4151", "t", "c")
    stats |= {"hostname": host, "depth": depth, "paused": depth > 4}
    stats["e2e_processing_latency"] = latency(depth, *quantiles)
    return stats


def latency(count: int, *quantiles: tuple[float, float]) -> Any:
    percentiles = [
        {"quantile": q, "value": v, "min": v, "max": v, "average": v, "count": count}
        for q, v in quantiles
    ]
    return {
        "count": count,
        "percentiles": percentiles or None,
        "topic": "",
        "channel": "",
        "host": "",
    }


def test_percentiles_are_averaged_by_their_counts() -> None:
    total = new_channel("x", "t", "c")
    add_channel(total, channel("a", 1, quantiles=((0.5, 100.0), (0.99, 800.0))))
    add_channel(total, channel("b", 3, quantiles=((0.5, 500.0),)))
    assert (total["node"], total["depth"], total["paused"]) == ("*", 4, False)
    assert [node["hostname"] for node in total["nodes"]] == ["a", "b"]
    assert total["e2e_processing_latency"] == {
        "count": 4,
        "percentiles": [
            {"quantile": 0.5, "max": 500.0, "min": 500.0, "count": 4, "average": 400.0},
            {"quantile": 0.99, "max": 800.0, "min": 800.0, "count": 1, "average": 800.0},
        ],
        "topic": "t",
        "channel": "c",
        "host": "*",
    }
    add_channel(total, channel("0", 5))
    assert [node["hostname"] for node in total["nodes"]] == ["0", "a", "b"]
    assert total["paused"]


def test_a_topics_channels_are_added_to_those_of_the_first_broker() -> None:
    total = new_topic("t")
    for host, depth in (("a", 1), ("b", 3)):
        one = new_topic("t") | {"hostname": host, "depth": 0, "channels": [channel(host, depth)]}
        one["e2e_processing_latency"] = latency(0)
        add_topic(total, one)
    (summed,) = total["channels"]
    assert (summed["node"], summed["depth"]) == ("*", 4)
    assert total["nodes"][0]["channels"][0] is summed, "as nsqadmin has it"
    assert total["nodes"][1]["channels"][0]["depth"] == 3
    json.dumps(total)


async def test_a_broker_that_is_away_is_a_warning_and_all_are_an_error(
    brokers: list[Broker],
) -> None:
    addresses = [broker.http_address for broker in brokers]
    async with page_of([*addresses, GONE]) as page:
        for path in ("/api/topics", "/api/topics/orders", "/api/nodes", "/api/counter"):
            status, answer = await ask(page, "GET", path)
            assert status == 200
            assert answer["message"].startswith("WARNING: ")
            assert GONE in answer["message"]
        status, answer = await ask(page, "POST", "/api/topics/orders", {"action": "pause"})
        assert (status, "WARNING" in answer["message"]) == (200, True)
    async with page_of([GONE]) as page:
        for path in ("/api/topics", "/api/topics/orders", "/api/nodes", "/api/counter"):
            status, answer = await ask(page, "GET", path)
            assert status == 502
            assert answer["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd: ")
        status, answer = await ask(page, "POST", "/api/topics/orders", {"action": "pause"})
        assert status == 502
        assert "failed" in await page.get("/audit")


async def test_only_users_who_may_act_change_something(brokers: list[Broker]) -> None:
    addresses = [broker.http_address for broker in brokers]
    changes = [
        ("POST", "/api/topics", {"topic": "new"}),
        ("POST", "/api/topics/orders", {"action": "empty"}),
        ("POST", "/api/topics/orders/work", {"action": "empty"}),
        ("DELETE", "/api/topics/orders", None),
        ("DELETE", "/api/topics/orders/work", None),
        ("DELETE", f"/api/nodes/{addresses[0]}", {"topic": "orders"}),
        ("PUT", "/config/log_level", "info"),
    ]
    async with page_of(addresses, admin_users=("ann",)) as page:
        for method, path, body in changes:
            assert await ask(page, method, path, body) == (403, {"message": "FORBIDDEN"}), path
        ben = {"X-Forwarded-User": "ben"}
        answer = await ask(page, "POST", "/api/topics/orders", {"action": "pause"}, **ben)
        assert answer == (403, {"message": "FORBIDDEN"})
        ann = {"X-Forwarded-User": "ann"}
        answer = await ask(page, "POST", "/api/topics/orders", {"action": "pause"}, **ann)
        assert answer == (200, {"message": ""})
        ann["Sec-Fetch-Site"] = "cross-site"
        status, _ = await ask(page, "POST", "/api/topics/orders", {"action": "unpause"}, **ann)
        assert status == 403
    async with page_of(addresses, allow_config_from_cidr="10.0.0.0/8") as page:
        assert await ask(page, "GET", "/config/log_level") == (403, {"message": "FORBIDDEN"})


async def test_the_operators_token_is_no_option_to_read(brokers: list[Broker]) -> None:
    async with page_of([brokers[0].http_address]) as page:
        assert await ask(page, "GET", "/config/operator_token_file") == (
            400,
            {"message": "INVALID_OPTION"},
        )


async def test_actions_are_notified_of(brokers: list[Broker], unused_tcp_port: int) -> None:
    posted: asyncio.Queue[Any] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        posted.put_nowait(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
        endpoint = f"http://127.0.0.1:{unused_tcp_port}/"
        addresses = [broker.http_address for broker in brokers]
        async with page_of(addresses, notification_http_endpoint=endpoint, base_path="/m") as page:
            await ask(page, "POST", "/api/topics/orders/work", {"action": "pause"})
            notification = await asyncio.wait_for(posted.get(), 50)
            assert {name: notification[name] for name in ("action", "topic", "channel")} == {
                "action": "pause_channel",
                "topic": "orders",
                "channel": "work",
            }
            assert notification.keys() >= {"timestamp", "remote_ip", "user_agent", "url", "via"}
            assert notification["url"].endswith("/m/api/topics/orders/work")
            await ask(page, "DELETE", "/api/topics/orders")
            notification = await asyncio.wait_for(posted.get(), 50)
            assert notification["action"] == "delete_topic"
            assert "channel" not in notification
    finally:
        await runner.cleanup()


async def test_rates_come_from_the_pages_own_history(brokers: list[Broker]) -> None:
    async with page_of([brokers[0].http_address]) as page:
        for target in (
            "sumSeries(nsq.*.topic.orders.message_count)",
            "nsq.h.topic.orders.channel.work.message_count",
        ):
            path = f"/api/graphite?metric=rate&target={target}"
            assert await ask(page, "GET", path) == (200, {"rate": "0.00"})
        for target in ("nsq.h.topic.none.message_count", "x"):
            path = f"/api/graphite?metric=rate&target={target}"
            assert await ask(page, "GET", path) == (200, {"rate": "N/A"})


async def test_a_page_with_the_operators_token_asks_no_lookup_daemon_that_a_request_names(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    path = "/config/nsqlookupd_http_addresses"
    async with page_of([GONE]) as page:
        assert await ask(page, "PUT", path, ["127.0.0.1:2"]) == (200, ["127.0.0.1:2"])
    async with page_of([GONE], operator_token_file=str(file)) as page:
        status, body = await ask(page, "PUT", path, ["127.0.0.1:2"])
        assert status == 403
        assert "start the page again" in body["message"]
        assert page.server.options.lookupd_http_addresses == ()
        assert await ask(page, "GET", path) == (200, [])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/api/topics"), ("GET", "/api/topics/orders"), ("GET", "/api/nodes")),
        *(("GET", "/api/counter"), ("GET", "/config/nothere"), ("POST", "/api/topics")),
        *(("GET", "/config/nsqd_http_addresses"), ("GET", "/api/graphite")),
    ],
)
async def test_answers_are_written_as_go_does(
    brokers: list[Broker], method: str, path: str
) -> None:
    async with (
        page_of([broker.http_address for broker in brokers]) as page,
        page.session.request(method, page.url + path, data=b"[<") as answer,
    ):
        text = await answer.text()
        assert answer.content_type == "application/json"
    assert text == go_json(json.loads(text))


async def test_whole_numbers_have_no_fraction() -> None:
    assert api._json({"a": [1.0, 0.5, 10**3, 1e300], "b": True}).text == (
        '{"a":[1,0.5,1000,1e+300],"b":true}'
    )


@pytest.mark.parametrize("version", ["9" * 5000 + ".0.0", "\u0661.0.0", "1.2", "1" * 100_000])
def test_what_is_no_version_counts_as_the_oldest(version: str) -> None:
    assert _version("0.0.1") > _version(version) == _version("")
