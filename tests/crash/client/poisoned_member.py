"""A member of a group in its own process, killed by messages whose body says so.

Usage: python -m tests.crash.client.poisoned_member ADDRESS LEDGER CONCURRENCY SECONDS HOW. HOW is
``run``, or ``batches``. Each message whose handling begins is a line of the ledger: its body.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from tests.ledger import Ledger

from martlet.client import Backoff, PullConsumer, PulledMessage

_FAST = Backoff(first_s=0.01, max_s=0.1)


async def main(address: str, ledger: Ledger, concurrency: int, handling_s: float, how: str) -> None:
    """Handle messages until the process is killed or stopped."""
    consumer = PullConsumer(
        "work", "g", address, start="first", commit_every_s=0.2, retry=_FAST, backoff=_FAST
    )

    def begin(body: bytes) -> None:
        ledger.write([body])
        if body == b"poison":
            os._exit(9)

    async def handle(message: PulledMessage) -> None:
        begin(message.body)
        if handling_s and concurrency > 1:
            await asyncio.sleep(handling_s)
        elif handling_s:
            time.sleep(handling_s)  # noqa: ASYNC251, a handler that holds up the loop

    async with consumer:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
        if how == "run":
            await consumer.run(handle, concurrency=concurrency)
            return
        async for batch in consumer.batches(max_messages=10):
            for body in batch.bodies:
                begin(body)


if __name__ == "__main__":
    address, path, count, seconds, way = sys.argv[1:]
    asyncio.run(main(address, Ledger(path), int(count), float(seconds), way))
