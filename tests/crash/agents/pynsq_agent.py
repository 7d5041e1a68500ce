"""The agent of pynsq; see `steps`."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq
from tests.crash.agents import steps
from tests.interop.agents.pynsq_agent import Writer, publish
from tests.interop.agents.story import report


def handle(message: Any) -> bool:
    report("received", body=message.body.decode(), attempts=message.attempts)
    return True


async def main() -> None:
    arguments = steps.Arguments()
    where: dict[str, object] = {"nsqd_tcp_addresses": arguments.addresses}
    if arguments.lookup:
        where = {
            "lookupd_http_addresses": [arguments.lookup],
            "lookupd_poll_interval": steps.POLL_S,
        }
    nsq.Reader(
        topic=arguments.topic,
        channel=arguments.channel,
        message_handler=handle,
        max_in_flight=10,
        **where,
    )
    writer = Writer(arguments.addresses, reconnect_interval=0.5)
    await writer.connected.wait()

    async def publish_one(body: str) -> bool:
        return await publish(body, lambda done: writer.pub(arguments.topic, body.encode(), done))

    await steps.publish_numbers(publish_one)


if __name__ == "__main__":
    asyncio.run(main())
