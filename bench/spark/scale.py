"""How the cost of a query grows with brokers, topics, queues and executors.

    ./run bench spark-scale [--part all|planning|stream|door|executors] [--most 8]
                            [--messages 2000000] [--json FILE]

*planning*: the driver's work for each micro-batch before any task runs: ask the brokers what
there is, decide where the batch ends, find the batches in the index, and cut splits.  Measured in
one process, without Spark, against 1 to 8 brokers, and against one broker with more and more topics
and queues.  Seconds of the processor are told too, which other work on the machine blurs less.

*stream*: what a micro-batch takes in Spark, from its trigger to its commit, when each of 1 to 1,000
topics has one new message.

*door*: how much one broker gives to readers on other machines, 1 to 8 at once, and what that costs
its processor; they take the log over HTTP, and do not decode it.

*executors*: the same batch query on a standalone cluster of 1 to 8 executors, a core each.  Beyond
the processors of the machine nothing gets faster; what can be seen is what an executor, and a task,
costs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.flags import parse
from bench.http_api import post
from bench.spark.beside import machine, write_json
from bench.spark.letters import TOPIC, fill
from bench.stopwatch import Stopwatch, processor_s
from martlet.client.sync import Producer
from martlet.log.record import read_header
from martlet.reader.brokers.endpoint import BrokerQueue, Endpoint
from martlet.reader.options import ReadOptions
from martlet.reader.task import CHUNK_BYTES
from martlet.spark.java import spark_session
from martlet.spark.read.schema import SCHEMA, arrow_schema
from martlet.spark.read.stream import StreamReader
from martlet.testing import BrokerProcess
from martlet.testing.spark_cluster import SparkCluster

_ROUNDS = 7
_LOOKED_S = 1.05
"""For less than this the source may take what it has heard last."""
_TOPICS = (1, 10, 100, 1000)
_QUEUES = (1, 8, 64)
_PERIOD_S = 3
Cost = dict[str, Any]


def plan_costs(addresses: Iterable[str], topics: Iterable[str], fresh: Callable[[], None]) -> Cost:
    """What planning a micro-batch costs, once a query runs: the median of some rounds."""
    given = {
        "addresses": ",".join(addresses),
        "topic": ",".join(topics),
        "startingOffsets": "earliest",
    }
    reader = StreamReader(ReadOptions.parse(given, "stream"), arrow_schema(SCHEMA))
    watch = Stopwatch()
    start = reader.initialOffset()
    first = watch.result()
    seconds, processor_s, idle_s = [], [], []
    for _ in range(_ROUNDS):
        fresh()
        time.sleep(_LOOKED_S)
        watch.begin()
        end = reader.latestOffset(start, ReadAllAvailable())
        splits = reader.partitions(start, end)
        reader.commit(end)
        took = watch.result()
        assert splits
        seconds.append(took["seconds"])
        processor_s.append(took["processor_s"])
        start = end
        # Nothing new: what an idle query costs each time that the brokers are asked.
        time.sleep(_LOOKED_S)
        watch.begin()
        reader.latestOffset(start, ReadAllAvailable())
        idle_s.append(watch.result()["processor_s"])
    reader.stop()
    return {
        "first_s": first["seconds"],
        "batch_s": statistics.median(seconds),
        "batch_processor_s": statistics.median(processor_s),
        "idle_processor_s": statistics.median(idle_s),
    }


def doubling(limit: int) -> Iterator[int]:
    """1, 2, 4 and so on, up to the limit."""
    count = 1
    while count <= limit:
        yield count
        count *= 2


def planning(limit: int) -> list[Cost]:
    """By brokers, by topics of one broker, and by queues of one topic."""
    found = []
    with ExitStack() as stack:
        brokers = [stack.enter_context(BrokerProcess()) for _ in range(limit)]
        producers = [stack.enter_context(Producer(broker.tcp_address)) for broker in brokers]

        def cost(kind: str, count: int, used: int, topics: list[str]) -> None:
            def fresh() -> None:
                for producer in producers[:used]:
                    for topic in topics:
                        producer.publish(topic, b"new")

            fresh()
            addresses = [broker.http_address for broker in brokers[:used]]
            found.append({"by": kind, "count": count} | plan_costs(addresses, topics, fresh))
            print("  " + line(found[-1]), flush=True)

        for count in doubling(limit):
            cost("brokers", count, count, ["one"])
        for count in _TOPICS:
            cost("topics", count, 1, [f"topic-{number}" for number in range(count)])
        for count in _QUEUES:
            topic = f"queues-{count}"
            post(brokers[0].http_address, f"topic/create?topic={topic}&queues={count}")
            # Messages without a key go to the queues by turns.
            cost("queues", count, 1, [topic] * count)
    return found


def streams() -> list[Cost]:
    """A micro-batch in Spark, by topics that have something new."""
    found = []
    spark = spark_session("martlet bench")
    with (
        BrokerProcess() as broker,
        Producer(broker.tcp_address) as producer,
        tempfile.TemporaryDirectory(prefix="martlet-bench-") as folder,
    ):
        for count in _TOPICS:
            topics = [f"topic-{number}" for number in range(count)]
            for topic in topics:
                producer.publish(topic, b"first")
            rows = spark.readStream.format("martlet").option("topic", ",".join(topics))
            query = (
                rows.option("addresses", broker.http_address)
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", f"{folder}/{count}")
                .trigger(processingTime=f"{_PERIOD_S} seconds")
                .start()
            )
            for _ in range(_ROUNDS):
                query.processAllAvailable()
                for topic in topics:
                    producer.publish(topic, b"new")
            query.processAllAvailable()
            query.stop()
            full = [each for each in query.recentProgress if each.numInputRows == count]
            took_ms = statistics.median(each.durationMs["triggerExecution"] for each in full)
            found.append({"topics": count, "seconds": took_ms / 1000, "batches": len(full)})
            print(f"  {count:>6,} topics: {took_ms:,.0f} ms a micro-batch", flush=True)
    spark.stop()
    return found


def line(cost: Cost) -> str:
    """A row of the table of planning."""
    return (
        f"{cost['count']:>6,} {cost['by']:<9}{1e3 * cost['first_s']:10.1f}"
        f"{1e3 * cost['batch_s']:10.1f}{1e3 * cost['batch_processor_s']:12.2f}"
        f"{1e3 * cost['idle_processor_s']:10.3f}"
    )


def take(address: str, start: int, end: int) -> int:
    """Read some offsets over HTTP as a task does. Returns the bytes."""
    endpoint = Endpoint(address, 60_000)
    (queue,) = endpoint.listing([TOPIC]).queues
    queue_range = BrokerQueue(TOPIC, queue.queue, queue.queue_topic_id)
    total = 0
    while start < end:
        data = endpoint.batches(queue_range, start, CHUNK_BYTES)
        total += len(data)
        at = 0
        while at < len(data):
            header = read_header(data, at, int.from_bytes(data[at + 16 : at + 24], "little"))
            start = header.first_offset + header.count
            at += header.length
    endpoint.close()
    return total


def door(limit: int, messages: int) -> list[Cost]:
    """The bytes that one broker gives to several readers."""
    found = []
    with BrokerProcess() as broker, ProcessPoolExecutor(limit) as pool:
        fill(broker.tcp_address, messages, 200)
        for count in doubling(limit):
            edges = [messages * number // count for number in range(count + 1)]
            before_s = processor_s(broker.process_id)
            began_s = time.monotonic()
            jobs = [pool.submit(take, broker.http_address, *pair) for pair in pairwise(edges)]
            total = sum(job.result() for job in jobs)
            took_s = time.monotonic() - began_s
            each_s = (processor_s(broker.process_id) - before_s) / total * 1e9
            rate = total / took_s / 1e6
            found.append({"readers": count, "mb_per_s": rate, "broker_s_per_gb": each_s})
            print(
                f"  {count:>2} readers: {rate:,.0f} MB/s, {each_s:.2f} s of the broker's"
                " processor for a GB",
                flush=True,
            )
    return found


def executors(limit: int, messages: int) -> list[Cost]:
    """The same query on 1 to `limit` executors."""
    found = []
    with BrokerProcess() as broker:
        fill(broker.tcp_address, messages, 200)
        for count in doubling(limit):
            with SparkCluster(workers=count) as cluster:
                settings: dict[str, str | int | bool] = {"spark.executor.memory": "512m"}
                spark = spark_session("martlet bench", master=cluster.url, **settings)
                seconds = []
                for number in range(4):
                    rows = spark.read.format("martlet").schema("value BINARY")
                    rows = rows.option("addresses", broker.http_address).option("topic", "letters")
                    rows = rows.option("splitBytes", 16 << 20)
                    began_s = time.monotonic()
                    (total,) = rows.load().agg(F.sum(F.length("value"))).collect()[0]
                    assert total == messages * 200
                    if number:
                        seconds.append(time.monotonic() - began_s)
                spark.stop()
            found.append({"executors": count, "seconds": statistics.median(seconds)})
            print(
                f"  {count} executors: {found[-1]['seconds']:.2f} s,"
                f" {messages / found[-1]['seconds'] / 1e6:.2f} M rows/s",
                flush=True,
            )
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    parts = ("all", "planning", "stream", "door", "executors")
    given = parse(__doc__, arguments, part=parts, most=8, messages=2_000_000, json=None)
    print(machine())
    figures: dict[str, list[Cost]] = {}
    if given.part in ("planning", "all"):
        print("planning, ms:       first look   a batch   processor      idle")
        figures["planning"] = planning(given.most)
    if given.part in ("stream", "all"):
        figures["stream"] = streams()
    if given.part in ("door", "all"):
        figures["door"] = door(given.most, given.messages)
    if given.part in ("executors", "all"):
        figures["executors"] = executors(given.most, given.messages)
    write_json(given, figures)
