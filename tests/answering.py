"""An HTTP server of one handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def answering(
    handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    *,
    handler_cancellation: bool = False,
) -> AsyncIterator[str]:
    """Have the handler answer all requests, perhaps until their clients have gone.

    Yields the server's address.
    """
    server = web.Server(handle, handler_cancellation=handler_cancellation)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"{host}:{port}"
    finally:
        await runner.cleanup()
