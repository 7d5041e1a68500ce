"""The calls about topics and channels themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.policy import BadPolicy, PolicyT
from martlet.server.arguments import CallError
from martlet.server.settled import written_down

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
        return {
            "topic.describe": self.describe,
            "topic.configure": self.configure_topic,
            "channel.configure": self.configure_channel,
        }

    def describe(self, caller: Caller, arguments: Arguments) -> Answer:
        """A topic's queues and channels."""
        arguments.only("topic")
        topic = arguments.topic(self._server.broker)
        return {
            "topic": topic.name,
            "queues": [
                {
                    "queue": part.number,
                    "start_offset": part.queue.start_offset,
                    "end_offset": part.queue.end_offset,
                }
                for part in topic.parts
            ],
            "channels": sorted(topic.channels),
            "policy": topic.policy.told(),
        }

    async def configure_topic(self, caller: Caller, arguments: Arguments) -> Answer:
        """Set some fields of a topic's policy; null for the default. Answers the whole policy."""
        arguments.only("topic", "policy")
        topic = arguments.topic(self._server.broker)
        caller.may(topic.name)
        topic.configure(_changed(topic.policy, arguments))
        await written_down(self._server)
        return {"policy": topic.policy.told()}

    async def configure_channel(self, caller: Caller, arguments: Arguments) -> Answer:
        """The same for a channel."""
        arguments.only("topic", "channel", "policy")
        topic, name = arguments.topic(self._server.broker), arguments.name("channel")
        caller.may(topic.name, name)
        channel = topic.find_channel(name)
        topic.configure_channel(name, _changed(channel.policy, arguments))
        await written_down(self._server)
        return {"policy": channel.policy.told()}


def _changed(policy: PolicyT, arguments: Arguments) -> PolicyT:
    try:
        return policy.changed(arguments.mapping("policy"))
    except BadPolicy as error:
        raise CallError("BAD_ARGUMENT", str(error)) from None
