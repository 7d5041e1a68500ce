"""Requests and replies: what a request costs the broker, the requester and the worker.

    ./run bench requests [--requests=20000] [--repeat=3] [--body-bytes=200]

A requester and a worker are processes of their own, with one connection each. A given number of
requests wait for their reply at any time. For each number: requests a second, and microseconds of
the broker's processor for a request (four commands: the request, its FIN, the reply, its FIN), of
which a second has a million: so ``1,000,000 / us`` is what one core of a broker can do. The last
row is the plain way: as many messages published one by one, handled and finished.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection

import psutil
import uvloop
from rich.console import Console
from rich.table import Table

from bench.flags import parse
from martlet.client import Consumer, Message, Producer
from martlet.testing import BrokerProcess

WAITING = (1, 16, 256)
TIMEOUT_S = 60
Row = tuple[float, float, float, float]
"""Requests a second, and microseconds of the broker, the requester and the worker for one."""


def work(address: str, ready: Connection) -> None:
    """Reply to requests until the process is ended."""

    def handle(message: Message) -> None:
        if message.is_request:
            message.reply(message.body)

    async def run() -> None:
        async with Consumer("jobs", "workers", address, max_in_flight=1000) as consumer:
            ready.send("ready")
            await consumer.run(handle)

    uvloop.run(run())


def used_s(process: psutil.Process) -> float:
    """The processor time of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


async def measure(
    one: Callable[[], Awaitable[object]],
    count: int,
    waiting: int,
    processes: Sequence[psutil.Process],
) -> Row:
    """Measure so many calls, of which some run at any time."""
    left = count

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    before_s = [used_s(process) for process in processes]
    began_s = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(waiting)))
    took_s = time.perf_counter() - began_s
    broker, requester, worker = (
        1e6 * (used_s(process) - before) / count
        for process, before in zip(processes, before_s, strict=True)
    )
    return count / took_s, broker, requester, worker


async def all_rows(
    broker: BrokerProcess, processes: Sequence[psutil.Process], count: int, body: bytes
) -> dict[str, Row]:
    """Measure each row once."""
    rows = {}
    async with Producer(broker.tcp_address) as producer:
        for waiting in WAITING:

            async def request() -> None:
                await producer.request("jobs", body, timeout_s=TIMEOUT_S)

            some = count if waiting > 1 else count // 10
            rows[f"requests, {waiting} waiting"] = await measure(request, some, waiting, processes)
        rows[f"publishes, {WAITING[-1]} waiting"] = await measure(
            lambda: producer.publish("jobs", body), count, WAITING[-1], processes
        )
    return rows


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    given = parse(__doc__, arguments, requests=20_000, repeat=3, body_bytes=200)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    found: dict[str, list[Row]] = {}
    with BrokerProcess(None) as broker:
        worker = context.Process(target=work, args=(broker.tcp_address, there), daemon=True)
        worker.start()
        here.recv()
        processes = [
            psutil.Process(broker.process_id),
            psutil.Process(),
            psutil.Process(worker.pid),
        ]
        for _ in range(given.repeat):
            rows = uvloop.run(all_rows(broker, processes, given.requests, b"x" * given.body_bytes))
            for name, row in rows.items():
                found.setdefault(name, []).append(row)
        worker.terminate()
        worker.join()
    table = Table("work", "a second", "us: broker", "requester", "worker", "a second, one core")
    for name, runs in found.items():
        rate, *costs = (statistics.median(column) for column in zip(*runs, strict=True))
        core = f"{1e6 / costs[0]:,.0f}"
        table.add_row(name, f"{rate:,.0f}", *(f"{cost:.1f}" for cost in costs), core)
    Console(width=110).print(table)


if __name__ == "__main__":
    main([])
