"""What an operator looks for beside counts: disk, clients, latency, lookup daemons, the audit."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.admin_page import broker_of, consumer_of, lookup_daemon, page_of, two_brokers, until
from tests.interop.certificates import Certificates
from tests.unit.console.test_pages import text_of

from martlet import __version__
from martlet.client import Admin, Consumer
from martlet.client.admin import FinishLatency, LogStats
from martlet.options.security import TlsRequired
from martlet.testing import Broker

SIZE = r"[\d.]+ [kMGT]?B"
MS = r"≤ [\d.]+ (?:ms|s)"


async def test_a_broker_tells_its_version_disk_and_clients() -> None:
    async with broker_of(3) as broker, page_of([broker.http_address]) as page:
        async with consumer_of(broker, client_id="clerk-7"):
            text = text_of(await page.get(f"/nodes/{broker.http_address}"))
            assert f"Martlet {__version__}" in text
            assert "1 client over TCP" in text
            assert re.search(rf"{SIZE} of log", text)
            assert re.search(rf"{SIZE} free on its disk; publishing is refused below {SIZE}", text)
            assert re.search(rf"{SIZE} not flushed to the disk yet", text)
        overview = text_of(await page.get("/"))
        assert re.search(rf"{broker.http_address} healthy 0 0 3 1 {SIZE} {SIZE} ", overview)


async def test_a_broker_tells_which_daemons_hide_it() -> None:
    async with (
        lookup_daemon() as daemon,
        broker_of(1, lookup=daemon.tcp_address) as broker,
        page_of(lookup=daemon.http_address) as page,
        page.events("/") as regions,
    ):
        async for region in regions:
            if broker.http_address in region:
                break
        path = f"/nodes/{broker.http_address}"
        assert f"Known to {daemon.http_address}." in text_of(await page.get(path))
        url = f"http://{broker.http_address}"
        await page.act("tombstone_topic_producer", topic="orders", broker=url)
        text = text_of(await page.get(path))
        assert f"Known to {daemon.http_address} (hidden there for orders)" in text


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)], ids=["unknown", "trusted"])
async def test_the_page_says_why_a_broker_gets_no_token(
    tmp_path: Path, trusted: tuple[str, ...]
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("0123456789abcdef")
    async with (
        lookup_daemon() as daemon,
        broker_of(1, lookup=daemon.tcp_address) as broker,
        page_of(
            lookup=daemon.http_address,
            operator_token_file=str(token_file),
            trusted_brokers=trusted,
        ) as page,
        page.events("/") as regions,
    ):
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with broker_of(0) as broker, page_of([broker.http_address]) as page:
        assert "of its disk left" not in await page.get("/")
        monkeypatch.setattr(LogStats, "is_low", True)
        for path in ("/", "/topics", "/nodes"):
            text = text_of(await page.get(path))
            assert f"{broker.http_address} has " in text
            assert "of its disk left, and refuses messages below" in text


async def test_a_group_has_its_mark() -> None:
    async with broker_of(3) as broker, page_of([broker.http_address]) as page:
        async with Admin(broker.http_address) as admin:
            await admin.channels.create("orders", "billing")
            await admin.channels.configure("orders", "billing", kind="offsets")
        async with page.events("/topics/orders") as regions, asyncio.timeout(50):
            region = text_of(await until(regions, ">group</span>"))
        assert "billing group 0 0 0 " in region
        assert "work 3 0 0 " in region
        assert "/groups/orders/billing" in await page.get("/topics/orders/billing")


async def test_a_channel_tells_how_long_messages_take() -> None:
    async with two_brokers() as brokers, page_of([b.http_address for b in brokers]) as page:
        assert "from publish to finish" not in text_of(await page.get("/topics/orders/work"))
        for broker, count in zip(brokers, (3, 2), strict=True):
            async with Consumer("orders", "work", broker.tcp_address) as consumer:
                for _ in range(count):
                    (await anext(consumer)).finish()
        async with page.events("/topics/orders/work") as regions, asyncio.timeout(50):
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


async def test_a_channel_is_deleted_at_one_broker_alone() -> None:
    async with two_brokers() as brokers, page_of([b.http_address for b in brokers]) as page:
        url = f"http://{brokers[0].http_address}"
        where = {"topic": "orders", "channel": "work", "broker": url}
        await page.act("delete_channel", typed="orders / work", status=200, **where)
        async with Admin([broker.http_address for broker in brokers]) as admin:
            answers = await admin.channels.list("orders")
        assert [len(answer) for answer in answers.values.values()] == [0, 1]


async def test_the_audit_is_exported_as_its_filter_says() -> None:
    async with broker_of(0) as broker, page_of([broker.http_address]) as page:
        await page.act("pause_topic", topic="orders")
        await page.act("create_topic", topic="other")
        assert "/audit/export?q=pause" in await page.get("/audit?q=pause")
        lines = (await page.get("/audit/export?q=pause")).splitlines()
        assert [json.loads(line)["action"] for line in lines] == ["pause_topic"]
        assert "export_audit" in await page.get("/audit")


async def test_an_export_can_be_forbidden() -> None:
    async with page_of(["127.0.0.1:1"], export=False) as page:
        assert "see --export" in await page.get("/audit/export", 403)
        assert "/audit/export" not in await page.get("/audit")


@pytest.mark.parametrize("is_required", [True, False], ids=["https alone", "plain http too"])
async def test_brokers_are_asked_in_plain_http_first_and_over_https_where_they_want_that(
    tmp_path: Path, certificates: Certificates, is_required: bool
) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("0123456789abcdef")
    tls: dict[str, Any] = {
        "tls_cert": str(certificates.certificate),
        "tls_key": str(certificates.key),
        "tls_required": TlsRequired.YES if is_required else TlsRequired.NO,
        "operator_token_file": str(token_file),
    }
    async with (
        lookup_daemon() as daemon,
        Broker(
            broadcast_address="127.0.0.1", lookupd_tcp_addresses=(daemon.tcp_address,), **tls
        ) as broker,
        page_of(
            lookup=daemon.http_address,
            http_client_tls_root_ca_file=str(certificates.authority),
            operator_token_file=str(token_file),
            trusted_brokers=("127.0.0.1",),
        ) as page,
        page.events("/") as regions,
    ):
        await until(regions, broker.http_address)
        assert "healthy" in text_of(await page.get(f"/nodes/{broker.http_address}"))
        # What is for operators, too.
        assert "No groups yet" in text_of(await page.get("/groups"))
