"""The client: publish and consume from asyncio, on any NSQ broker.

::

    from martlet.client import Consumer, Producer
"""

from martlet.allocation import GroupMember, TopicQueue
from martlet.client.backoff import Backoff, LinearDelay
from martlet.client.batch import Batch
from martlet.client.checking import Outcome, PendingTransaction
from martlet.client.consumer import Consumer
from martlet.client.consumer_stats import ConnectionStats, ConsumerStats, Counts
from martlet.client.errors import (
    AlreadyAnswered,
    AuthRefused,
    BadBody,
    CallRefused,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    HandlerFailed,
    InvalidName,
    NotSupported,
    ProducerFull,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    PublishUnclear,
    Refused,
    SubscribeRefused,
    TransactionEnded,
    TransactionError,
    TransactionRefused,
    TransactionUnclear,
    WrongBroker,
)
from martlet.client.failure_backoff import FailureBackoff
from martlet.client.failure_policy import Reject, Requeue
from martlet.client.hooks import Handling, Hooks, Publishing
from martlet.client.identity import Identity
from martlet.client.limits import Limits
from martlet.client.message import Message, MessageView
from martlet.client.outgoing import Outgoing
from martlet.client.producer import Producer
from martlet.client.pull.batch import PulledBatch
from martlet.client.pull.broadcast import BroadcastConsumer
from martlet.client.pull.consumer import PullConsumer
from martlet.client.pull.limits import FlowLimits
from martlet.client.pull.message import PulledMessage
from martlet.client.pull.offset_file import BadOffsetFile
from martlet.client.pull.place import Place
from martlet.client.pull.plan import AllocationStrategy, RoomResolver
from martlet.client.pull.stats import PullStats, QueueStats
from martlet.client.pull.tally import Tally
from martlet.client.readiness import Rotation
from martlet.client.send_result import SendResult
from martlet.client.stats import BrokerStats, Health, ProducerStats
from martlet.client.tls import Tls
from martlet.client.transaction import Contribution, Transaction
from martlet.properties import Properties
from martlet.put_status import PutStatus

__all__ = [
    "AllocationStrategy",
    "AlreadyAnswered",
    "AuthRefused",
    "Backoff",
    "BadBody",
    "BadOffsetFile",
    "Batch",
    "BroadcastConsumer",
    "BrokerStats",
    "CallRefused",
    "ClientError",
    "Closed",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionLost",
    "ConnectionStats",
    "Consumer",
    "ConsumerStats",
    "Contribution",
    "Counts",
    "FailureBackoff",
    "FlowLimits",
    "GroupMember",
    "HandlerFailed",
    "Handling",
    "Health",
    "Hooks",
    "Identity",
    "InvalidName",
    "Limits",
    "LinearDelay",
    "Message",
    "MessageView",
    "NotSupported",
    "Outcome",
    "Outgoing",
    "PendingTransaction",
    "Place",
    "Producer",
    "ProducerFull",
    "ProducerStats",
    "Properties",
    "PublishLost",
    "PublishRefused",
    "PublishTimeout",
    "PublishUnclear",
    "Publishing",
    "PullConsumer",
    "PullStats",
    "PulledBatch",
    "PulledMessage",
    "PutStatus",
    "QueueStats",
    "Refused",
    "Reject",
    "Requeue",
    "RoomResolver",
    "Rotation",
    "SendResult",
    "SubscribeRefused",
    "Tally",
    "Tls",
    "TopicQueue",
    "Transaction",
    "TransactionEnded",
    "TransactionError",
    "TransactionRefused",
    "TransactionUnclear",
    "WrongBroker",
]
