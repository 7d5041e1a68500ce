"""The agent of ansq; see `steps`."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import ansq
from tests.crash.agents import steps
from tests.interop.agents.ansq_agent import end_when_reset, publish
from tests.interop.agents.story import report


async def consume(reader: Any) -> None:
    async for message in reader.messages():
        report("received", body=message.body.decode(), attempts=message.attempts)
        await message.fin()


async def new_reader(arguments: steps.Arguments) -> Any:
    where: dict[str, object] = {"nsqd_tcp_addresses": arguments.addresses}
    if arguments.lookup:
        where = {
            "lookupd_http_addresses": [arguments.lookup],
            "lookupd_poll_interval": 1000 * steps.POLL_S,
        }
    features = ansq.ConnectionFeatures(msg_timeout=1000 * steps.MESSAGE_TIMEOUT_S)
    return await ansq.create_reader(
        topic=arguments.topic,
        channel=arguments.channel,
        connection_options=ansq.ConnectionOptions(features=features),
        **where,
    )


async def main() -> None:
    arguments = steps.Arguments()
    consuming = asyncio.create_task(consume(await new_reader(arguments)))
    addresses = itertools.cycle(arguments.addresses)
    writer: Any = None

    async def publish_one(body: str) -> bool:
        """Publish by a writer for one address, and by another one once that has failed."""
        nonlocal writer
        if consuming.done():
            consuming.result()
        if writer is None:
            try:
                writer = await ansq.create_writer(
                    nsqd_tcp_addresses=[next(addresses)],
                    connection_options=ansq.ConnectionOptions(auto_reconnect=False),
                )
            except OSError as error:
                report("failed", body=body, reason=repr(error))
                return False
        is_ok = await publish(body, writer.pub(arguments.topic, body))
        if not is_ok:
            await writer.close()
            writer = None
        return is_ok

    await steps.publish_numbers(publish_one)


if __name__ == "__main__":
    asyncio.StreamReader.set_exception = end_when_reset  # type: ignore[method-assign]
    asyncio.run(main())
