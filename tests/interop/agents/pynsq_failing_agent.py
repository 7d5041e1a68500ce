"""A consumer of pynsq whose handler fails for one body; see `story` for its arguments.

It reports the messages received, and gives up none by itself: that is left to the broker.
"""

from __future__ import annotations

import asyncio
from typing import Any

import nsq
from tests.interop.agents import story
from tests.interop.agents.story import report

BAD = "bad"


def handle(message: Any) -> bool:
    body = message.body.decode()
    report("received", body=body, attempts=message.attempts)
    return bool(body != BAD)


async def main() -> None:
    given = story.Arguments()
    nsq.Reader(
        topic=given.topic,
        channel=given.channel,
        nsqd_tcp_addresses=[given.address],
        message_handler=handle,
        max_in_flight=10,
        max_tries=1 << 16,
        requeue_delay=0,
        max_backoff_duration=0.01,
    )
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
