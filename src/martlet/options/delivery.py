"""Options of delivery: what messages and clients may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.durations import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS
from martlet.options.flag import Size, option
from martlet.options.options import Options

MIB = 1024 * 1024
_NO_BUFFER = "a client's wish is checked and answered, but messages are always sent at once"


@dataclass(frozen=True, kw_only=True)
class DeliveryOptions(Options):
    """Limits and defaults of messages and clients."""

    msg_timeout_ns: int = option(
        MINUTE_NS,
        "how long a consumer has for a message, unless it asked for another time",
        limits=(MILLISECOND_NS, None),
        section="messages",
    )
    max_msg_timeout_ns: int = option(
        15 * MINUTE_NS,
        "the longest that a consumer may have a message, touching it included",
        limits=(MILLISECOND_NS, None),
    )
    max_req_timeout_ns: int = option(
        HOUR_NS, "the longest delay for a message, requeued or published", limits=(0, None)
    )
    max_delay_ns: int = option(
        40 * 24 * HOUR_NS,
        "the longest time until a message that is sent to be delivered at a time",
        limits=(0, 400 * 24 * HOUR_NS),
    )
    max_delayed_messages: int = option(
        10_000_000,
        "the most messages that wait for their time, beyond those deferred in memory; more are"
        " refused (0: no limit)",
        limits=(0, None),
    )
    max_msg_size: Size = option(MIB, "the most bytes of one message", limits=(1, 2**30))
    max_body_size: Size = option(5 * MIB, "the most bytes of one command", limits=(1, 2**30))
    client_timeout_ns: int = MINUTE_NS
    """A client that does not ask for heartbeats of its own gets one each half of this."""
    max_heartbeat_interval_ns: int = option(
        MINUTE_NS,
        "the longest time between heartbeats that a client may ask for",
        limits=(MILLISECOND_NS, None),
        section="clients",
    )
    max_rdy_count: int = option(2500, "the highest RDY of a consumer", limits=(1, 2**31 - 1))
    max_channel_consumers: int = option(
        0, "the most consumers of one channel (0: no limit)", limits=(0, None)
    )
    max_topics: int = option(
        0, "the most topics; who would make one more is refused (0: no limit)", limits=(0, None)
    )
    max_channels_per_topic: int = option(
        0,
        "the most channels of one topic; who would make one more is refused (0: no limit)",
        limits=(0, None),
    )
    max_output_buffer_size: Size = option(
        64 * 1024, "the largest output buffer that a client may ask for", instead=_NO_BUFFER
    )
    max_output_buffer_timeout_ns: int = option(
        30 * SECOND_NS,
        "the longest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    min_output_buffer_timeout_ns: int = option(
        25 * MILLISECOND_NS,
        "the shortest time between writes that a client may ask for",
        instead=_NO_BUFFER,
    )
    output_buffer_timeout_ns: int = option(
        250 * MILLISECOND_NS,
        "the time between writes to a client that asks for none",
        instead=_NO_BUFFER,
    )
    deflate: bool = option(True, "let clients ask for deflate")
    max_deflate_level: int = option(
        6, "the highest level of deflate that a client may ask for", limits=(1, 9)
    )
    snappy: bool = option(True, "let clients ask for snappy")
