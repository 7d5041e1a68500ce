"""``GET /metrics`` as Prometheus's own parser reads it."""

import asyncio
import json
import platform
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.crash.wire import Wire, dpub, http, mpub

from martlet import __version__
from martlet.server.observability.metrics import CHANNEL_METRICS, OTHER, TOPIC_METRICS
from martlet.testing import Broker
from martlet.text import MILLISECOND_NS

pytestmark = pytest.mark.interop

Labels = frozenset[tuple[str, str]]


class Scrape(dict[tuple[str, Labels], float]):
    """One answer: the value of each name with its labels."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            assert family.name not in self.kinds, "a metric is listed twice"
            assert family.documentation
            self.kinds[family.name] = family.type
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                assert key not in self, "a line is there twice"
                self[key] = sample.value

    def of(self, name: str, **labels: str) -> float:
        return self["martlet_" + name, frozenset(labels.items())]

    def channel(self, name: str, topic: str = "t", channel: str = "c") -> float:
        return self.of(f"channel_{name}", topic=topic, channel=channel)

    def buckets(self, name: str, **labels: str) -> Iterator[tuple[float, float]]:
        for (sample, sample_labels), value in self.items():
            if sample == f"martlet_{name}_bucket" and sample_labels >= frozenset(labels.items()):
                yield float(dict(sample_labels)["le"]), value


async def scrape(broker: Broker) -> Scrape:
    return Scrape((await http(broker.http_address, "/metrics")).decode())


async def scraped(broker: Broker, holds: Callable[[Scrape], bool]) -> Scrape:
    """Scrape until something holds."""
    async with asyncio.timeout(60):
        while not holds(metrics := await scrape(broker)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return metrics


async def make(broker: Broker, *topics: str) -> None:
    """Make topics with a channel each."""
    for topic in topics:
        await http(broker.http_address, f"/topic/create?topic={topic}", b"")
        await http(broker.http_address, f"/channel/create?topic={topic}&channel=c", b"")


async def test_counters_match_the_actions() -> None:
    async with Broker(msg_timeout_ns=300 * MILLISECOND_NS) as broker:
        producer = await Wire.open(broker.tcp_address)
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        producer.send(mpub("t", [b"four"] * 10))
        await producer.ok()
        producer.send(dpub("t", 60_000, b"later"))
        await producer.ok()
        wire.send(b"RDY 5\n")
        got = [await wire.message() for _ in range(5)]
        wire.send(b"RDY 0\n")
        wire.send(b"".join(b"FIN %b\n" % message.id for message in got[:2]))
        wire.send(b"REQ %b 60000\n" % got[2].id)
        metrics = await scraped(broker, lambda m: m.channel("timed_out_messages_total") == 2)
        assert metrics.of("topic_published_messages_total", topic="t") == 11
        assert metrics.of("topic_published_bytes_total", topic="t") == 45
        assert metrics.of("topic_depth_messages", topic="t") == 0
        assert metrics.of("topic_channels", topic="t") == 1
        assert metrics.channel("received_messages_total") == 11
        assert metrics.channel("delivered_messages_total") == 5
        assert metrics.channel("finished_messages_total") == 2
        assert metrics.channel("requeued_messages_total") == 1
        assert metrics.channel("depth_messages") == 7
        assert metrics.channel("in_flight_messages") == 0
        assert metrics.channel("deferred_messages") == 2
        assert metrics.channel("consumers") == 1
        assert metrics.of("connections") == 2
        wire.close()
        producer.close()


async def test_latencies_are_a_histogram_whose_buckets_add_up() -> None:
    async with Broker() as broker:
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        await http(broker.http_address, "/pub?topic=t", b"x")
        wire.send(b"RDY 1\n")
        wire.send(b"FIN %b\n" % (await wire.message()).id)
        metrics = await scraped(broker, lambda m: m.channel("finished_messages_total") == 1)
        name = "channel_publish_to_finish_seconds"
        assert metrics.kinds[f"martlet_{name}"] == "histogram"
        buckets = sorted(metrics.buckets(name, topic="t", channel="c"))
        bounds = [bound for bound, _ in buckets]
        assert bounds[-1] == float("inf")
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert metrics.channel("publish_to_finish_seconds_count") == 1
        took_s = metrics.channel("publish_to_finish_seconds_sum")
        assert 0 < took_s < 30
        assert {count for bound, count in buckets if bound < took_s} <= {0}
        assert {count for bound, count in buckets if bound >= took_s} == {1}
        wire.close()


async def test_the_log_has_metrics_of_flushes_checkpoints_and_files(tmp_path: Path) -> None:
    async with Broker(tmp_path, flush="sync", checkpoint_interval_ns=20 * MILLISECOND_NS) as broker:
        await http(broker.http_address, "/pub?topic=t", b"x" * 1000)
        name = "log_checkpoint_duration_seconds_count"
        metrics = await scraped(broker, lambda m: m.of(name) > 0)
        assert metrics.of("log_flush_duration_seconds_count") > 0
        assert metrics.of("log_position_bytes") >= 1000
        assert metrics.of("log_durable_position_bytes") >= 1000
        files = [file.stat().st_size for file in (tmp_path / "log").iterdir()]
        assert metrics.of("log_segments") + metrics.of("log_spare_segments") == len(files)
        assert metrics.of("log_disk_bytes") == sum(files)
        assert metrics.of("log_min_free_bytes") == broker.options.min_free_bytes
        assert metrics.of("healthy") == metrics.of("ready") == 1
        assert metrics.of("log_refused_writes_total") == 0
        broker.server.broker.log.flush_failed(OSError("the disk has gone"))
        with pytest.raises(Exception, match="the disk has gone"):
            await http(broker.http_address, "/pub?topic=t", b"y")
        metrics = await scrape(broker)
        assert metrics.of("healthy") == metrics.of("ready") == 0
        assert metrics.of("log_refused_writes_total") >= 1


async def test_topics_beyond_the_limit_are_added_up() -> None:
    async with Broker(metrics_max_channels=3) as broker:
        for number in range(6):
            await make(broker, f"t{number}")
            await http(broker.http_address, f"/mpub?topic=t{number}", b"a\n" * (number + 1))
        metrics = await scrape(broker)
        for kinds, count in ((TOPIC_METRICS, 4), (CHANNEL_METRICS, 4)):
            for metric in kinds:
                assert sum(name == metric.metric for name, _ in metrics) == count
        published = "topic_published_messages_total"
        assert [metrics.of(published, topic=f"t{number}") for number in range(3)] == [1, 2, 3]
        assert metrics.of(published, topic=OTHER) == 4 + 5 + 6
        assert metrics.channel("depth_messages", OTHER, OTHER) == 4 + 5 + 6
        assert metrics.channel("publish_to_finish_seconds_count", OTHER, OTHER) == 0


async def test_names_keep_to_prometheus_s_conventions() -> None:
    async with Broker() as broker:
        await http(broker.http_address, "/pub?topic=t%23ephemeral", b"x")
        text = (await http(broker.http_address, "/metrics")).decode()
    metrics = Scrape(text)
    for name, kind in metrics.kinds.items():
        assert re.fullmatch(r"(martlet|process|python)_[a-z][a-z0-9_]*", name)
        type_line = f"# TYPE {name}{'_total' if kind == 'counter' else ''} {kind}\n"
        assert type_line in text, "a counter, and nothing else, ends in _total"
        assert not re.search(r"_(ms|ns|us|kb|mib|milliseconds)(_|$)", name), "no base unit"
    assert metrics.of("topic_published_messages_total", topic="t#ephemeral") == 1
    assert metrics["process_resident_memory_bytes", frozenset()] > 1 << 20
    assert metrics["process_cpu_seconds_total", frozenset()] > 0


async def test_the_answer_says_which_format_it_is() -> None:
    async with Broker() as broker:

        def ask() -> tuple[str | None, str | None]:
            with urllib.request.urlopen(f"http://{broker.http_address}/metrics") as response:
                headers = response.headers
                return headers["Content-Type"], headers["X-NSQ-Content-Type"]

        content_type, nsq = await asyncio.to_thread(ask)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert nsq is None


async def test_the_age_of_the_oldest_waiting_message() -> None:
    async with Broker() as broker:
        producer = await Wire.open(broker.tcp_address)
        wire = await Wire.subscribed(broker.tcp_address, "t", "c")
        name = "oldest_message_age_seconds"
        assert (await scrape(broker)).channel(name) == 0
        producer.send(mpub("t", [b"one", b"two"]))
        await producer.ok()
        published_s = time.monotonic()
        await asyncio.sleep(0.05)
        age_s = (await scrape(broker)).channel(name)
        assert 0.05 <= age_s <= time.monotonic() - published_s + 1
        stats = json.loads(await http(broker.http_address, "/stats?format=json"))
        (channel,) = stats["topics"][0]["channels"]
        assert channel["oldest_message_age_ms"] >= int(age_s * 1000)
        wire.send(b"RDY 2\n")
        got = [await wire.message() for _ in range(2)]
        assert (await scrape(broker)).channel(name) == 0, "both are in flight"
        wire.send(b"RDY 0\n" + b"REQ %b 0\n" % got[1].id)
        await scraped(broker, lambda m: m.channel(name) >= age_s)
        producer.close()
        wire.close()


async def test_the_oldest_age_of_channels_beyond_the_limit_is_the_greatest() -> None:
    async with Broker(metrics_max_channels=1) as broker:
        await make(broker, "first", "old", "new")
        await http(broker.http_address, "/pub?topic=old", b"x")
        await asyncio.sleep(0.05)
        await http(broker.http_address, "/pub?topic=new", b"x")
        metrics = await scrape(broker)
        assert metrics.channel("oldest_message_age_seconds", "first") == 0
        assert 0.05 <= metrics.channel("oldest_message_age_seconds", OTHER, OTHER) < 30


async def test_the_lag_of_the_event_loop_and_the_versions() -> None:
    async with Broker() as broker:
        name = "event_loop_lag_seconds_count"
        before = await scraped(broker, lambda m: m.of(name) > 0)
        time.sleep(0.3)  # noqa: ASYNC251, the loop stands still
        metrics = await scraped(broker, lambda m: m.of(name) > before.of(name))
        assert metrics.kinds["martlet_event_loop_lag_seconds"] == "histogram"
        lag_s = metrics.of("event_loop_lag_seconds_sum") - before.of("event_loop_lag_seconds_sum")
        assert lag_s >= 0.15
        version, python = __version__, platform.python_version()
        assert metrics.of("build_info", version=version, python=python) == 1
