"""The client: publish and consume from asyncio, on any NSQ broker.

::

    from martlet.client import Consumer, Producer
"""

from martlet.client.backoff import Backoff
from martlet.client.batch import Batch
from martlet.client.consumer import Consumer, Counts
from martlet.client.errors import (
    AlreadyAnswered,
    AuthRefused,
    BadBody,
    ClientError,
    Closed,
    ConnectFailed,
    ConnectionLost,
    ConnectRefused,
    InvalidName,
    PublishRefused,
    PublishTimeout,
    Refused,
    SubscribeRefused,
)
from martlet.client.failure_backoff import FailureBackoff
from martlet.client.identity import Identity
from martlet.client.message import Message
from martlet.client.outbox import Limits
from martlet.client.producer import Producer
from martlet.client.readiness import Rotation
from martlet.client.tls import Tls

__all__ = [
    "AlreadyAnswered",
    "AuthRefused",
    "Backoff",
    "BadBody",
    "Batch",
    "ClientError",
    "Closed",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectionLost",
    "Consumer",
    "Counts",
    "FailureBackoff",
    "Identity",
    "InvalidName",
    "Limits",
    "Message",
    "Producer",
    "PublishRefused",
    "PublishTimeout",
    "Refused",
    "Rotation",
    "SubscribeRefused",
    "Tls",
]
