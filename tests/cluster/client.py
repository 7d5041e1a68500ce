"""A producer or a consumer of the drill: a process that writes down what it knows for certain.

A line of its ledger is the time and a body: of a producer, once that was answered OK; of a
consumer, before it is finished. With `send` and `receive`, a message's id follows its body.

::

    python -m tests.cluster.client produce NAME LEDGER POLL_S LOOKUP...
    python -m tests.cluster.client consume NAME LEDGER POLL_S LOOKUP...
    python -m tests.cluster.client send NAME LEDGER POLL_S BROKER...
    python -m tests.cluster.client receive NAME LEDGER POLL_S BROKER...
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable

from tests.ledger import Ledger

from martlet.client import (
    Backoff,
    ClientError,
    Consumer,
    Identity,
    Producer,
    PublishSettings,
    PutStatus,
)

TOPIC = "load"
CHANNEL = "work"
AT_ONCE = 5
PAUSE_S = 0.02
WORKERS = 3
"""How many publish at the same time in one producer."""
PATIENCE = Identity(heartbeat_interval_ms=1000)
TRIES = Backoff(max_s=1.0)


def note(ledger: Ledger, bodies: Iterable[bytes]) -> None:
    """Write bodies down with the time."""
    now_ns = time.time_ns()
    ledger.write(b"%d %b" % (now_ns, body) for body in bodies)


async def produce(name: str, ledger: Ledger, poll_s: float, lookups: list[str]) -> None:
    """Publish to every broker that the lookup daemons know of, until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)

    async def publish(producer: Producer, worker: int) -> None:
        number = 0
        while not stopping.is_set():
            bodies = [
                b"%b-%d-%d-%d" % (name.encode(), os.getpid(), worker, number + n)
                for n in range(AT_ONCE)
            ]
            number += AT_ONCE
            try:
                await producer.publish_many(TOPIC, bodies)
            except ClientError as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
            else:
                note(ledger, bodies)
            await asyncio.sleep(PAUSE_S)

    opened = Producer(
        lookup=lookups,
        lookup_poll_s=poll_s,
        timeout_s=60,
        answer_timeout_s=1.0,
        identity=PATIENCE,
        connect_timeout_s=1.0,
        backoff=TRIES,
    )
    async with opened as producer, asyncio.TaskGroup() as group:
        for worker in range(WORKERS):
            group.create_task(publish(producer, worker))


async def send(name: str, ledger: Ledger, _poll_s: float, brokers: list[str]) -> None:
    """Send numbered messages to a broker with replicas, each once, until stopped."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)

    async def work(producer: Producer, worker: int) -> None:
        number = 0
        while not stopping.is_set():
            body = b"%b-%d-%d-%d" % (name.encode(), os.getpid(), worker, number)
            number += 1
            result = await producer.send(TOPIC, body)
            assert result.id is not None
            if result.status is not PutStatus.FLUSH_SLAVE_TIMEOUT:  # A failover may lose it.
                note(ledger, [body + b" " + result.id])

    settings = PublishSettings(send_timeout_s=60, send_retries=None)
    opened = Producer(
        brokers,
        publishing=settings,
        timeout_s=60,
        answer_timeout_s=1.0,
        identity=PATIENCE,
        connect_timeout_s=1.0,
        backoff=TRIES,
    )
    async with opened as producer, asyncio.TaskGroup() as group:
        for worker in range(WORKERS):
            group.create_task(work(producer, worker))


async def receive(_name: str, ledger: Ledger, _poll_s: float, brokers: list[str]) -> None:
    """Consume from a broker with replicas, until killed."""
    consumer = Consumer(
        TOPIC,
        CHANNEL,
        brokers,
        max_in_flight=50,
        identity=PATIENCE,
        connect_timeout_s=1.0,
        backoff=TRIES,
    )
    async with consumer:
        async for message in consumer:
            note(ledger, [message.body + b" " + message.id])
            message.finish()


async def consume(_name: str, ledger: Ledger, poll_s: float, lookups: list[str]) -> None:
    """Consume from every broker that the lookup daemons know of, until killed."""
    consumer = Consumer(
        TOPIC,
        CHANNEL,
        lookup=lookups,
        lookup_poll_s=poll_s,
        max_in_flight=50,
        identity=PATIENCE,
        connect_timeout_s=1.0,
        backoff=TRIES,
    )
    async with consumer:
        async for batch in consumer.batches():
            note(ledger, batch.bodies)
            await batch.finish()


if __name__ == "__main__":
    role, client_name, path, poll, *daemons = sys.argv[1:]
    run = {"produce": produce, "consume": consume, "send": send, "receive": receive}[role]
    asyncio.run(run(client_name, Ledger(path), float(poll), daemons))
