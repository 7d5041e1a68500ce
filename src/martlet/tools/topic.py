"""Topics made, or given more queues, on each broker that is named."""

from __future__ import annotations

import asyncio

from martlet.options.topic import TopicCreateOptions
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer


class TopicCreation:
    """Makes a topic.

    Args:
        options: as the flags give them.
    """

    def __init__(self, options: TopicCreateOptions) -> None:
        self._options = options

    async def run(self) -> list[tuple[str, int | NoHttpAnswer]]:
        """Do it on each broker; how many queues the topic has there.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        async with BrokerHttpClients(self._options) as doors:
            urls = await doors.brokers("")
            return list(
                zip(urls, await asyncio.gather(*(self._at(doors, u) for u in urls)), strict=True)
            )

    async def _at(self, doors: BrokerHttpClients, url: str) -> int | NoHttpAnswer:
        topic, queues = self._options.topic, self._options.queues
        # Without a number, a topic that has more queues is as well as one that has to be made.
        wanted = {"queues": str(queues)} if queues > 1 else {}
        try:
            await doors.post(url, "/topic/create", {"topic": topic, **wanted})
            report = await doors.get(
                url, "/stats", {"topic": topic, "format": "json", "include_clients": "false"}
            )
            found = next(each for each in report["topics"] if each["topic_name"] == topic)
            count = len(found.get("queues", [None]))
        except NoHttpAnswer as error:
            return error
        except (StopIteration, KeyError, TypeError):
            return NoHttpAnswer(url, f"it does not say what became of topic {topic!r}")
        if count < queues:
            return NoHttpAnswer(url, f"topic {topic!r} has one queue there: nsqd knows no others")
        return count
