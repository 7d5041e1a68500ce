"""The agent of pynsq; see `story`."""

from __future__ import annotations

import asyncio
from typing import Any

import nsq
from tests.interop.agents import story
from tests.interop.agents.story import report


class Writer(nsq.Writer):  # type: ignore[misc]  # it comes without types
    """A writer that reports heartbeats and its first connection."""

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.connected = asyncio.Event()

    def heartbeat(self, conn: Any) -> None:
        report("heartbeat")

    def _on_connection_ready(self, conn: Any, **kwargs: Any) -> None:
        super()._on_connection_ready(conn, **kwargs)
        self.connected.set()


def handle(message: Any) -> None:
    body = message.body.decode()
    report("received", body=body, attempts=message.attempts)
    message.enable_async()
    if body == story.AGAIN and message.attempts == 1:
        message.requeue(time_ms=story.AGAIN_MS, backoff=False)
    elif body == story.SLOW:
        asyncio.create_task(finish_slowly(message))  # noqa: RUF006, the message lives on in it
    else:
        message.finish()


async def finish_slowly(message: Any) -> None:
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + story.SLOW_S
    while loop.time() < ends_s:
        message.touch()
        await asyncio.sleep(story.TOUCH_S)
    message.finish()


async def publish(body: str, send: Any) -> bool:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_answer(connection: Any, data: Any) -> None:
        if not answered.done():
            answered.set_result(data)

    send(on_answer)
    try:
        data = await asyncio.wait_for(answered, story.PUBLISH_S)
    except TimeoutError as error:
        data = error
    if data == b"OK":
        report("published", body=body)
    else:
        report("failed", body=body, reason=repr(data))
    return bool(data == b"OK")


async def main() -> None:
    given = story.Arguments()
    options = {"heartbeat_interval": story.HEARTBEAT_S, **given.negotiated()}
    nsq.Reader(
        topic=given.topic,
        channel=given.channel,
        nsqd_tcp_addresses=[given.address],
        message_handler=handle,
        max_in_flight=10,
        **options,
    )
    writer = Writer([given.address], reconnect_interval=0.5, **options)
    await writer.connected.wait()
    topic = given.topic

    def pub(body: str) -> Any:
        return lambda done: writer.pub(topic, body.encode(), done)

    bodies = [body.encode() for body in story.TOGETHER]
    await publish(",".join(story.TOGETHER), lambda done: writer.mpub(topic, bodies, done))
    await publish(
        story.LATER, lambda done: writer.dpub(topic, story.LATER_MS, story.LATER.encode(), done)
    )
    for body in (story.PLAIN, story.AGAIN, story.SLOW):
        await publish(body, pub(body))
    await asyncio.sleep(story.SLOW_S + 1)
    report("quiet")
    await asyncio.sleep(story.QUIET_S)
    report("ticking")
    number = 0
    while True:
        number += 1
        body = f"tick-{number}"
        await publish(body, pub(body))
        await asyncio.sleep(story.TICK_S)


if __name__ == "__main__":
    asyncio.run(main())
