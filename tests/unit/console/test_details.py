"""What an operator looks for beside counts: disk, clients, latency, lookup daemons, the audit."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.admin_page import Page, consumer_of, looked_up, lookup_daemon, page_of, until
from tests.interop.certificates import Certificates
from tests.unit.console.pages.asking import text_of

from martlet import __version__
from martlet.client import Admin, Consumer
from martlet.client.admin import FinishLatency, LogStats
from martlet.options.security import TlsRequired
from martlet.testing import Broker

SIZE = r"[\d.]+ [kMGT]?B"
MS = r"≤ [\d.]+ (?:ms|s)"


async def test_a_broker_tells_its_version_disk_and_clients(
    page_of_one: Page, one_broker: Broker
) -> None:
    address = one_broker.http_address
    async with consumer_of(one_broker, client_id="clerk-7"):
        text = text_of(await page_of_one.get(f"/nodes/{address}"))
        assert f"Martlet {__version__}" in text
        assert "1 client over TCP" in text
        assert re.search(rf"{SIZE} of log", text)
        assert re.search(rf"{SIZE} free on its disk; publishing is refused below {SIZE}", text)
        assert re.search(rf"{SIZE} not flushed to the disk yet", text)
    overview = text_of(await page_of_one.get("/"))
    assert re.search(rf"{address} healthy 0 0 3 1 {SIZE} {SIZE} ", overview)


async def test_a_broker_tells_which_daemons_hide_it() -> None:
    async with looked_up(1) as (daemon, broker, page), page.events("/") as regions:
        await until(regions, broker.http_address)
        path = f"/nodes/{broker.http_address}"
        assert f"Known to {daemon.http_address}." in text_of(await page.get(path))
        url = f"http://{broker.http_address}"
        await page.act("tombstone_topic_producer", topic="orders", broker=url)
        text = text_of(await page.get(path))
        assert f"Known to {daemon.http_address} (hidden there for orders)" in text


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)], ids=["unknown", "trusted"])
async def test_the_page_says_why_a_broker_gets_no_token(
    token_file: str, trusted: tuple[str, ...]
) -> None:
    options = {"operator_token_file": token_file, "trusted_brokers": trusted}
    async with looked_up(1, **options) as (_, broker, page), page.events("/") as regions:
        await until(regions, broker.http_address)
        text = text_of(await page.get(f"/nodes/{broker.http_address}"))
        assert ("token is sent to this broker" in text) is not bool(trusted)


@pytest.mark.parametrize(
    ("free", "is_low"), [(1000, False), (199, True)], ids=["enough space", "little space"]
)
def test_a_disk_is_low_where_the_alert_says_so(free: int, is_low: bool) -> None:
    log = LogStats(disk_bytes=5000, disk_free_bytes=free, min_free_bytes=100)
    assert log.is_low == is_low


async def test_a_broker_short_of_space_is_named_on_every_page(
    page_of_one: Page, one_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "of its disk left" not in await page_of_one.get("/")
    monkeypatch.setattr(LogStats, "is_low", True)
    for path in ("/", "/topics", "/nodes"):
        text = text_of(await page_of_one.get(path))
        assert f"{one_broker.http_address} has " in text
        assert "of its disk left, and refuses messages below" in text


async def test_a_group_has_its_mark(page_of_one: Page, one_broker: Broker) -> None:
    async with Admin(one_broker.http_address) as admin:
        await admin.channels.create("orders", "billing")
        await admin.channels.configure("orders", "billing", kind="offsets")
    async with page_of_one.events("/topics/orders") as regions:
        region = text_of(await until(regions, ">group</span>"))
    assert "billing group 0 0 0 " in region
    assert "work 3 0 0 " in region
    assert "/groups/orders/billing" in await page_of_one.get("/topics/orders/billing")


async def test_a_channel_tells_how_long_messages_take(page: Page, brokers: list[Broker]) -> None:
    assert "from publish to finish" not in text_of(await page.get("/topics/orders/work"))
    for broker, count in zip(brokers, (3, 2), strict=True):
        async with Consumer("orders", "work", broker.tcp_address) as consumer:
            for _ in range(count):
                (await anext(consumer)).finish()
    async with page.events("/topics/orders/work") as regions:
        async for region in regions:
            if re.search(f"<b>{MS}, {MS}</b> from publish to finish", region):
                break


def test_latencies_of_several_brokers_are_added() -> None:
    bounds = (1.0, 10.0)
    first = FinishLatency(bounds_ms=bounds, counts=(8, 0, 0))
    second = FinishLatency(bounds_ms=bounds, counts=(0, 1, 1))
    both = first + second
    assert both.counts == (8, 1, 1)
    assert [both.quantile_ms(level) for level in (0.5, 0.8, 0.9, 1.0)] == [1.0, 1.0, 10.0, None]
    assert FinishLatency(bounds_ms=bounds, counts=(0, 0, 0)).quantile_ms(0.5) is None
    with pytest.raises(ValueError, match="other buckets"):
        first + FinishLatency(bounds_ms=(2.0,), counts=(0, 0))


async def test_the_audit_is_exported_as_its_filter_says(page_of_one: Page) -> None:
    await page_of_one.act("pause_topic", topic="orders")
    await page_of_one.act("create_topic", topic="other")
    assert "/audit/export?q=pause" in await page_of_one.get("/audit?q=pause")
    lines = (await page_of_one.get("/audit/export?q=pause")).splitlines()
    assert [json.loads(line)["action"] for line in lines] == ["pause_topic"]
    assert "export_audit" in await page_of_one.get("/audit")


@pytest.mark.parametrize("is_required", [True, False], ids=["https alone", "plain http too"])
async def test_brokers_are_asked_in_plain_http_first_and_over_https_where_they_want_that(
    token_file: str, certificates: Certificates, is_required: bool
) -> None:
    tls: dict[str, Any] = {
        "tls_cert": str(certificates.certificate),
        "tls_key": str(certificates.key),
        "tls_required": TlsRequired.YES if is_required else TlsRequired.NO,
        "operator_token_file": token_file,
    }
    async with (
        lookup_daemon() as daemon,
        Broker(
            broadcast_address="127.0.0.1", lookupd_tcp_addresses=(daemon.tcp_address,), **tls
        ) as broker,
        page_of(
            lookup=daemon.http_address,
            http_client_tls_root_ca_file=str(certificates.authority),
            operator_token_file=token_file,
            trusted_brokers=("127.0.0.1",),
        ) as page,
        page.events("/") as regions,
    ):
        await until(regions, broker.http_address)
        assert "healthy" in text_of(await page.get(f"/nodes/{broker.http_address}"))
        # What is for operators, too.
        assert "No groups yet" in text_of(await page.get("/groups"))
