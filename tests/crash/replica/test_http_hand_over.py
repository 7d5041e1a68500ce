"""HTTP publishers with connections that stay open, while primaries hand over: nothing that was
answered OK is lost, and each request is answered or its connection ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from tests.crash.replica_cluster import LIMIT_S, Cluster
from tests.crash.wire import drain

pytestmark = pytest.mark.crash

TOPIC = "t"
Body = Callable[[], bytes]


def request(path: str, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (
        path.encode(),
        len(body),
        body,
    )


class KeptConnection:
    """Publishes over one connection as long as that is open, then over the next one.

    Args:
        address: of a replica, which is the primary or forwards to it.
        ways: how to publish, in turns.
    """

    def __init__(self, address: str, ways: list[str], body: Body) -> None:
        self.answered: set[bytes] = set()
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ways = itertools.cycle(ways)
        self._body = body
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def run(self) -> None:
        while True:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
            try:
                while True:
                    await self._publish(next(self._ways))
            except (ConnectionError, asyncio.IncompleteReadError):
                pass  # What was not answered may be stored or not.
            finally:
                self._writer.transport.abort()

    async def _publish(self, way: str) -> None:
        first, second = self._body(), self._body()
        if way == "pipelined":
            self._writer.write(request(f"/pub?topic={TOPIC}", first))
            self._writer.write(request(f"/pub?topic={TOPIC}", second))
            await self._answer(first)
            await self._answer(second)
        elif way in ("in pieces", "in the head"):
            first += b"." * 200_000
            data = request(f"/pub?topic={TOPIC}", first)
            cuts = [0, 20, len(data)] if way == "in the head" else [*range(0, len(data), 50_000)]
            for start, end in itertools.pairwise([*cuts, len(data)]):
                self._writer.write(data[start:end])
                await asyncio.sleep(0.01)  # So that the request is under way for a while.
            await self._answer(first)
        else:
            self._writer.write(request(f"/mpub?topic={TOPIC}", first + b"\n" + second))
            await self._answer(first, second)

    async def _answer(self, *bodies: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            fields = head.lower().split(b"content-length:")
            text = await self._reader.readexactly(int(fields[1].split(b"\r\n")[0]))
        if head.startswith(b"HTTP/1.1 200") and text == b"OK":
            self.answered.update(bodies)


async def test_nothing_answered_over_open_connections_is_lost(cluster: Cluster) -> None:
    numbers = itertools.count()
    ways = ["whole", "pipelined", "in pieces", "in the head"]
    kept = [
        KeptConnection(address, [way], lambda: b"%d " % next(numbers))
        for address in cluster.http.values()
        for way in ways
    ]
    tasks = [asyncio.create_task(client.run()) for client in kept]

    async def going_on() -> None:
        counts = [len(client.answered) for client in kept]
        async with asyncio.timeout(LIMIT_S):
            while any(len(e.answered) <= c + 3 for e, c in zip(kept, counts, strict=True)):
                assert not any(task.done() for task in tasks), tasks
                await asyncio.sleep(0.01)

    for _ in range(3):
        await going_on()
        await cluster.hand_over()
    await going_on()
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(end) for end in ended} == {asyncio.CancelledError}
    primary = await cluster.primary()
    got = await drain(cluster.tcp[primary], cluster.http[primary], TOPIC, "c", rdy=2500)
    received = {message.body for message in got}
    assert set[bytes]().union(*(client.answered for client in kept)) <= received
