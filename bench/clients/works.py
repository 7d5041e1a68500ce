"""The works of the clients, each checked at the broker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.clients import consume as consuming
from bench.clients import publish as publishing
from bench.clients.nsq_tools import run_tool
from bench.clients.publish import AT_ONCE, BATCH, BODY
from bench.contest import Contest, Run
from bench.http_api import get, post
from martlet.client import Producer
from martlet.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
MAX_RUN_S = 600
SETTLE_S = 10
MAX_PER_SECOND = 2_000_000
"""Messages that are stored for each second of bench_reader, which is to find enough of them."""
READER_TOPIC = "bench-reader"

Contestants = dict[str, Callable[[int], Run]]


def publish(brokers: Sequence[BrokerProcess], given: Namespace) -> Contest:
    """Single messages, many at once."""
    title = f"{given.messages:,} messages of {len(BODY)} bytes, published {AT_ONCE} at once"
    return Contest(title, _producers(brokers[0], "publish", given))


def publish_many(brokers: Sequence[BrokerProcess], given: Namespace) -> Contest:
    """Batches, one after the other."""
    contestants = _producers(brokers[0], "publish-many", given)
    if given.bench_writer:
        for count in _connection_counts():
            name = f"bench_writer, {count} connection{'s' * (count > 1)}"
            contestants[name] = partial(_run_writer, brokers[0], given, count)
    title = f"{given.messages:,} messages of {len(BODY)} bytes, published {BATCH} a call"
    return Contest(title, contestants)


def _producers(broker: BrokerProcess, work: str, given: Namespace) -> Contestants:
    def run(client: str, number: int) -> Run:
        topic = f"{work}-{client}-{number}"
        arguments = [client, broker.tcp_address, topic, str(given.messages), work]
        result = _process(publishing, arguments)
        stored = _take_stored(broker, topic)
        if stored != (given.messages, given.messages * len(BODY)):
            raise SystemExit(f"{client}, {work}: stored are {stored} messages and bytes")
        return Run(given.messages, result["seconds"], result["processor_s"])

    return {client: partial(run, client) for client in given.clients}


def _run_writer(broker: BrokerProcess, given: Namespace, connections: int, number: int) -> Run:
    topic = f"bench-writer-{connections}-{number}"
    arguments = [f"-nsqd-tcp-address={broker.tcp_address}", f"-topic={topic}"]
    arguments += [f"-size={len(BODY)}", f"-batch-size={BATCH}"]
    done = run_tool(given.bench_writer, connections, given.tool_seconds, arguments)
    stored, _ = _take_stored(broker, topic)
    if stored != done.messages:
        raise SystemExit(f"bench_writer: {done.messages} messages it says, and {stored} are stored")
    return Run(stored, done.seconds, done.processor_s)


def consume(brokers: Sequence[BrokerProcess], given: Namespace) -> Contest:
    """A handler for each message of one broker."""
    broker, topic = brokers[0], "consume"
    channels = [f"{client}-{n}" for client in given.clients for n in range(given.repeat)]
    _store([broker], topic, channels, given.messages)

    def run(client: str, number: int) -> Run:
        return _consume([broker], client, topic, f"{client}-{number}", given)

    contestants: Contestants = {client: partial(run, client) for client in given.clients}
    if given.bench_reader:
        stored = int(MAX_PER_SECOND * given.tool_seconds)
        counts = _connection_counts()
        channels = [f"{count}-{n}" for count in counts for n in range(given.repeat)]
        _store([broker], READER_TOPIC, channels, stored)
        for count in counts:
            name = f"bench_reader, no handler, {count} connection{'s' * (count > 1)}"
            contestants[name] = partial(_run_reader, broker, given, stored, count)
    title = f"{given.messages:,} messages of {len(BODY)} bytes, a handler for each"
    return Contest(title, contestants)


def consume_three(brokers: Sequence[BrokerProcess], given: Namespace) -> Contest:
    """As many messages of three brokers as of one, with the same ready count in all."""
    names = {"1 broker": brokers[:1], f"{len(brokers)} brokers": brokers}
    channels = [str(number) for number in range(given.repeat)]

    def topic(some: Sequence[BrokerProcess]) -> str:
        return f"consume-of-{len(some)}"

    for some in names.values():
        _store(some, topic(some), channels, given.messages)

    def run(some: Sequence[BrokerProcess], number: int) -> Run:
        return _consume(some, "martlet", topic(some), str(number), given)

    title = f"{given.messages:,} messages of {len(BODY)} bytes, a handler for each, by martlet"
    contestants: Contestants = {name: partial(run, some) for name, some in names.items()}
    return Contest(title, contestants, first=f"{len(brokers)} brokers", beside="of all brokers is")


WORKS = {
    "consume": consume,
    "publish": publish,
    "publish-many": publish_many,
    "consume-three": consume_three,
}


def _consume(
    brokers: Sequence[BrokerProcess], client: str, topic: str, channel: str, given: Namespace
) -> Run:
    """One run; fails where a message is left."""
    addresses = ",".join(broker.tcp_address for broker in brokers)
    arguments = [client, addresses, topic, channel, str(given.messages), str(given.ready)]
    result = _process(consuming, arguments)
    if result["body_bytes"] != given.messages * len(BODY):
        raise SystemExit(f"{client}: {result['body_bytes']} bytes are not what was stored")
    _wait_for_none(
        lambda: sum(_unfinished(broker, topic, channel) for broker in brokers),
        f"{client}: messages are not finished",
    )
    return Run(given.messages, result["seconds"], result["processor_s"])


def _run_reader(
    broker: BrokerProcess, given: Namespace, stored: int, connections: int, number: int
) -> Run:
    """What the broker knows as finished counts, which can be less than what the tool received."""
    topic, channel = READER_TOPIC, f"{connections}-{number}"
    arguments = [f"-nsqd-tcp-address={broker.tcp_address}", f"-topic={topic}"]
    arguments += [f"-channel={channel}", f"-rdy={given.ready}", f"-size={len(BODY)}"]
    done = run_tool(given.bench_reader, connections, given.tool_seconds, arguments)
    _wait_for_none(
        lambda: int(_channel(broker, topic, channel)["client_count"]),
        "bench_reader has ended, and the broker still has its connections",
    )
    left = _unfinished(broker, topic, channel)
    finished = stored - left
    if not left:
        raise SystemExit(f"bench_reader: {stored} messages were too few for {done.seconds:.2f} s")
    if not 0 < finished <= done.messages:
        raise SystemExit(f"bench_reader: {done.messages} messages it says, finished are {finished}")
    return Run(finished, done.seconds, done.processor_s)


def _wait_for_none(count: Callable[[], int], failure: str) -> None:
    gives_up_s = time.monotonic() + SETTLE_S
    while left := count():
        if time.monotonic() > gives_up_s:
            raise SystemExit(f"{failure}: {left}")
        time.sleep(0.05)


def _connection_counts() -> list[int]:
    """One, as the clients have, and as many as the tools take by themselves."""
    return sorted({1, os.cpu_count() or 1})


def _process(script: Any, arguments: list[str]) -> dict[str, float]:
    """Run the script of one client, and return what it prints."""
    command = [sys.executable, "-m", script.__name__, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=MAX_RUN_S, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended by {done.returncode}")
    return dict(json.loads(done.stdout))


def _store(
    brokers: Sequence[BrokerProcess], topic: str, channels: list[str], messages: int
) -> None:
    """Make the channels, and publish what each of them gets, as much on each broker."""
    for number, broker in enumerate(brokers):
        post(broker.http_address, f"topic/create?topic={topic}")
        for channel in channels:
            post(broker.http_address, f"channel/create?topic={topic}&channel={channel}")
        share = messages // len(brokers) + (number < messages % len(brokers))
        asyncio.run(_fill(broker.tcp_address, topic, share))


async def _fill(address: str, topic: str, messages: int) -> None:
    async with Producer(address) as producer:
        for start in range(0, messages, 1000):
            await producer.publish_many(topic, [BODY] * min(1000, messages - start))


def _take_stored(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """How many messages and bytes the topic got; the topic goes, so that the next finds no more."""
    stats = _topic(broker, topic)
    post(broker.http_address, f"topic/delete?topic={topic}")
    return int(stats["message_count"]), int(stats["message_bytes"])


def _unfinished(broker: BrokerProcess, topic: str, channel: str) -> int:
    """How many messages the channel still knows."""
    stats = _channel(broker, topic, channel)
    return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])


def _channel(broker: BrokerProcess, topic: str, channel: str) -> dict[str, Any]:
    return dict(_topic(broker, topic, f"&channel={channel}")["channels"][0])


def _topic(broker: BrokerProcess, topic: str, more: str = "") -> dict[str, Any]:
    topics = get(broker.http_address, f"stats?format=json&topic={topic}{more}")["topics"]
    if not topics:
        raise SystemExit(f"the broker knows no topic {topic}: nothing was stored")
    return dict(topics[0])
