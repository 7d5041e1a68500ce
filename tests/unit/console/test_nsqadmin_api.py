"""nsqadmin's API: sums over brokers, users, warnings, notifications."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from tests.admin_page import Page, page_of
from tests.answering import answering

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
    answer = await page.ask(method, path, json.dumps(body), **{**JSON, **headers})
    return answer.status, json.loads(answer.text)


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
    async with page_of([*brokers, GONE]) as page:
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


async def test_no_other_site_and_no_other_network_changes_something(page: Page) -> None:
    """What users may do is in `test_routes`."""
    site = {"Sec-Fetch-Site": "cross-site"}
    status, _ = await ask(page, "POST", "/api/topics/orders", {"action": "pause"}, **site)
    assert status == 403
    async with page_of([GONE], allow_config_from_cidr="10.0.0.0/8") as closed:
        assert await ask(closed, "GET", "/config/log_level") == (403, {"message": "FORBIDDEN"})


async def test_the_operators_token_is_no_option_to_read(page: Page) -> None:
    answer = await ask(page, "GET", "/config/operator_token_file")
    assert answer == (400, {"message": "INVALID_OPTION"})


async def test_actions_are_notified_of(brokers: list[Broker]) -> None:
    posted: asyncio.Queue[Any] = asyncio.Queue()

    async def take(request: web.BaseRequest) -> web.Response:
        posted.put_nowait(await request.json())
        return web.Response()

    async with (
        answering(take) as address,
        page_of(brokers, notification_http_endpoint=f"http://{address}/", base_path="/m") as page,
    ):
        await ask(page, "POST", "/api/topics/orders/work", {"action": "pause"})
        pause = await posted.get()
        assert (pause["action"], pause["topic"]) == ("pause_channel", "orders")
        assert pause["channel"] == "work"
        assert pause.keys() >= {"timestamp", "remote_ip", "user_agent", "url", "via"}
        assert pause["url"].endswith("/m/api/topics/orders/work")
        await ask(page, "DELETE", "/api/topics/orders")
        deletion = await posted.get()
        assert deletion["action"] == "delete_topic"
        assert "channel" not in deletion


@pytest.mark.parametrize(
    ("target", "rate"),
    [
        ("sumSeries(nsq.*.topic.orders.message_count)", "0.00"),
        ("nsq.h.topic.orders.channel.work.message_count", "0.00"),
        ("nsq.h.topic.none.message_count", "N/A"),
        ("x", "N/A"),
    ],
)
async def test_rates_come_from_the_pages_own_history(page: Page, target: str, rate: str) -> None:
    path = f"/api/graphite?metric=rate&target={target}"
    assert await ask(page, "GET", path) == (200, {"rate": rate})


async def test_a_page_with_the_operators_token_asks_no_lookup_daemon_that_a_request_names(
    token_file: str,
) -> None:
    path = "/config/nsqlookupd_http_addresses"
    async with page_of([GONE]) as page:
        assert await ask(page, "PUT", path, ["127.0.0.1:2"]) == (200, ["127.0.0.1:2"])
    async with page_of([GONE], operator_token_file=token_file) as page:
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
async def test_answers_are_written_as_go_does(page: Page, method: str, path: str) -> None:
    answer = await page.ask(method, path, b"[<")
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.text == go_json(json.loads(answer.text))


async def test_whole_numbers_have_no_fraction() -> None:
    assert api._json({"a": [1.0, 0.5, 10**3, 1e300], "b": True}).text == (
        '{"a":[1,0.5,1000,1e+300],"b":true}'
    )


@pytest.mark.parametrize("version", ["9" * 5000 + ".0.0", "\u0661.0.0", "1.2", "1" * 100_000])
def test_what_is_no_version_counts_as_the_oldest(version: str) -> None:
    assert _version("0.0.1") > _version(version) == _version("")
