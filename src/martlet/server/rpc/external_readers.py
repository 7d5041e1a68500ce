"""The call of readers that keep their own position and report it to the broker.

================  ==================================================================================
``group.follow``  a reader of ``topic`` is at ``offsets``, by queue, shown as ``group``: a group of
                  the kind ``follower``, created if missing.  With ``retain`` the broker keeps
                  messages until the reader has read them.  The ``topic_id`` of an earlier topic of
                  that name is refused with TOPIC_MADE_ANEW.  Answers the lag
================  ==================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.errors import OutOfReach
from martlet.broker.policy import BadPolicy
from martlet.broker.topic.offset_reset import follow
from martlet.server.rpc.arguments import CallError
from martlet.server.rpc.groups import offsets_by_queue

if TYPE_CHECKING:
    from martlet.broker.broker import BrokerCore
    from martlet.server.rpc.arguments import CallArguments
    from martlet.server.rpc.registry import Answer, Caller, Methods


class FollowCalls:
    """The call of a broker's external readers."""

    def __init__(self, broker: BrokerCore) -> None:
        self._broker = broker

    def methods(self) -> Methods:
        """The method of each name."""
        return {"group.follow": self.follow}

    def follow(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Set the offsets of an external reader, which keeps its own position."""
        arguments.only("topic", "topic_id", "group", "offsets", "retain")
        topic, name = arguments.topic(self._broker), arguments.name("group")
        offsets = offsets_by_queue(arguments)
        if arguments.number("topic_id", topic.id) != topic.id:
            raise CallError(
                "NOT_FOUND", f"TOPIC_MADE_ANEW: topic {topic.name!r} is number {topic.id} now"
            )
        try:
            channel = follow(topic, name, offsets, retain=arguments.flag("retain"))
        except BadPolicy as error:
            raise CallError("BAD_ARGUMENT", str(error)) from None
        except OutOfReach as error:
            raise CallError("OUT_OF_REACH", str(error)) from None
        self._broker.write_moved(channel)
        return {"topic": topic.name, "group": name, "lag": channel.all_queues.depth}
