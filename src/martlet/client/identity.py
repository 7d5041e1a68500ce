"""What a client says of itself when it connects, and what the broker answers."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from martlet import __version__

USER_AGENT = f"martlet/{__version__}"


def _hostname() -> str:
    return socket.gethostname()


def _client_id() -> str:
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """What IDENTIFY says.

    Attributes:
        client_id: names this client in ``/stats``.
        hostname: names this machine there.
        user_agent: names this software there.
        heartbeat_interval_ms: how often the broker sends a heartbeat; a connection on which nothing
            comes for two of them is taken for dead.  The broker limits it (60,000 by default).
        message_timeout_ms: how long a message may take before it is delivered again, or None for
            what the broker has by default.
        output_buffer_bytes: how much an nsqd gathers before it writes, or None for its default.
        output_buffer_timeout_ms: how long an nsqd holds back what it gathered; 25 is the least that
            it takes unless configured otherwise, and its own default of 250 is felt.
        sample_rate: the percentage of the messages to be delivered, 0 for all of them.
    """

    client_id: str = field(default_factory=_client_id)
    hostname: str = field(default_factory=_hostname)
    user_agent: str = USER_AGENT
    heartbeat_interval_ms: int = 30_000
    message_timeout_ms: int | None = None
    output_buffer_bytes: int | None = None
    output_buffer_timeout_ms: int | None = 25
    sample_rate: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sample_rate <= 99:
            raise ValueError(f"sample_rate={self.sample_rate} must be from 0 (all) to 99 percent")
        if self.heartbeat_interval_ms < 1000:
            raise ValueError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: 1000 is the least"
            )

    def fields(self) -> dict[str, Any]:
        """IDENTIFY's JSON object."""
        fields: dict[str, Any] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": self.heartbeat_interval_ms,
            "sample_rate": self.sample_rate,
            "tls_v1": False,
            "deflate": False,
            "snappy": False,
        }
        if self.message_timeout_ms is not None:
            fields["msg_timeout"] = self.message_timeout_ms
        if self.output_buffer_bytes is not None:
            fields["output_buffer_size"] = self.output_buffer_bytes
        if self.output_buffer_timeout_ms is not None:
            fields["output_buffer_timeout"] = self.output_buffer_timeout_ms
        return fields


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """What the broker answered to IDENTIFY.

    Attributes:
        version: the broker's.
        max_ready_count: the highest ready count that it takes.
        message_timeout_ms: how long a message may take before it is delivered again.
        max_message_timeout_ms: how long it may take with any number of touches.
        auth_required: whether it wants AUTH before anything else.
    """

    version: str = ""
    max_ready_count: int = 2500
    message_timeout_ms: int = 60_000
    max_message_timeout_ms: int = 900_000
    auth_required: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Features:
        """Read the answer; a broker that negotiates nothing answers ``OK``.

        Raises:
            ValueError: it is neither.
        """
        if data == b"OK":
            return cls()
        answer = json.loads(data)
        if not isinstance(answer, dict):
            raise ValueError(f"the answer to IDENTIFY is {data[:80]!r}")
        default = cls()
        return cls(
            version=str(answer.get("version", "")),
            max_ready_count=int(answer.get("max_rdy_count", default.max_ready_count)),
            message_timeout_ms=int(answer.get("msg_timeout", default.message_timeout_ms)),
            max_message_timeout_ms=int(
                answer.get("max_msg_timeout", default.max_message_timeout_ms)
            ),
            auth_required=bool(answer.get("auth_required", False)),
        )
