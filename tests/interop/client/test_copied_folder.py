"""Two brokers with one id, since a data folder was copied: no reader takes them for one broker."""

from __future__ import annotations

import asyncio
import logging
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.admin_page import lookup_daemon, page_of
from tests.admin_page import until as until_region
from tests.interop.client.kit import take
from tests.polling import until

from martlet.cli.main import main
from martlet.client import Admin, Consumer, Producer, PullConsumer, SubscribeRefused, sync
from martlet.pipeline.audit import require_topics as require_audit_topics
from martlet.pipeline.audit.options import AuditOptions
from martlet.pipeline.audit.segment_listing import survey_broker
from martlet.reader.brokers.brokers import QueryBrokers
from martlet.reader.brokers.endpoint import CopiedFolder, Endpoint
from martlet.reader.options import ReadOptions
from martlet.testing import BrokerProcess

WAY_OUT = "delete the broker.json"


def publish(broker: BrokerProcess, body: bytes) -> None:
    url = f"http://{broker.http_address}/pub?topic=t"
    with urllib.request.urlopen(url, data=body, timeout=60) as answer:
        assert answer.read() == b"OK"


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    with BrokerProcess(tmp_path / "first") as broker:
        publish(broker, b"common")
        broker.stop()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        broker.start()
        with BrokerProcess(tmp_path / "second") as other:
            publish(broker, b"first")
            publish(other, b"second")
            yield [broker, other]


@contextmanager
def spark(*addresses: str) -> Iterator[QueryBrokers]:
    options = {"addresses": ",".join(addresses), "subscribe": "t"}
    with closing(QueryBrokers(ReadOptions.parse(options, "batch"))) as brokers:
        yield brokers


async def members(group: str, *addresses: str, count: int = 2) -> list[bytes]:
    """The first messages that a group gets; each broker has 2."""
    async with PullConsumer("t", group, list(addresses), start="first") as consumer:
        return [message.body for message in await take(consumer, count)]


def audit(*addresses: str, data_paths: tuple[str, ...] = ()) -> None:
    options = AuditOptions(addresses=addresses, data_paths=data_paths, topics=("t",))
    require_audit_topics(options)


def test_an_audit_refuses_the_copies_and_reads_either_alone(copies: list[BrokerProcess]) -> None:
    first, second = copies
    addresses = first.http_address, second.http_address
    for named, folders in (
        (addresses, ()),
        (addresses[:1], (str(second.data_path),)),
        ((), (str(first.data_path), str(second.data_path))),
    ):
        with pytest.raises(CopiedFolder, match=WAY_OUT):
            audit(*named, data_paths=folders)
    for broker in copies:
        other = broker.http_address.replace("127.0.0.1", "localhost")
        audit(broker.http_address, other, data_paths=(f"{broker.data_path}/",))


def test_an_audit_reads_no_copy_at_the_same_path_of_another_machine(
    copies: list[BrokerProcess],
) -> None:
    first, second = copies
    survey = survey_broker(Endpoint(second.http_address, 60_000))
    for place in survey.segments:
        with replace(place, data_path=str(first.data_path)).opened() as data:
            assert b"second" in bytes(data)


def shown(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(list(words))
    return code, capfd.readouterr().err


@pytest.mark.parametrize("command", ["nodes", "health"])
def test_commands_say_it_while_both_run(
    copies: list[BrokerProcess], command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = copies
    named = [f"--address={copy.http_address}" for copy in copies]
    code, said = shown(capfd, command, *named)
    assert (code, WAY_OUT in said) == (1, True), said
    assert first.http_address in said
    assert second.http_address in said
    twice = f"--address={first.http_address.replace('127.0.0.1', 'localhost')}"
    assert shown(capfd, command, named[0], twice) == (0, "")
    second.stop()
    code, said = shown(capfd, command, *named)
    assert (code, WAY_OUT in said) == (1, False), said


async def test_a_lookup_daemon_names_the_processes(tmp_path: Path) -> None:
    async with lookup_daemon() as daemon, Admin(lookup=daemon.http_address) as admin:
        flags = f"--lookupd-tcp-address={daemon.tcp_address}", "--broadcast-address=127.0.0.1"
        with BrokerProcess(tmp_path / "first", *flags) as broker:
            broker.stop()
            shutil.copytree(tmp_path / "first", tmp_path / "second")
            broker.start()
            with BrokerProcess(tmp_path / "second", *flags) as other:
                await until(lambda: len(daemon.registry.peers) == 2)
                (url,) = admin.http.daemons
                nodes: list[dict[str, str]] = (await admin.http.get(url, "/nodes", {}))["producers"]
                assert len({node["broker"] for node in nodes}) == 1
                assert len({node["run"] for node in nodes}) == 2
                (copies,) = await admin.nodes.copies()
                running = {f"http://{item.http_address}" for item in (broker, other)}
                assert {*copies.addresses} == running


async def test_the_admin_page_shows_it_until_one_is_stopped(copies: list[BrokerProcess]) -> None:
    async with page_of([copy.http_address for copy in copies]) as page:
        for path in ("/", "/nodes"):
            async with page.events(path) as regions:
                region = await until_region(regions, WAY_OUT)
                assert 'class="alarm"' in region
        async with page.events("/nodes") as regions:
            await asyncio.to_thread(copies[1].stop)
            async for region in regions:
                if WAY_OUT not in region:
                    break


async def test_a_page_of_one_broker_at_two_addresses_shows_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        addresses = [
            broker.http_address,
            broker.http_address.replace("127.0.0.1", "localhost"),
        ]
        async with page_of(addresses) as page, page.events("/nodes") as regions:
            for _ in range(3):
                region = await anext(regions)
                assert "localhost" in region
                assert "both have the id" not in region


def test_a_consumer_says_it_and_takes_from_both(
    copies: list[BrokerProcess], caplog: pytest.LogCaptureFixture
) -> None:
    async def consume() -> list[bytes]:
        async with Consumer("t", "c", [copy.tcp_address for copy in copies]) as consumer:
            return [message.body for message in await take(consumer, 4)]

    with caplog.at_level(logging.WARNING, logger="martlet.client"):
        assert {b"first", b"second"} <= set(asyncio.run(consume()))
    assert caplog.text.count("both have the broker id") == 1


def test_threads_get_the_refusal_too(copies: list[BrokerProcess]) -> None:
    addresses = [copy.tcp_address for copy in copies]
    with (
        pytest.raises(SubscribeRefused, match=WAY_OUT),
        sync.PullConsumer("t", "g", addresses, start="first") as consumer,
    ):
        for _ in consumer:
            pass


def test_readers_refuse_the_copies_and_read_either_alone(copies: list[BrokerProcess]) -> None:
    first, second = copies
    with (
        spark(first.http_address, second.http_address) as brokers,
        pytest.raises(CopiedFolder, match=WAY_OUT) as refusal,
    ):
        brokers.poll(patient=True)
    assert first.http_address in str(refusal.value)
    assert second.http_address in str(refusal.value)
    with pytest.raises(SubscribeRefused, match=WAY_OUT) as refused:
        asyncio.run(members("both", first.tcp_address, second.tcp_address, count=4))
    assert refused.value.code == "COPIED_FOLDER"
    for broker, body in zip(copies, (b"first", b"second"), strict=True):
        with spark(broker.http_address) as alone:
            assert [queue.end_offset for queue in alone.poll(patient=True).values()] == [2]
        assert asyncio.run(members("one", broker.tcp_address)) == [b"common", body]


def test_a_copy_without_its_identity_is_a_broker_of_its_own(copies: list[BrokerProcess]) -> None:
    first, second = copies
    second.stop()
    (second.data_path / "broker.json").unlink()
    second.start()
    with spark(first.http_address, second.http_address) as brokers:
        assert len(brokers.poll(patient=True)) == 2


def test_a_producer_says_it(copies: list[BrokerProcess], caplog: pytest.LogCaptureFixture) -> None:
    async def connect() -> None:
        async with Producer([copy.tcp_address for copy in copies]):
            await until(lambda: "both have the broker id" in caplog.text)

    with caplog.at_level(logging.WARNING, logger="martlet.client"):
        asyncio.run(connect())


def test_one_broker_at_two_addresses_is_no_copy(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        publish(broker, b"one")
        publish(broker, b"two")
        other = [
            address.replace("127.0.0.1", "localhost")
            for address in (broker.http_address, broker.tcp_address)
        ]
        with spark(broker.http_address, other[0]) as brokers:
            assert len(brokers.poll(patient=True)) == 1
        assert asyncio.run(members("one", broker.tcp_address, other[1])) == [b"one", b"two"]


def test_a_broker_that_goes_on_at_another_address_is_no_copy(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        publish(broker, b"one")
        with spark(broker.http_address) as brokers:
            assert len(brokers.poll(patient=True)) == 1
            broker.stop()
            with BrokerProcess(tmp_path) as moved:
                address = moved.http_address
                brokers._polls[address] = brokers._new_poll(address)
                for _ in range(3):
                    assert len(brokers.poll(patient=False)) == 1
