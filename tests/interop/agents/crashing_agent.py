"""A consumer whose process ends at once when it handles b"poison", as a crash of it would.

Its arguments: how it consumes, the broker's address, how many handlers run at once, and how many
seconds each takes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from martlet.client import Batch, Consumer, Message, sync

CRASHED = 17
MESSAGE_TIMEOUT_S = 1
"""Of a client of NSQ whose handler is slow beside that."""
SLOW_S = 0.1


def crash_if_poison(body: bytes) -> None:
    if body == b"poison":
        os._exit(CRASHED)


async def handle(message: Any) -> None:
    crash_if_poison(message.body)
    if seconds_each:
        await asyncio.sleep(seconds_each)


def handle_here(message: Any) -> None:
    crash_if_poison(message.body)
    if seconds_each:
        time.sleep(seconds_each)


async def use_run(address: str, concurrency: int) -> None:
    async with Consumer("work", "main", address) as consumer:
        await consumer.run(handle, concurrency=concurrency)


async def use_threads(address: str, concurrency: int) -> None:
    async with Consumer("work", "main", address) as consumer:
        await consumer.run(handle_here, concurrency=concurrency, on="threads")


async def use_iteration(address: str, concurrency: int) -> None:
    async with Consumer("work", "main", address) as consumer:
        async for message in consumer:
            await handle(message)
            message.finish()


async def use_tasks(address: str, concurrency: int) -> None:
    async def work(message: Message) -> None:
        await asyncio.sleep(seconds_each)
        await handle(message)
        message.finish()

    async with (
        Consumer("work", "main", address, max_in_flight=concurrency) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        async for message in consumer:
            tasks.create_task(work(message))


async def use_batch_tasks(address: str, concurrency: int) -> None:
    async def work(batch: Batch) -> None:
        await asyncio.sleep(seconds_each)
        for body in batch.bodies:
            crash_if_poison(body)
        await batch.finish()

    async with (
        Consumer("work", "main", address, max_in_flight=10 * concurrency) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        async for batch in consumer.batches(max_messages=concurrency):
            tasks.create_task(work(batch))


async def use_batches(address: str, concurrency: int) -> None:
    async with Consumer("work", "main", address) as consumer:
        async for batch in consumer.batches(max_messages=concurrency):
            for body in batch.bodies:
                crash_if_poison(body)
            await batch.finish()


def use_sync(address: str, concurrency: int) -> None:
    with sync.Consumer("work", "main", address) as consumer:
        for message in consumer:
            handle_here(message)
            message.finish()


def use_sync_run(address: str, concurrency: int) -> None:
    with sync.Consumer("work", "main", address) as consumer:
        consumer.run(handle_here, concurrency=concurrency)


def use_sync_tasks(address: str, concurrency: int) -> None:
    def work(message: Message) -> None:
        time.sleep(seconds_each)
        handle_here(message)
        message.finish()

    with (
        sync.Consumer("work", "main", address, max_in_flight=concurrency) as consumer,
        ThreadPoolExecutor(concurrency) as threads,
    ):
        for message in consumer:
            threads.submit(work, message)


async def use_exit(address: str, concurrency: int) -> None:
    async def work(message: Message) -> None:
        if message.body == b"poison":
            sys.exit(CRASHED)
        await handle(message)

    async with Consumer("work", "main", address) as consumer:
        await consumer.run(work, concurrency=concurrency)


def use_sync_exit(address: str, concurrency: int) -> None:
    def work(message: Message) -> None:
        if message.body == b"poison":
            sys.exit(CRASHED)
        handle_here(message)

    with sync.Consumer("work", "main", address) as consumer:
        consumer.run(work, concurrency=concurrency)


async def use_pynsq(address: str, concurrency: int) -> None:
    import nsq

    def work(message: Any) -> bool:
        handle_here(message)
        return True

    nsq.Reader(
        topic="work",
        channel="main",
        nsqd_tcp_addresses=[address],
        message_handler=work,
        max_in_flight=40,
        max_tries=0,
        msg_timeout=message_timeout_s,
    )
    await asyncio.Event().wait()


async def use_ansq(address: str, concurrency: int) -> None:
    import ansq

    features = ansq.ConnectionFeatures(msg_timeout=1000 * message_timeout_s)
    options = ansq.ConnectionOptions(features=features)
    reader = await ansq.create_reader(
        "work", "main", nsqd_tcp_addresses=[address], connection_options=options
    )
    async for message in reader.messages():
        await handle(message)
        await message.fin()


how, address, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3])
seconds_each = float(sys.argv[4])
message_timeout_s = MESSAGE_TIMEOUT_S if seconds_each > SLOW_S else 60

if __name__ == "__main__":
    work = globals()[f"use_{how}"](address, concurrency)
    if asyncio.iscoroutine(work):
        asyncio.run(work)
