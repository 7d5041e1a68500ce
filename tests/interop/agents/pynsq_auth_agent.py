"""A pynsq reader with a secret; it publishes one message to itself."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import nsq
from tests.interop.agents.story import report


class Reader(nsq.Reader):  # type: ignore[misc]  # it comes without types
    """A reader that reports a refusal."""

    def _on_connection_error(self, conn: Any, error: Any, **kwargs: Any) -> None:
        super()._on_connection_error(conn, error, **kwargs)
        report("refused", reason=str(error))


def handle(message: Any) -> bool:
    report("received", body=message.body.decode())
    return True


async def main() -> None:
    address, secret = sys.argv[1:]
    writer = nsq.Writer([address], auth_secret=secret)
    Reader(
        topic="pynsq",
        channel="c",
        nsqd_tcp_addresses=[address],
        message_handler=handle,
        auth_secret=secret,
    )
    while True:
        if writer.conns:
            writer.pub("pynsq", b"hello")
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main())
