"""The kernel has a client's write before the next line runs, or a crash would lose it.

A consumer says which messages it starts, so that a handler that kills the process is charged.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_writes_are_sent_at_once(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def write() -> bytes:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.getsockname())
            with server.accept()[0] as accepted:
                accepted.setblocking(False)
                for _ in range(2):
                    transport.write(b"FIN")
                    transport.writelines([b"STARTED", b"\n"])
                received = accepted.recv(100)
                transport.abort()
                await asyncio.sleep(0)
        return received

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(write()) == 2 * b"FINSTARTED\n"
