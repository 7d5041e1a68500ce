"""One consumer with a handler for each message: a process for each run of `bench.clients.main`.

    python -m bench.clients.consume CLIENT HOST:PORT[,HOST:PORT]... TOPIC CHANNEL COUNT READY

Handles COUNT messages, each by a function that reads the length of the body, and prints as JSON the
seconds from the first message to the last, and the processor's seconds in that time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

from bench.stopwatch import Stopwatch


class Count:
    """Counts messages down, and takes the time between the first and the last."""

    def __init__(self, messages: int, on_last: Callable[[], object]) -> None:
        self._left = self._messages = messages
        self._on_last = on_last
        self._body_bytes = 0
        self._watch = Stopwatch()

    def handle(self, body: bytes) -> None:
        """Handle a message, as each client's handler does."""
        if self._left == self._messages:
            self._watch.begin()
        self._body_bytes += len(body)
        self._left -= 1
        if not self._left:
            result = {**self._watch.result(), "body_bytes": self._body_bytes}
            print(json.dumps(result), flush=True)
            self._on_last()


def martlet(address: str, topic: str, channel: str, messages: int, ready: int) -> None:
    """Martlet's own, of one broker or several."""
    from martlet.client import Consumer, Message

    addresses = address.split(",")

    async def consume() -> None:
        async with Consumer(topic, channel, addresses, max_in_flight=ready) as consumer:
            count = Count(messages, consumer.stop)

            async def handler(message: Message) -> None:
                count.handle(message.body)

            await consumer.run(handler)

    asyncio.run(consume())


def pynsq(address: str, topic: str, channel: str, messages: int, ready: int) -> None:
    """https://github.com/nsqio/pynsq, on tornado."""
    import nsq
    from tornado.ioloop import IOLoop

    async def consume() -> None:
        loop = IOLoop.current()
        done = asyncio.Event()
        # Its finishes are written as the handler returns; the loop gets a moment to send them.
        count = Count(messages, lambda: loop.call_later(0.2, done.set))

        def handler(message: nsq.Message) -> bool:
            count.handle(message.body)
            return True

        nsq.Reader(
            topic=topic,
            channel=channel,
            nsqd_tcp_addresses=[address],
            message_handler=handler,
            max_in_flight=ready,
        )
        await done.wait()

    asyncio.run(consume())


def ansq(address: str, topic: str, channel: str, messages: int, ready: int) -> None:
    """https://github.com/list-family/ansq, on asyncio."""
    import ansq

    async def consume() -> None:
        reader = await ansq.create_reader(
            topic=topic, channel=channel, nsqd_tcp_addresses=[address]
        )
        (connection,) = reader.connections
        await connection.rdy(ready)
        done = asyncio.Event()
        count = Count(messages, done.set)
        async for message in reader.messages():
            count.handle(message.body)
            await message.fin()
            if done.is_set():
                break
        await reader.close()

    asyncio.run(consume())


def gnsq(address: str, topic: str, channel: str, messages: int, ready: int) -> None:
    """https://github.com/wtolson/gnsq, on gevent."""
    import gevent
    import gnsq

    consumer = gnsq.Consumer(topic, channel, address, max_in_flight=ready)
    count = Count(messages, lambda: gevent.spawn_later(0.2, consumer.close))

    def handler(_consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        count.handle(message.body)

    consumer.on_message.connect(handler)
    consumer.start()


CLIENTS = {function.__name__: function for function in (martlet, pynsq, ansq, gnsq)}

if __name__ == "__main__":
    _, client, address, topic, channel, messages, ready = sys.argv
    CLIENTS[client](address, topic, channel, int(messages), int(ready))
