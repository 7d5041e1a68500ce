"""Inspect and change brokers: topics, channels, groups, dead letters and more.

::

    from martlet.client import Admin

    async with Admin(lookup="127.0.0.1:4161") as admin:
        answers = await admin.channels.list("orders")
        waiting = answers.added(lambda channel: channel.channel, lambda channel: channel.depth)
        for broker, error in answers.errors.items():
            print(f"without {broker}: {error}")

Each answer has a value or an error of each broker. Everything goes over HTTP; `martlet.client.sync`
has the same without ``await``.

May import: the errors, settings and TLS of `martlet.client`. Start with `admin`.
"""

from martlet.client.admin.admin import Admin
from martlet.client.admin.answers import AnswerPage, Answers, Position
from martlet.client.admin.channels import (
    ChannelAdmin,
    ChannelPolicyChanges,
    MessageClient,
    PeekedMessage,
    ReplayedQueue,
    ReplayResult,
    ShownBody,
)
from martlet.client.admin.declared import (
    DeadLetterAdmin,
    DeadLetterFilter,
    DelayedAdmin,
    GroupAdmin,
    ResetPosition,
    TraceAdmin,
    TransactionAdmin,
)
from martlet.client.admin.decode import Described
from martlet.client.admin.errors import AdminError, AdminNotFound, AdminUnreachable
from martlet.client.admin.messages import KeyMatches, LogMessage, LogRead, MessageAdmin
from martlet.client.admin.nodes import (
    Node,
    NodeAdmin,
    NodeHealth,
    ReplicaAdmin,
    ReplicaReport,
    ReplicaState,
    distinct_nodes,
)
from martlet.client.admin.settings import AdminSettings
from martlet.client.admin.stats import (
    ChannelStats,
    ClientStats,
    FinishLatency,
    LogStats,
    NodeStats,
    TopicQueueStats,
    TopicStats,
)
from martlet.client.admin.topics import Policy, TopicAdmin, TopicPolicyChanges
from martlet.schema.channels import EmptiedChannel
from martlet.schema.counts import ChannelCounts, TopicCounts
from martlet.schema.dead_letters import (
    DeadLetterChannelCounts,
    DeadLetterMessage,
    DeadLetterTopicCounts,
    Moved,
)
from martlet.schema.delayed import Cancelled, DelayedMessage
from martlet.schema.groups import (
    GroupDescription,
    GroupQueueDescription,
    GroupReset,
    GroupSummary,
    MemberDescription,
    ResetQueue,
)
from martlet.schema.messages import OffsetFound
from martlet.schema.topics import LogQueue, TopicDescription
from martlet.schema.traces import FoundMessages, MessageEvent, MessageStanding, TracedMessage
from martlet.schema.transactions import (
    TransactionDescription,
    TransactionMessage,
    TransactionOutcome,
    TransactionSummary,
)

__all__ = [
    "Admin",
    "AdminError",
    "AdminNotFound",
    "AdminSettings",
    "AdminUnreachable",
    "AnswerPage",
    "Answers",
    "Cancelled",
    "ChannelAdmin",
    "ChannelCounts",
    "ChannelPolicyChanges",
    "ChannelStats",
    "ClientStats",
    "DeadLetterAdmin",
    "DeadLetterChannelCounts",
    "DeadLetterFilter",
    "DeadLetterMessage",
    "DeadLetterTopicCounts",
    "DelayedAdmin",
    "DelayedMessage",
    "Described",
    "EmptiedChannel",
    "FinishLatency",
    "FoundMessages",
    "GroupAdmin",
    "GroupDescription",
    "GroupQueueDescription",
    "GroupReset",
    "GroupSummary",
    "KeyMatches",
    "LogMessage",
    "LogQueue",
    "LogRead",
    "LogStats",
    "MemberDescription",
    "MessageAdmin",
    "MessageClient",
    "MessageEvent",
    "MessageStanding",
    "Moved",
    "Node",
    "NodeAdmin",
    "NodeHealth",
    "NodeStats",
    "OffsetFound",
    "PeekedMessage",
    "Policy",
    "Position",
    "ReplayResult",
    "ReplayedQueue",
    "ReplicaAdmin",
    "ReplicaReport",
    "ReplicaState",
    "ResetPosition",
    "ResetQueue",
    "ShownBody",
    "TopicAdmin",
    "TopicCounts",
    "TopicDescription",
    "TopicPolicyChanges",
    "TopicQueueStats",
    "TopicStats",
    "TraceAdmin",
    "TracedMessage",
    "TransactionAdmin",
    "TransactionDescription",
    "TransactionMessage",
    "TransactionOutcome",
    "TransactionSummary",
    "distinct_nodes",
]
