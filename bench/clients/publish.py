"""One producer: a process for each run of `bench.clients.main`.

    python -m bench.clients.publish CLIENT HOST:PORT TOPIC COUNT WORK

WORK is ``publish``: 50 tasks (or callbacks, or greenlets) publish one message after another, each
waiting for its answer; or ``publish-many``: 200 messages at once, one such call after another.
Publishes COUNT messages on one connection, each client in its own natural way, and prints as JSON
the seconds from the first message to the last answer, and the processor's seconds in that time.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain, repeat
from typing import Any

from bench.stopwatch import Stopwatch

BODY = json.dumps({"carrier": "UA", "flight": 1545, "origin": "EWR", "note": "x" * 140}).encode()
AT_ONCE = 50
BATCH = 200


class Load:
    """Messages to publish: single ones by many tasks, or batches by one.

    Attributes:
        many: whether they are batches.
        tasks: how many publish at the same time.
        items: bodies, or lists of bodies, that the tasks share.
    """

    def __init__(self, work: str, messages: int) -> None:
        self.many = work == "publish-many"
        self.tasks = 1 if self.many else AT_ONCE
        self.items: Iterator[Any] = repeat(BODY, messages)
        if self.many:
            full, rest = divmod(messages, BATCH)
            self.items = chain(repeat([BODY] * BATCH, full), [[BODY] * rest] if rest else [])

    async def drive(self, send: Callable[[Any], Awaitable[object]]) -> None:
        """Publish all of it from asyncio's tasks, and print how long that took."""

        async def work() -> None:
            for item in self.items:
                await send(item)

        watch = Stopwatch()
        await asyncio.gather(*(work() for _ in range(self.tasks)))
        self.report(watch)

    @staticmethod
    def report(watch: Stopwatch) -> None:
        """Print how long it took."""
        print(json.dumps(watch.result()), flush=True)


def martlet(address: str, topic: str, load: Load) -> None:
    """Martlet's own."""
    from martlet.client import Producer

    async def publish() -> None:
        async with Producer(address) as producer:
            call = producer.publish_many if load.many else producer.publish
            await load.drive(lambda item: call(topic, item))

    asyncio.run(publish())


def pynsq(address: str, topic: str, load: Load) -> None:
    """https://github.com/nsqio/pynsq, on tornado: each answer's callback publishes the next."""
    import nsq

    async def publish() -> None:
        writer = nsq.Writer([address])
        while not writer.conns:  # noqa: ASYNC110, a Writer has no event of being connected
            await asyncio.sleep(0.01)
        call = writer.mpub if load.many else writer.pub
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        at_work = load.tasks

        def publish_next(_connection: object, answer: object) -> None:
            nonlocal at_work
            if done.done():
                return
            if answer not in (None, b"OK"):
                done.set_exception(RuntimeError(f"instead of OK: {answer!r}"))
            elif (item := next(load.items, None)) is not None:
                call(topic, item, publish_next)
            else:
                at_work -= 1
                if not at_work:
                    done.set_result(None)

        watch = Stopwatch()
        for _ in range(load.tasks):
            publish_next(None, None)
        await done
        load.report(watch)

    asyncio.run(publish())


def ansq(address: str, topic: str, load: Load) -> None:
    """https://github.com/list-family/ansq, on asyncio."""
    import ansq

    async def publish() -> None:
        writer = await ansq.create_writer(nsqd_tcp_addresses=[address])
        if load.many:
            await load.drive(lambda bodies: writer.mpub(topic, *bodies))
        else:
            await load.drive(lambda body: writer.pub(topic, body))
        await writer.close()

    asyncio.run(publish())


def gnsq(address: str, topic: str, load: Load) -> None:
    """https://github.com/wtolson/gnsq, on gevent."""
    import gevent
    import gnsq

    producer = gnsq.Producer(address)
    producer.start()
    call = producer.multipublish if load.many else producer.publish

    def work() -> None:
        for item in load.items:
            call(topic, item)

    watch = Stopwatch()
    gevent.joinall([gevent.spawn(work) for _ in range(load.tasks)], raise_error=True)
    load.report(watch)
    producer.close()


CLIENTS = {function.__name__: function for function in (martlet, pynsq, ansq, gnsq)}

if __name__ == "__main__":
    _, client, address, topic, messages, work = sys.argv
    CLIENTS[client](address, topic, Load(work, int(messages)))
