"""Negotiation: the features that a client requests by IDENTIFY, and the broker's answer.

Field by field as in nsqd, including limits, defaults and texts. A feature that this broker does not
offer is answered with false.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from martlet.options import BrokerOptions
from martlet.protocol.nsq.v2 import EXTENSION_VERSION, ProtocolError
from martlet.text import go_json

_MILLISECOND_NS = 1_000_000
_MIN_MS = 1000
_SMALLEST_OUTPUT_BUFFER = 64
_DEFAULT_OUTPUT_BUFFER = 16 * 1024
_DEFAULT_DEFLATE_LEVEL = 6
_STRINGS = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
_INTEGERS = (
    "heartbeat_interval",
    "output_buffer_size",
    "output_buffer_timeout",
    "deflate_level",
    "sample_rate",
    "msg_timeout",
)
_BOOLEANS = (
    "feature_negotiation",
    "tls_v1",
    "deflate",
    "snappy",
    "martlet",
    "martlet_started",
    "martlet_in_order",
)


@dataclass
class ClientIdentity:
    """What is agreed with a client. Times are in nanoseconds, 0 for none."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    heartbeat_interval_ns: int = 0
    msg_timeout_ns: int = 0
    output_buffer_size: int = _DEFAULT_OUTPUT_BUFFER
    output_buffer_timeout_ns: int = 0
    sample_rate: int = 0
    extended: bool = False
    """Whether it uses Martlet's extensions."""
    says_started: bool = False
    """Whether it announces the messages that it starts to handle."""
    in_order: bool = False
    """Whether it handles the messages of each queue one after the other."""


def default_identity(options: BrokerOptions, address: str) -> ClientIdentity:
    """Return the identity of a client before IDENTIFY: its names are its address."""
    host = address.rpartition(":")[0].strip("[]")
    return ClientIdentity(
        client_id=host,
        hostname=host,
        heartbeat_interval_ns=options.client_timeout_ns // 2,
        msg_timeout_ns=options.msg_timeout_ns,
        output_buffer_timeout_ns=options.output_buffer_timeout_ns,
    )


def _checked(fields: dict[str, object]) -> dict[str, object]:
    """Return the known fields, checked for their types, with Go's zero where one is missing."""
    checked: dict[str, object] = {}
    for names, kind, zero in ((_STRINGS, str, ""), (_INTEGERS, int, 0), (_BOOLEANS, bool, False)):
        for name in names:
            value = fields.get(name)
            if value is None:
                value = zero
            if type(value) is not kind:
                raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body")
            checked[name] = value
    for name in _STRINGS:
        checked[name] = _encodable(str(checked[name]))
    return checked


def _encodable(text: str) -> str:
    """Replace half of a surrogate pair, which JSON may contain, by U+FFFD, as Go does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _within(value: int, low: int, high: int, text: str) -> int:
    if not low <= value <= high:
        raise ProtocolError("E_BAD_BODY", f"IDENTIFY {text} ({value}) is invalid")
    return value


class BrokerRun(NamedTuple):
    """A broker, by which a client of Martlet recognises it at another address."""

    broker_id: str
    """The same for all replicas of a broker, and after a restart; empty if unknown."""
    epoch: int
    """Of this run; each next run, also of another replica as primary, has a higher one."""
    has_replicas: bool = False
    """Whether it goes on at another address when its process ends."""
    process: str = ""
    """A random name of the process; empty if unknown."""


NO_RUN = BrokerRun("", 0)


class Agreement(NamedTuple):
    """The result of a negotiation: how the connection continues, compression inside TLS."""

    answer: bytes
    """To the client: JSON where it negotiates features, else ``OK``."""
    tls: bool = False
    snappy: bool = False
    deflate_level: int = 0
    """0 without deflate."""

    @property
    def upgrades(self) -> bool:
        """Whether the connection continues in another encoding."""
        return self.tls or self.snappy or self.deflate_level > 0


def negotiate(
    fields: dict[str, object],
    identity: ClientIdentity,
    options: BrokerOptions,
    version: str,
    offers_tls: bool = False,
    run: BrokerRun = NO_RUN,
) -> Agreement:
    """Store a client's requested settings in its identity.

    Raises:
        ProtocolError: a field has a wrong type or is out of its limits, or two exclude each other.
    """
    request = _checked(fields)
    for name in _STRINGS:
        setattr(identity, name, request[name])
    _take_times(request, identity, options)
    identity.sample_rate = _within(int(str(request["sample_rate"])), 0, 99, "sample rate")
    timeout_ms = int(str(request["msg_timeout"]))
    if timeout_ms:
        max_ms = options.max_msg_timeout_ns // _MILLISECOND_NS
        _within(timeout_ms, _MIN_MS, max_ms, "msg timeout")
        identity.msg_timeout_ns = timeout_ms * _MILLISECOND_NS
    if not request["feature_negotiation"]:
        return Agreement(b"OK")
    tls = offers_tls and bool(request["tls_v1"])
    snappy = options.snappy and bool(request["snappy"])
    deflate = options.deflate and bool(request["deflate"])
    if deflate and snappy:
        raise ProtocolError(
            "E_IDENTIFY_FAILED", "cannot enable both deflate and snappy compression"
        )
    level = int(str(request["deflate_level"])) if deflate else 0
    level = min(level if level > 0 else _DEFAULT_DEFLATE_LEVEL, options.max_deflate_level)
    topology = {}
    if options.topology_region or options.topology_zone:
        topology = {
            "topology_region": options.topology_region,
            "topology_zone": options.topology_zone,
        }
    identity.extended = bool(request["martlet"])
    identity.says_started = identity.extended and bool(request["martlet_started"])
    identity.in_order = identity.says_started and bool(request["martlet_in_order"])
    extensions = {"martlet": _extensions(options, run)} if identity.extended else {}
    answer = go_json(
        {
            "max_rdy_count": options.max_rdy_count,
            "version": version,
            "max_msg_timeout": options.max_msg_timeout_ns // _MILLISECOND_NS,
            "msg_timeout": identity.msg_timeout_ns // _MILLISECOND_NS,
            "tls_v1": tls,
            "deflate": deflate,
            "deflate_level": level,
            "max_deflate_level": options.max_deflate_level,
            "snappy": snappy,
            "sample_rate": identity.sample_rate,
            "auth_required": bool(options.auth_http_addresses),
            "output_buffer_size": identity.output_buffer_size,
            "output_buffer_timeout": identity.output_buffer_timeout_ns // _MILLISECOND_NS,
        }
        | topology
        | extensions
    ).encode()
    return Agreement(answer, tls, snappy, level if deflate else 0)


def _extensions(options: BrokerOptions, run: BrokerRun) -> dict[str, int | str]:
    return {
        "version": EXTENSION_VERSION,
        "max_msg_size": options.max_msg_size,
        "max_body_size": options.max_body_size,
        "broker": run.broker_id,
        "epoch": run.epoch,
        **({"run": run.process} if run.process else {}),
        **({"replicas": True} if run.has_replicas else {}),
    }


def _take_times(
    request: dict[str, object], identity: ClientIdentity, options: BrokerOptions
) -> None:
    heartbeat_ms = int(str(request["heartbeat_interval"]))
    if heartbeat_ms == -1:
        identity.heartbeat_interval_ns = 0
    elif heartbeat_ms:
        max_ms = options.max_heartbeat_interval_ns // _MILLISECOND_NS
        _within(heartbeat_ms, _MIN_MS, max_ms, "heartbeat interval")
        identity.heartbeat_interval_ns = heartbeat_ms * _MILLISECOND_NS
    buffer_ms = int(str(request["output_buffer_timeout"]))
    if buffer_ms == -1:
        identity.output_buffer_timeout_ns = 0
    elif buffer_ms:
        min_ms = options.min_output_buffer_timeout_ns // _MILLISECOND_NS
        max_ms = options.max_output_buffer_timeout_ns // _MILLISECOND_NS
        _within(buffer_ms, min_ms, max_ms, "output buffer timeout")
        identity.output_buffer_timeout_ns = buffer_ms * _MILLISECOND_NS
    buffer_size = int(str(request["output_buffer_size"]))
    if buffer_size == -1:
        identity.output_buffer_size, identity.output_buffer_timeout_ns = 1, 0
    elif buffer_size:
        largest = options.max_output_buffer_size
        _within(buffer_size, _SMALLEST_OUTPUT_BUFFER, largest, "output buffer size")
        identity.output_buffer_size = buffer_size
