"""What became of messages that were sent, by RocketMQ's names."""

from __future__ import annotations

from enum import StrEnum


class PutStatus(StrEnum):
    """With each of these the messages are stored."""

    OK = "OK"
    """As safely as was asked for."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """And handed to consumers; the disk has not told in time that they would survive a power cut.
    """
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """No replica has them. Reserved: brokers have no replicas yet."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """No replica has told in time that it has them. Reserved."""
