"""A worker that begins a request, says so, and hangs: for tests that kill it."""

from __future__ import annotations

import asyncio
import sys

from martlet.client import Consumer, Message


async def main(topic: str, address: str) -> None:
    async with Consumer(topic, "workers", address, max_in_flight=1) as consumer:

        async def handle(message: Message) -> None:
            print(message.body.decode(), flush=True)
            await asyncio.sleep(1000)

        print("ready", flush=True)
        await consumer.run(handle)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
