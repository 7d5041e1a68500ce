"""What became of messages that were sent, by RocketMQ's names."""

from __future__ import annotations

from enum import StrEnum


class PutStatus(StrEnum):
    """With each of these the messages are stored."""

    OK = "OK"
    """As safely as was asked for."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """And handed to consumers; no flush made them durable in time, so a power cut may take them.
    """
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """No replica has them. Reserved: brokers have no replicas yet."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """No replica has confirmed them in time. Reserved."""
