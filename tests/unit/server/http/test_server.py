"""What a server of HTTP logs, and which pages of other sites it refuses."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from tests.admin_page import lookup_daemon

from martlet.testing import Broker

FOREIGN = (
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    # A name of the page's own that leads to this machine.
    {"Origin": "http://rebound.example:4151", "Host": "rebound.example:4151"},
    {"Sec-Fetch-Site": "same-origin", "Host": "rebound.example:4151"},
)
OTHERS: tuple[dict[str, str], ...] = (
    {},
    {"Host": "broker.example:4151"},  # a program that names the broker by its name
    {"Sec-Fetch-Site": "same-origin", "Origin": "http://app.example"},  # behind a proxy
    {"Sec-Fetch-Site": "none"},
)
CHANGES = (
    ("POST", "/pub?topic=t"),
    ("POST", "/mpub?topic=t"),
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/pause?topic=t&channel=c"),
    ("POST", "/channel/unpause?topic=t&channel=c"),
    ("POST", "/channel/empty?topic=t&channel=c"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/topic/pause?topic=t"),
    ("POST", "/topic/unpause?topic=t"),
    ("POST", "/topic/empty?topic=t"),
    ("POST", "/topic/delete?topic=t"),
    ("PUT", "/config/log_level"),
)
DAEMONS_CHANGES = (
    ("POST", "/topic/create?topic=t"),
    ("POST", "/channel/create?topic=t&channel=c"),
    ("POST", "/channel/delete?topic=t&channel=c"),
    ("POST", "/topic/tombstone?topic=t&node=x:1"),
    ("POST", "/topic/delete?topic=t"),
)


async def status(address: str, route: tuple[str, str], headers: dict[str, str]) -> int:
    method, path = route
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://{address}{path}", data=b"INFO", headers=headers) as answer,
    ):
        text = await answer.text()
        assert (answer.status == 403) == ("FOREIGN_PAGE" in text), text
        return answer.status


async def test_nsqds_routes_change_nothing_for_pages_of_other_sites() -> None:
    async with Broker() as broker:
        for headers in FOREIGN:
            for route in CHANGES:
                assert await status(broker.http_address, route, headers) == 403, (route, headers)
            assert await status(broker.http_address, ("GET", "/stats"), headers) == 200
        for headers in OTHERS:
            for route in CHANGES:
                assert await status(broker.http_address, route, headers) == 200, (route, headers)


async def test_a_lookup_daemon_changes_nothing_for_pages_of_other_sites() -> None:
    async with lookup_daemon() as daemon:
        for headers in FOREIGN:
            for route in DAEMONS_CHANGES:
                assert await status(daemon.http_address, route, headers) == 403, (route, headers)
            assert await status(daemon.http_address, ("GET", "/nodes"), headers) == 200
        for headers in OTHERS:
            for route in DAEMONS_CHANGES:
                assert await status(daemon.http_address, route, headers) == 200, (route, headers)


async def test_reads_of_the_admin_page_are_logged_at_debug_level_and_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "martlet.server.http.server")
    async with Broker() as broker:
        for route in (("GET", "/stats"), ("GET", "/replica"), ("POST", "/topic/create?topic=t")):
            await status(broker.http_address, route, {"User-Agent": "martlet-admin"})
        await status(broker.http_address, ("GET", "/stats"), {})
        await status(broker.http_address, ("GET", "/log/topics"), FOREIGN[0])
    found = [
        (each.levelname, each.getMessage().rpartition(" (")[0])
        for each in caplog.records
        if each.name == "martlet.server.http.server"
    ]
    assert found == [
        ("DEBUG", "200 GET /stats"),
        ("DEBUG", "404 GET /replica"),
        ("INFO", "200 POST /topic/create?topic=t"),
        ("INFO", "200 GET /stats"),
        ("INFO", "403 GET /log/topics"),
    ]
