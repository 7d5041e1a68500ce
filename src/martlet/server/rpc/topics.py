"""The calls about topics and channels themselves."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from martlet.broker.channel.policy_checks import check_kind, wished
from martlet.broker.errors import OutOfReach
from martlet.broker.policy import BadPolicy
from martlet.broker.queue.cursor import MAX_ATTEMPTS
from martlet.broker.queue.queue_log import ID_MASK
from martlet.broker.topic.rewind import MAX_RESTORED, MAX_RUNS, EmptiedQueue, UnfinishedRun
from martlet.schema.channels import CONFIGURE as CONFIGURE_CHANNEL
from martlet.schema.channels import RESTORE, ConfigureChannel, RestoreChannel, RestoredChannel
from martlet.schema.topics import (
    CONFIGURE,
    CREATE,
    DESCRIBE,
    ConfigureTopic,
    CreateTopic,
    DescribeTopic,
    LogQueue,
    PolicyInForce,
    TopicDescription,
)
from martlet.server.rpc.registry import CallError, served
from martlet.text import shown_value

if TYPE_CHECKING:
    import logging

    from martlet.broker.broker import BrokerCore
    from martlet.broker.topic.topic import Topic
    from martlet.server.rpc.registry import Answer, CallArguments, Caller, Methods


class TopicCalls:
    """The calls about topics and channels."""

    def __init__(self, broker: BrokerCore, log: logging.Logger) -> None:
        self._broker = broker
        self._log = log

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            **served(CREATE, self.create),
            **served(DESCRIBE, self.describe),
            **served(CONFIGURE, self.configure_topic),
            **served(CONFIGURE_CHANNEL, self.configure_channel),
            **served(RESTORE, self.restore_channel),
            "channel.want": self.want_channel,
        }

    def create(self, caller: Caller, request: CreateTopic) -> TopicDescription:
        """Create a topic, or add queues to it."""
        if request.queues is not None:
            return _described(self._broker.set_queues(request.topic, request.queues))
        return _described(self._broker.topic(request.topic))

    def describe(self, caller: Caller, request: DescribeTopic) -> TopicDescription:
        """Describe a topic."""
        return _described(self._broker.find_topic(request.topic))

    def configure_topic(self, caller: Caller, request: ConfigureTopic) -> PolicyInForce:
        """Set some fields of a topic's policy."""
        topic = self._broker.find_topic(request.topic)
        topic.configure(topic.policy.changed(request.policy))
        return PolicyInForce(topic.policy.to_json())

    def configure_channel(self, caller: Caller, request: ConfigureChannel) -> PolicyInForce:
        """Set some fields of a channel's policy."""
        topic = self._broker.find_topic(request.topic)
        channel = topic.find_channel(request.channel)
        topic.configure_channel(request.channel, channel.policy.configured(request.policy))
        return PolicyInForce(channel.policy.to_json())

    def restore_channel(self, caller: Caller, request: RestoreChannel) -> RestoredChannel:
        """Undo an empty of a channel."""
        topic = self._broker.find_topic(request.topic)
        emptied = [_emptied(queue) for queue in request.queues]
        if len({queue.queue for queue in emptied}) != len(emptied):
            raise CallError("BAD_ARGUMENT", "queues has a queue twice")
        count = sum(run.end - run.first for queue in emptied for run in queue.unfinished)
        if count > MAX_RESTORED:
            raise CallError(
                "BAD_ARGUMENT",
                f"queues has {count:,} unfinished messages; the maximum is {MAX_RESTORED:,}: replay"
                " the channel from its lowest offset",
            )
        try:
            self._broker.restore_channel(topic, request.channel, emptied)
        except OutOfReach as error:
            raise CallError("GONE" if error.gone else "CONFLICT", str(error)) from None
        return RestoredChannel(topic.find_channel(request.channel).all_queues.depth)

    def want_channel(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Create a channel if missing, with the policy that a consumer wants.

        Answers also which fields had another value before, from consumers that have left.
        """
        arguments.only("topic", "channel", "policy")
        broker = self._broker
        topic_name, name = arguments.name("topic"), arguments.name("channel")
        topic = broker.topic(topic_name)
        channel = topic.channel(name)
        wish, before = arguments.mapping("policy"), channel.policy
        changed = before.changed(wish)
        try:
            check_kind(channel, changed)
            policy = wished(channel, wish)
        except BadPolicy as error:
            raise CallError("CONFLICT", str(error)) from None
        if policy.dead_letter_topic not in ("", before.dead_letter_topic):
            # A consumer that rejects messages would publish them there.
            caller.may_publish(policy.dead_letter_topic)
        replaced = {}
        if policy != before:
            topic.configure_channel(name, policy)
            after = policy.to_json()
            replaced = {
                field: value
                for field, value in before.to_json().items()
                if field in wish and value != after.get(field)
            }
            for field, value in replaced.items():
                self._log.warning(
                    "CHANNEL(%s): a consumer of topic %s changed the channel's %s from %s to %s",
                    *(name, topic_name, field, value, after.get(field)),
                )
        return {"policy": policy.to_json(), "replaced": replaced}


def _emptied(value: object) -> EmptiedQueue:
    """Read a queue of what an empty answered."""
    try:
        queue, offset, end_offset, unfinished = (
            value[field]  # type: ignore[index]  # checked here
            for field in EmptiedQueue._fields
        )
        runs = tuple(UnfinishedRun(*run) for run in unfinished)
    except (TypeError, KeyError, ValueError):
        raise _bad_queue(value) from None
    numbers = [queue, offset, end_offset, *(number for run in runs for number in run)]
    ends = [0, *(offset for run in runs for offset in run[:2])]
    if (
        any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers)
        or any(later < earlier for earlier, later in pairwise(ends))
        or any(run.attempts > MAX_ATTEMPTS or run.failures > MAX_ATTEMPTS for run in runs)
        or len(runs) > MAX_RUNS
    ):
        raise _bad_queue(value)
    return EmptiedQueue(queue, offset, end_offset, runs)


def _described(topic: Topic) -> TopicDescription:
    return TopicDescription(
        topic=topic.name,
        key_hash=topic.key_hash.value,
        queues=tuple(
            LogQueue(
                queue=part.number,
                id_base=f"{part.queue.id_base & ID_MASK:016x}",
                start_offset=part.queue.start_offset,
                end_offset=part.queue.visible_end,
                priority=part.queue.priority,
            )
            for part in topic.at_queues
        ),
        channels=tuple(sorted(topic.channels)),
        policy=topic.policy.to_json(),
        channel_policies={
            name: channel.policy.to_json() for name, channel in sorted(topic.channels.items())
        },
    )


def _bad_queue(value: object) -> CallError:
    return CallError(
        "BAD_ARGUMENT",
        f"queues has {shown_value(value, 80)}, which is none that /channel/empty?undo=true answers",
    )
