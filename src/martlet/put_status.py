"""The outcomes of a send, by RocketMQ's names."""

from __future__ import annotations

from enum import StrEnum

PUBLISH_AGAIN = "publish again"
"""How the reason ends for which a broker refuses messages until its next primary, which is there in
a moment, takes them. NSQ's protocol has one code for all reasons not to store.
"""


class PutStatus(StrEnum):
    """The outcome of a send; in each of these cases the messages are stored."""

    OK = "OK"
    """As durably as was requested."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored and delivered, but no flush made the messages durable in time, so a power cut may lose
    them.
    """
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """As durably as the replicas that are left allow: fewer are in sync than are wanted."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored by the primary, but too few replicas confirmed the messages in time, so a failover may
    lose them. They are delivered once they are confirmed.
    """
