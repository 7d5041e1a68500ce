"""Options of delivery: what messages and clients may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from martlet.options.flag import FlagKind, option
from martlet.options.options import Options

MIB = 1024 * 1024
_NO_BUFFER = "a client's wish is checked and answered, but messages are always sent at once"


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions(Options):
    """What messages and clients may ask for."""

    msg_timeout_ns: int = option(
        "msg-timeout",
        FlagKind.DURATION,
        MINUTE_NS,
        "how long a consumer has for a message, unless it asked for another time",
        limits=(MILLISECOND_NS, None),
        section="messages",
    )
    max_msg_timeout_ns: int = option(
        "max-msg-timeout",
        FlagKind.DURATION,
        15 * MINUTE_NS,
        "the longest that a consumer may have a message, touching it included",
        limits=(MILLISECOND_NS, None),
    )
    max_req_timeout_ns: int = option(
        "max-req-timeout",
        FlagKind.DURATION,
        HOUR_NS,
        "the longest delay for a message, requeued or published",
        limits=(0, None),
    )
    max_delay_ns: int = option(
        "max-delay",
        FlagKind.DURATION,
        40 * 24 * HOUR_NS,
        "the longest time until a message that is sent to be delivered at a time",
        limits=(0, 400 * 24 * HOUR_NS),
    )
    max_delayed_messages: int = option(
        "max-delayed-messages",
        FlagKind.INT,
        10_000_000,
        "the most messages that wait for their time, beyond those deferred in memory; more are"
        " refused (0: no limit)",
        limits=(0, None),
    )
    max_msg_size: int = option(
        "max-msg-size", FlagKind.SIZE, MIB, "the most bytes of one message", limits=(1, 2**30)
    )
    max_body_size: int = option(
        "max-body-size", FlagKind.SIZE, 5 * MIB, "the most bytes of one command", limits=(1, 2**30)
    )
    client_timeout_ns: int = MINUTE_NS
    """A client that does not ask for heartbeats of its own gets one each half of this."""
    max_heartbeat_interval_ns: int = option(
        "max-heartbeat-interval",
        FlagKind.DURATION,
        MINUTE_NS,
        "the longest time between heartbeats that a client may ask for",
        limits=(MILLISECOND_NS, None),
        section="clients",
    )
    max_rdy_count: int = option(
        "max-rdy-count", FlagKind.INT, 2500, "the highest RDY of a consumer", limits=(1, 2**31 - 1)
    )
    max_channel_consumers: int = option(
        "max-channel-consumers",
        FlagKind.INT,
        0,
        "the most consumers of one channel (0: no limit)",
        limits=(0, None),
    )
    max_topics: int = option(
        "max-topics",
        FlagKind.INT,
        0,
        "the most topics; who would make one more is refused (0: no limit)",
        limits=(0, None),
    )
    max_channels_per_topic: int = option(
        "max-channels-per-topic",
        FlagKind.INT,
        0,
        "the most channels of one topic; who would make one more is refused (0: no limit)",
        limits=(0, None),
    )
    max_output_buffer_size: int = option(
        "max-output-buffer-size",
        FlagKind.SIZE,
        64 * 1024,
        "the largest output buffer that a client may ask for",
        instead=_NO_BUFFER,
    )
    max_output_buffer_timeout_ns: int = option(
        "max-output-buffer-timeout",
        FlagKind.DURATION,
        30 * SECOND_NS,
        "the longest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    min_output_buffer_timeout_ns: int = option(
        "min-output-buffer-timeout",
        FlagKind.DURATION,
        25 * MILLISECOND_NS,
        "the shortest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    output_buffer_timeout_ns: int = option(
        "output-buffer-timeout",
        FlagKind.DURATION,
        250 * MILLISECOND_NS,
        "the time between writes to a client that asks for none",
        instead=_NO_BUFFER,
    )
    deflate: bool = option("deflate", FlagKind.BOOL, True, "let clients ask for deflate")
    max_deflate_level: int = option(
        "max-deflate-level",
        FlagKind.INT,
        6,
        "the highest level of deflate that a client may ask for",
        limits=(1, 9),
    )
    snappy: bool = option("snappy", FlagKind.BOOL, True, "let clients ask for snappy")
