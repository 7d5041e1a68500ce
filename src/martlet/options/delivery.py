"""Options of delivery: what messages and clients may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.flag import Size, option
from martlet.options.options import Options
from martlet.text import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS

MIB = 1024 * 1024
_NO_BUFFER = "a client's request is checked and answered, but messages are always sent at once"


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeliveryOptions(Options):
    """Limits and defaults of messages and clients."""

    msg_timeout_ns: int = option(
        MINUTE_NS,
        "the time that a consumer has for a message, unless it requests another",
        limits=(MILLISECOND_NS, None),
        section="messages",
    )
    max_msg_timeout_ns: int = option(
        15 * MINUTE_NS,
        "maximum time that a consumer may have a message, with any number of touches",
        limits=(MILLISECOND_NS, None),
    )
    max_req_timeout_ns: int = option(
        HOUR_NS, "maximum delay of a requeued or published message", limits=(0, None)
    )
    max_delay_ns: int = option(
        40 * 24 * HOUR_NS,
        "maximum time ahead of a message that is sent to be delivered at a time",
        limits=(0, 400 * 24 * HOUR_NS),
    )
    max_delayed_messages: int = option(
        10_000_000,
        "maximum delayed messages, beyond those deferred in memory; more are refused (0: no limit)",
        limits=(0, None),
    )
    max_msg_size: Size = option(MIB, "maximum bytes of one message", limits=(1, 2**30))
    max_body_size: Size = option(
        5 * MIB,
        "maximum bytes of one command, unless it publishes a single message",
        limits=(1, 2**30),
    )
    client_timeout_ns: int = MINUTE_NS
    """A client that does not ask for heartbeats of its own gets one each half of this."""
    max_heartbeat_interval_ns: int = option(
        MINUTE_NS,
        "maximum heartbeat interval that a client may request",
        limits=(MILLISECOND_NS, None),
        section="clients",
    )
    max_rdy_count: int = option(2500, "maximum RDY of a consumer", limits=(1, 2**31 - 1))
    max_channel_consumers: int = option(
        0, "maximum consumers of one channel (0: no limit)", limits=(0, None)
    )
    max_topics: int = option(
        0, "maximum topics; creating more is refused (0: no limit)", limits=(0, None)
    )
    max_channels_per_topic: int = option(
        0,
        "maximum channels of one topic; creating more is refused (0: no limit)",
        limits=(0, None),
    )
    max_output_buffer_size: Size = option(
        64 * 1024, "maximum output buffer that a client may request", instead=_NO_BUFFER
    )
    max_output_buffer_timeout_ns: int = option(
        30 * SECOND_NS,
        "maximum time between writes that a client may request",
        instead=_NO_BUFFER,
    )
    min_output_buffer_timeout_ns: int = option(
        25 * MILLISECOND_NS,
        "minimum time between writes that a client may request",
        instead=_NO_BUFFER,
    )
    output_buffer_timeout_ns: int = option(
        250 * MILLISECOND_NS,
        "the time between writes to a client that requests none",
        instead=_NO_BUFFER,
    )
    deflate: bool = option(True, "allow deflate")
    max_deflate_level: int = option(
        6, "maximum deflate level that a client may request", limits=(1, 9)
    )
    snappy: bool = option(True, "allow snappy")
