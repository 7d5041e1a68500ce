"""The client's IDENTIFY, and the features in the broker's answer."""

from __future__ import annotations

import json
import os
import socket
import ssl
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from martlet import __version__
from martlet.client.transport.tls import Tls

USER_AGENT = f"martlet/{__version__}"
Compression = Literal["snappy", "deflate"]
_MAX_COUNT = 2**63 - 1
_MAX_MS = _MAX_COUNT // 10**6
"""The maximum time that nsqd accepts: it counts nanoseconds in 64 bits."""
TlsChoice = bool | Tls | ssl.SSLContext
"""``True`` for TLS with the system's authorities, or the settings of TLS."""


def _hostname() -> str:
    return socket.gethostname()


def _client_id() -> str:
    return f"{socket.gethostname().split('.')[0]}-{os.getpid()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """The fields of IDENTIFY, and the following steps: TLS, compression and AUTH.

    A requested feature that the broker lacks is an error.

    Attributes:
        client_id: names this client in ``/stats``.
        hostname: names this machine there.
        user_agent: names this software there.
        heartbeat_interval_ms: the interval of the broker's heartbeats; a connection without input
            for two of them counts as dead. The broker limits it (60,000 by default).
        message_timeout_ms: the time before an unanswered message is redelivered, or None for the
            broker's default.
        output_buffer_bytes: the size of nsqd's output buffer, or None for its default.
        output_buffer_timeout_ms: the maximum time that nsqd holds back buffered output; 25 is the
            minimum that it accepts by default, and its own default of 250 adds noticeable latency.
        sample_rate: the percentage of messages to deliver, 0 for all.
        tls: True for TLS with the system's authorities, a `Tls`, or an SSLContext of one's own.
        compression: ``"snappy"``, ``"deflate"``, or None for none.
        deflate_level: from 1, the fastest, to 9, the smallest; limited by the broker's
            ``--max-deflate-level`` (6 by default).
        auth_secret: the secret for brokers with AUTH, which derive this client's permissions from
            it; other brokers do not get it. Without TLS it is sent in clear text.
        topology_region, topology_zone: of this machine, for brokers that prefer near consumers.
        in_order: whether the client handles the messages of each queue one after the other; a
            `Consumer` with ``order="queue"`` sets it.
    """

    client_id: str = field(default_factory=_client_id)
    hostname: str = field(default_factory=_hostname)
    user_agent: str = USER_AGENT
    heartbeat_interval_ms: int = 30_000
    message_timeout_ms: int | None = None
    output_buffer_bytes: int | None = None
    output_buffer_timeout_ms: int | None = 25
    sample_rate: int = 0
    tls: TlsChoice = False
    compression: Compression | None = None
    deflate_level: int = 6
    auth_secret: str | bytes | None = field(default=None, repr=False)
    topology_region: str = ""
    topology_zone: str = ""
    in_order: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.tls, TlsChoice):
            raise TypeError(f"tls={self.tls!r} must be True, a Tls(...) or an ssl.SSLContext")
        if self.compression not in (None, *get_args(Compression)):
            raise ValueError(f"compression={self.compression!r} must be 'snappy' or 'deflate'")
        if not 1 <= self.deflate_level <= 9:
            raise ValueError(f"deflate_level={self.deflate_level} must be from 1 to 9")
        if self.auth_secret is not None and not self.auth_secret:
            raise ValueError("auth_secret is empty, which no broker takes; leave it out for none")
        if not 0 <= self.sample_rate <= 99:
            raise ValueError(f"sample_rate={self.sample_rate} must be from 0 (all) to 99 percent")
        if self.heartbeat_interval_ms < 1000:
            raise ValueError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms}: must be at least 1000"
            )

    def secured(
        self,
        tls: TlsChoice | None,
        compression: Compression | None,
        auth_secret: str | bytes | None,
    ) -> Identity:
        """Return a copy with the given fields."""
        choices = {"tls": tls, "compression": compression, "auth_secret": auth_secret}
        changes: dict[str, Any] = {
            name: choice for name, choice in choices.items() if choice is not None
        }
        return replace(self, **changes) if changes else self

    @property
    def tls_settings(self) -> Tls | None:
        """The settings of TLS; None for no TLS."""
        if isinstance(self.tls, Tls):
            return self.tls
        if isinstance(self.tls, ssl.SSLContext):
            return Tls(context=self.tls)
        return Tls() if self.tls else None

    @property
    def secret(self) -> bytes | None:
        """AUTH's body."""
        secret = self.auth_secret
        return secret.encode() if isinstance(secret, str) else secret

    def fields(self) -> dict[str, Any]:
        """Return IDENTIFY's JSON object."""
        fields: dict[str, Any] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": self.heartbeat_interval_ms,
            "sample_rate": self.sample_rate,
            "tls_v1": self.tls is not False,
            "deflate": self.compression == "deflate",
            "snappy": self.compression == "snappy",
            "martlet": True,
            "martlet_started": True,
            "martlet_in_order": self.in_order,
        }
        if self.compression == "deflate":
            fields["deflate_level"] = self.deflate_level
        if self.topology_region:
            fields["topology_region"] = self.topology_region
        if self.topology_zone:
            fields["topology_zone"] = self.topology_zone
        if self.message_timeout_ms is not None:
            fields["msg_timeout"] = self.message_timeout_ms
        if self.output_buffer_bytes is not None:
            fields["output_buffer_size"] = self.output_buffer_bytes
        if self.output_buffer_timeout_ms is not None:
            fields["output_buffer_timeout"] = self.output_buffer_timeout_ms
        return fields


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """The broker's answers to IDENTIFY and AUTH.

    Attributes:
        message_timeout_ms: the time before an unanswered message is redelivered.
        max_message_timeout_ms: the maximum timeout, however often the message is touched.
        sample_rate: the percentage of messages that it delivers, 0 for all.
        tls, snappy, deflate: whether the connection switches to it.
        tls_version: such as ``TLSv1.3``; empty without TLS.
        auth_identity, auth_identity_url: this client, as the auth server knows it.
        extensions: the version of Martlet's extensions of the protocol, 0 for an NSQ broker.
        max_message_bytes, max_body_bytes: the maximum size of a message, and of one command's body;
            0 if the broker does not report it.
        broker_id: the broker's id, which its replicas share; empty if the broker does not report
            it.
        epoch: of the broker's run, higher with each next one; 0 if the broker does not report it.
        has_replicas: whether the broker goes on at another address when its process ends.
        run: a random name of the broker's process; empty if the broker does not report it.
    """

    version: str = ""
    max_ready_count: int = 2500
    message_timeout_ms: int = 60_000
    max_message_timeout_ms: int = 900_000
    sample_rate: int = 0
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 6
    auth_required: bool = False
    tls_version: str = ""
    auth_identity: str = ""
    auth_identity_url: str = ""
    extensions: int = 0
    max_message_bytes: int = 0
    max_body_bytes: int = 0
    broker_id: str = ""
    epoch: int = 0
    has_replicas: bool = False
    run: str = ""

    def is_copy_of(self, other: Features) -> bool:
        """Whether two processes, which are no replicas, have one broker's id."""
        return (
            bool(self.broker_id and self.run and other.run)
            and self.broker_id == other.broker_id
            and self.run != other.run
            and not (self.has_replicas or other.has_replicas)
        )

    @classmethod
    def parse(cls, data: bytes) -> Features:
        """Read the answer; a broker that negotiates nothing answers ``OK``. Raises ValueError: it
        is neither, or has a number out of range.
        """
        if data == b"OK":
            return cls()
        answer = _object("IDENTIFY", data)
        default = cls()

        def number(name: str, default: int, min_value: int, max_value: int) -> int:
            value = answer.get(name, default)
            if type(value) is not int:
                raise ValueError(f"in the answer to IDENTIFY {name} is {value!r}, no whole number")
            if not min_value <= value <= max_value:
                raise ValueError(
                    f"in the answer to IDENTIFY {name} is {str(value)[:40]},"
                    f" which is not from {min_value} to {max_value}"
                )
            return value

        return cls(
            version=str(answer.get("version", "")),
            max_ready_count=number("max_rdy_count", default.max_ready_count, 0, _MAX_COUNT),
            message_timeout_ms=number("msg_timeout", default.message_timeout_ms, 1, _MAX_MS),
            max_message_timeout_ms=number(
                "max_msg_timeout", default.max_message_timeout_ms, 1, _MAX_MS
            ),
            sample_rate=number("sample_rate", default.sample_rate, 0, 100),
            tls=answer.get("tls_v1") is True,
            snappy=answer.get("snappy") is True,
            deflate=answer.get("deflate") is True,
            deflate_level=number("deflate_level", default.deflate_level, -2, 9),
            auth_required=bool(answer.get("auth_required", False)),
            extensions=_extension(answer.get("martlet"), "version"),
            max_message_bytes=_extension(answer.get("martlet"), "max_msg_size"),
            max_body_bytes=_extension(answer.get("martlet"), "max_body_size"),
            broker_id=_text(answer.get("martlet"), "broker"),
            run=_text(answer.get("martlet"), "run"),
            epoch=_extension(answer.get("martlet"), "epoch"),
            has_replicas=_has_replicas(answer.get("martlet")),
        )

    def authorized(self, data: bytes) -> Features:
        """Return a copy with the answer to AUTH. Raises ValueError."""
        answer = _object("AUTH", data)
        return replace(
            self,
            auth_identity=str(answer.get("identity", "")),
            auth_identity_url=str(answer.get("identity_url", "")),
        )


def _extension(fields: object, name: str) -> int:
    number = fields.get(name) if isinstance(fields, dict) else 0
    return number if type(number) is int and number > 0 else 0


def _text(fields: object, field: str) -> str:
    name = fields.get(field) if isinstance(fields, dict) else ""
    return name if isinstance(name, str) else ""


def _has_replicas(fields: object) -> bool:
    return isinstance(fields, dict) and fields.get("replicas") is True


def _object(command: str, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ValueError(f"the answer to {command} is no JSON object: {data[:80]!r}")
    return answer
