"""The agent of ansq; see `story`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import ansq
from ansq.tcp.exceptions import ConnectionClosedError
from tests.interop.agents import story
from tests.interop.agents.story import report


async def on_heartbeat(connection: Any) -> None:
    report("heartbeat")


def options(*, auto_reconnect: bool) -> ansq.ConnectionOptions:
    return ansq.ConnectionOptions(
        auto_reconnect=auto_reconnect,
        on_heartbeat=on_heartbeat,
        features=ansq.ConnectionFeatures(
            heartbeat_interval=1000 * story.HEARTBEAT_S, msg_timeout=1000 * story.MESSAGE_TIMEOUT_S
        ),
    )


_set_exception = asyncio.StreamReader.set_exception


def end_when_reset(self: asyncio.StreamReader, exc: Exception) -> None:
    """A connection that is reset ends like one that is closed.

    ansq reads on after any error, which on a connection that was reset comes back at once and for
    ever, so that nothing else of the process would run. A broker that is killed resets those that
    it has not read to the end.
    """
    if isinstance(exc, ConnectionError):
        self.feed_eof()
    else:
        _set_exception(self, exc)


async def consume(reader: Any) -> None:
    async with asyncio.TaskGroup() as group:
        async for message in reader.messages():
            body = message.body.decode()
            report("received", body=body, attempts=message.attempts)
            if body == story.AGAIN and message.attempts == 1:
                await message.req(story.AGAIN_MS)
            elif body == story.SLOW:
                group.create_task(finish_slowly(message))
            else:
                await message.fin()


async def finish_slowly(message: Any) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + story.SLOW_S
    while loop.time() < ends_s:
        await message.touch()
        await asyncio.sleep(story.TOUCH_S)
    await message.fin()


async def publish(body: str, sent: Awaitable[Any]) -> bool:
    try:
        answer = await asyncio.wait_for(sent, story.PUBLISH_S)
        if not answer.is_ok:
            raise RuntimeError(answer.body)
    except Exception as error:  # While the broker is away it raises whatever comes.
        report("failed", body=body, reason=repr(error))
        return False
    report("published", body=body)
    return True


async def new_writer(address: str) -> Any:
    """A writer that is connected, as soon as there can be one.

    ansq connects readers again by itself. A writer that waited for an answer when it lost its
    connection would take the answers of the next one for that, so it is replaced.
    """
    while True:
        try:
            return await ansq.create_writer(
                nsqd_tcp_addresses=[address], connection_options=options(auto_reconnect=False)
            )
        except (OSError, ConnectionClosedError):  # Also by a broker that dies meanwhile.
            await asyncio.sleep(story.TICK_S)


async def main() -> None:
    given = story.Arguments()
    topic = given.topic
    reader = await ansq.create_reader(
        topic=topic,
        channel=given.channel,
        nsqd_tcp_addresses=[given.address],
        connection_options=options(auto_reconnect=True),
    )
    for connection in reader.connections:
        await connection.rdy(10)
    consuming = asyncio.create_task(consume(reader))
    writer = await new_writer(given.address)
    await publish(",".join(story.TOGETHER), writer.mpub(topic, *story.TOGETHER))
    await publish(story.LATER, writer.dpub(topic, story.LATER, story.LATER_MS))
    for body in (story.PLAIN, story.AGAIN, story.SLOW):
        await publish(body, writer.pub(topic, body))
    await asyncio.sleep(story.SLOW_S + 1)
    report("quiet")
    await asyncio.sleep(story.QUIET_S)
    report("ticking")
    number = 0
    while not consuming.done():
        number += 1
        if not await publish(f"tick-{number}", writer.pub(topic, f"tick-{number}")):
            await writer.close()
            writer = await new_writer(given.address)
        await asyncio.sleep(story.TICK_S)
    consuming.result()


if __name__ == "__main__":
    asyncio.StreamReader.set_exception = end_when_reset  # type: ignore[method-assign]
    asyncio.run(main())
