"""The client that ``--consumer-opt`` and ``--producer-opt`` ask for."""

from __future__ import annotations

import ssl
from typing import Any

from martlet.client import FailureBackoff, Identity, LinearDelay, Rotation, Tls
from martlet.client.consumer.handling.failure_policy import RETRY, Delay
from martlet.durations import MILLISECOND_NS, SECOND_NS
from martlet.options.client import ClientOptions

_VERSIONS = {"tls1.3": ssl.TLSVersion.TLSv1_3}


def consumer_settings(options: ClientOptions) -> dict[str, Any]:
    """The arguments of a Consumer."""
    seconds = _seconds_of(options)
    return {
        **producer_settings(options),
        "retry": retry(options),
        "max_attempts": options.max_attempts,
        "lookup_poll_s": seconds["lookupd_poll_interval"],
        "failure_backoff": FailureBackoff(
            multiplier_s=seconds["backoff_multiplier"],
            max_s=seconds["max_backoff_duration"],
            strategy="full_jitter" if options.backoff_strategy == "full_jitter" else "exponential",
        ),
        "rotation": Rotation(
            low_rdy_idle_timeout_s=seconds["low_rdy_idle_timeout"],
            low_rdy_timeout_s=seconds["low_rdy_timeout"],
            rdy_redistribute_interval_s=seconds["rdy_redistribute_interval"],
        ),
    }


def producer_settings(options: ClientOptions) -> dict[str, Any]:
    """The arguments of a Producer."""
    return {
        "identity": _identity(options),
        "connect_timeout_s": options.dial_timeout_ns / SECOND_NS,
    }


def retry(options: ClientOptions) -> Delay:
    """How long what failed waits: as in NSQ's client, where its options are given."""
    seconds = _seconds_of(options)
    step_s, max_s = seconds["default_requeue_delay"], seconds["max_requeue_delay"]
    if step_s < 0 and max_s < 0:
        return RETRY
    usual = LinearDelay()
    max_s = usual.max_s if max_s < 0 else max_s
    return LinearDelay(step_s=min(usual.step_s if step_s < 0 else step_s, max_s), max_s=max_s)


def _seconds_of(options: ClientOptions) -> dict[str, float]:
    return {
        flag.name: getattr(options, flag.field) / SECOND_NS
        for flag in options.flags().values()
        if flag.field.endswith("_ns")
    }


def _identity(options: ClientOptions) -> Identity:
    names = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
    own = {name: getattr(options, name) for name in names if getattr(options, name)}
    return Identity(
        **own,
        heartbeat_interval_ms=options.heartbeat_interval_ns // MILLISECOND_NS,
        message_timeout_ms=options.msg_timeout_ns // MILLISECOND_NS or None,
        output_buffer_bytes=options.output_buffer_size or None,
        output_buffer_timeout_ms=options.output_buffer_timeout_ns // MILLISECOND_NS or None,
        sample_rate=options.sample_rate,
        tls=_tls(options),
        compression="snappy" if options.snappy else "deflate" if options.deflate else None,
        deflate_level=options.deflate_level,
        auth_secret=options.auth_secret or None,
    )


def _tls(options: ClientOptions) -> Tls | bool:
    if not options.tls_v1:
        return False
    return Tls(
        ca_file=options.tls_root_ca_file or None,
        cert_file=options.tls_cert or None,
        key_file=options.tls_key or None,
        verify=not options.tls_insecure_skip_verify,
        min_version=_VERSIONS.get(options.tls_min_version, ssl.TLSVersion.TLSv1_2),
    )
