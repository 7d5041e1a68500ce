"""The names that `martlet.client` gives to applications."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from martlet.allocation import GroupMember, TopicQueue
from martlet.client.consumer.batch import Batch
from martlet.client.consumer.consumer import Consumer
from martlet.client.consumer.handling.backoff import FailureBackoff
from martlet.client.consumer.handling.failure_policy import Reject, Requeue
from martlet.client.consumer.message import Message
from martlet.client.consumer.rdy import Rotation
from martlet.client.consumer.settings import DeliverySettings, HandlerSettings
from martlet.client.consumer.stats import ConnectionStats, ConsumerStats, Counts
from martlet.client.consumer.waiters import SharedRate
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
    NoRequest,
    NotSupported,
    ProducerFull,
    PublishLost,
    PublishRefused,
    PublishTimeout,
    PublishUnclear,
    Refused,
    RequestFailed,
    RequestTimeout,
    SubscribeRefused,
    TransactionEnded,
    TransactionError,
    TransactionRefused,
    TransactionUnclear,
    WrongBroker,
)
from martlet.client.group.assignment.plan import AllocationStrategy, RoomResolver
from martlet.client.group.batch import PulledBatch
from martlet.client.group.broadcast import BroadcastConsumer
from martlet.client.group.consumer import PullConsumer
from martlet.client.group.message import PulledMessage
from martlet.client.group.queues.offset_file import BadOffsetFile
from martlet.client.group.queues.queue_id import QueueId
from martlet.client.group.settings import FlowLimits, MembershipSettings, ProgressSettings
from martlet.client.group.stats import PullCounts, PullStats, QueueStats
from martlet.client.hooks import Handling, Hooks, Publishing, Requesting
from martlet.client.producer.limits import Limits
from martlet.client.producer.message import Outgoing
from martlet.client.producer.options import SendOptions
from martlet.client.producer.producer import Producer
from martlet.client.producer.result import SendResult
from martlet.client.producer.settings import PublishSettings
from martlet.client.producer.stats import BrokerStats, Health, ProducerStats
from martlet.client.received import MessageView
from martlet.client.requests.requester import Reply
from martlet.client.settings import ConnectionSettings
from martlet.client.transactions.check_back import Outcome, PendingTransaction
from martlet.client.transactions.transaction import Contribution, Transaction
from martlet.client.transport.backoff import Backoff, LinearDelay
from martlet.client.transport.identity import Identity
from martlet.client.transport.tls import Tls
from martlet.names import PutStatus
from martlet.properties.model import Properties

if TYPE_CHECKING:
    from martlet.client.admin.admin import Admin
    from martlet.client.admin.errors import AdminError

__all__ = [
    "Admin",
    "AdminError",
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
    "ConnectionSettings",
    "ConnectionStats",
    "Consumer",
    "ConsumerStats",
    "Contribution",
    "Counts",
    "DeliverySettings",
    "FailureBackoff",
    "FlowLimits",
    "GroupMember",
    "HandlerFailed",
    "HandlerSettings",
    "Handling",
    "Health",
    "Hooks",
    "Identity",
    "InvalidName",
    "Limits",
    "LinearDelay",
    "MembershipSettings",
    "Message",
    "MessageView",
    "NoRequest",
    "NotSupported",
    "Outcome",
    "Outgoing",
    "PendingTransaction",
    "Producer",
    "ProducerFull",
    "ProducerStats",
    "ProgressSettings",
    "Properties",
    "PublishLost",
    "PublishRefused",
    "PublishSettings",
    "PublishTimeout",
    "PublishUnclear",
    "Publishing",
    "PullConsumer",
    "PullCounts",
    "PullStats",
    "PulledBatch",
    "PulledMessage",
    "PutStatus",
    "QueueId",
    "QueueStats",
    "Refused",
    "Reject",
    "Reply",
    "RequestFailed",
    "RequestTimeout",
    "Requesting",
    "Requeue",
    "RoomResolver",
    "Rotation",
    "SendOptions",
    "SendResult",
    "SharedRate",
    "SubscribeRefused",
    "Tls",
    "TopicQueue",
    "Transaction",
    "TransactionEnded",
    "TransactionError",
    "TransactionRefused",
    "TransactionUnclear",
    "WrongBroker",
]


def __getattr__(name: str) -> Any:
    """Return a name of `martlet.client.admin`, which producers and consumers need not import."""
    if name not in ("Admin", "AdminError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("martlet.client.admin"), name)
