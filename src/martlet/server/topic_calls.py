"""The calls about topics and channels themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from martlet.server.arguments import Arguments
    from martlet.server.calls import Answer, Caller, Methods
    from martlet.server.server import Server


class TopicCalls:
    """What a topic is, over a server's broker."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def methods(self) -> Methods:
        """The method of each name."""
        return {"topic.describe": self.describe}

    def describe(self, caller: Caller, arguments: Arguments) -> Answer:
        """A topic's queues and channels."""
        arguments.only("topic")
        topic = arguments.topic(self._server.broker)
        return {
            "topic": topic.name,
            "queues": [
                {
                    "queue": topic.queue.number,
                    "start_offset": topic.queue.start_offset,
                    "end_offset": topic.queue.end_offset,
                }
            ],
            "channels": sorted(topic.channels),
        }
