"""The client options of ``--consumer-opt`` and ``--producer-opt``.

Each is ``KEY,VALUE``, with the names of go-nsq's Config; a key alone means true, and ``-`` may
replace ``_``. Options without a meaning here are accepted, and a warning says what happens instead.
If go-nsq's default would noticeably differ, Martlet's own is kept.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

from martlet.client import FailureBackoff, Identity, LinearDelay, Rotation, Tls
from martlet.client.consumer.handling.failure_policy import RETRY, Delay
from martlet.options.flag import Flag, FlagKind, OptionError, Size, option
from martlet.options.options import Options
from martlet.text import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS

_OWN = " (default: Martlet's own)"
_MAX_NS = 24 * HOUR_NS
_UNSET = -1


@dataclass(frozen=True, kw_only=True)
class ClientOptions(Options):
    """The options of a client, under the names of go-nsq's Config."""

    separator: ClassVar[str] = "_"
    tls_v1: bool = option(False, "speak TLS")
    tls_root_ca_file: str = option("", "the trusted authorities, in PEM (default: the system's)")
    tls_cert: str = option("", "the certificate to show, in PEM")
    tls_key: str = option("", "its private key")
    tls_insecure_skip_verify: bool = option(False, "trust any certificate, of whatever name")
    tls_min_version: str = option(
        "tls1.2",
        "the minimum version of TLS, at least 1.2",
        choices=tuple((name, name) for name in ("ssl3.0", "tls1.0", "tls1.1", "tls1.2", "tls1.3")),
    )
    snappy: bool = option(False, "compress by snappy")
    deflate: bool = option(False, "compress by deflate")
    deflate_level: int = option(6, "1 to 9", limits=(1, 9))
    auth_secret: str = option("", "the secret for AUTH")
    client_id: str = option("", "names the client in /stats" + _OWN)
    hostname: str = option("", "names the machine in /stats" + _OWN)
    user_agent: str = option("", "names the software there" + _OWN)
    topology_region: str = option("", "where the client is")
    topology_zone: str = option("", "where in the region")
    heartbeat_interval_ns: int = option(
        30 * SECOND_NS, "the interval of the broker's heartbeats", limits=(SECOND_NS, _MAX_NS)
    )
    sample_rate: int = option(0, "the percentage of messages to get; 0: all", limits=(0, 99))
    output_buffer_size: int = option(
        0, "the size of nsqd's output buffer, in bytes" + _OWN, limits=(-1, None)
    )
    output_buffer_timeout_ns: int = option(
        25 * MILLISECOND_NS,
        "the maximum time that nsqd holds back buffered output",
        limits=(0, _MAX_NS),
    )
    msg_timeout_ns: int = option(
        0, "the message timeout (default: the broker's)", limits=(0, _MAX_NS)
    )
    dial_timeout_ns: int = option(
        5 * SECOND_NS, "the timeout of one attempt to connect", limits=(1, _MAX_NS)
    )
    lookupd_poll_interval_ns: int = option(
        MINUTE_NS,
        "the interval of polls of lookup daemons",
        limits=(10 * MILLISECOND_NS, 5 * MINUTE_NS),
    )
    backoff_strategy: str = option(
        "exponential",
        "the strategy of the backoff while handlers fail",
        choices=(("exponential", "exponential"), ("full_jitter", "full_jitter")),
    )
    backoff_multiplier_ns: int = option(SECOND_NS, "the unit of the backoff", limits=(0, HOUR_NS))
    max_backoff_duration_ns: int = option(
        2 * MINUTE_NS, "the maximum backoff; 0: no backoff", limits=(0, HOUR_NS)
    )
    low_rdy_idle_timeout_ns: int = option(
        10 * SECOND_NS,
        "when brokers take turns: the length of a turn without messages",
        limits=(SECOND_NS, 5 * MINUTE_NS),
    )
    low_rdy_timeout_ns: int = option(
        30 * SECOND_NS,
        "when brokers take turns: the length of a turn",
        limits=(SECOND_NS, 5 * MINUTE_NS),
    )
    rdy_redistribute_interval_ns: int = option(
        5 * SECOND_NS, "the interval of checks of turns", limits=(MILLISECOND_NS, 5 * SECOND_NS)
    )
    max_attempts: int = option(
        0,
        "maximum attempts, after which a message is finished, and lost; 0: no limit",
        limits=(0, 65535),
    )
    default_requeue_delay_ns: int = option(
        _UNSET, "the delay of a failed message, times its attempts" + _OWN, limits=(_UNSET, HOUR_NS)
    )
    max_requeue_delay_ns: int = option(_UNSET, "the maximum delay" + _OWN, limits=(_UNSET, HOUR_NS))
    local_addr: str = option(
        "",
        "the local address of connections",
    )
    # Options without a meaning here.
    max_in_flight: int = option(
        1, "", limits=(0, 2**31 - 1), instead="--max-in-flight says it, as in NSQ's tools"
    )
    read_timeout_ns: int = option(
        MINUTE_NS, "", instead="a broker counts as lost after two heartbeat intervals of silence"
    )
    write_timeout_ns: int = option(
        SECOND_NS, "", instead="a broker counts as lost after two heartbeat intervals of silence"
    )
    lookupd_poll_jitter: float = option(
        0.3, "", instead="up to 30 percent of the interval is random"
    )
    lookupd_poll_timeout_ns: int = option(
        MINUTE_NS, "", instead="a lookup daemon has 5 s to answer"
    )
    max_msg_size: Size = option(0, "", instead="a frame may have 64 MiB")
    skip_lookupd_authorization: bool = option(
        True, "", instead="lookup daemons do not get the secret"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_addr:
            raise OptionError(
                "--local_addr cannot be used: the system chooses the address that connections come"
                " from"
            )
        if self.snappy and self.deflate:
            raise OptionError("snappy and deflate exclude each other: choose one")
        if self.tls_key and not self.tls_cert:
            raise OptionError("tls_key needs tls_cert too")
        tls = ("tls_root_ca_file", "tls_cert", "tls_insecure_skip_verify")
        names = [name for name in tls if getattr(self, name)]
        if names and not self.tls_v1:
            raise OptionError(f"{names[0]} has no effect without tls_v1: ask for that too")


def client_options(flag: str, texts: Iterable[str]) -> ClientOptions:
    """Read the values of ``--consumer-opt`` or ``--producer-opt``.

    Args:
        flag: the flag's name, for errors.
        texts: each ``KEY,VALUE`` or ``KEY``; the last of a key counts.

    Raises:
        OptionError: a key is not known, or its value is wrong.
    """
    flags = ClientOptions.flags()
    values: dict[str, object] = {}
    for text in texts:
        name, comma, value = text.partition(",")
        key = flags.get(name.replace("-", "_"))
        if key is None:
            # Without the value, which may be a secret under a mistyped name.
            raise OptionError(f"--{flag}: {name!r} is none of {', '.join(flags)}")
        if not comma and key.kind is not FlagKind.BOOL:
            raise OptionError(f"--{flag}={name} needs a value: --{flag}={name},VALUE")
        try:
            values[key.field] = key.parse(value if comma else "true")
        except OptionError as error:
            raise OptionError(f"--{flag}: {_bare(error)}") from None
    try:
        return ClientOptions(**values)  # type: ignore[arg-type]
    except OptionError as error:
        raise OptionError(f"--{flag}: {_bare(error)}") from None


def without_effect(
    flag: str, options: ClientOptions, also: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[Flag, object]]:
    """List options without effect as `Options` does, under the flag's names.

    Args:
        flag: ``consumer-opt`` or ``producer-opt``.
        options: its values.
        also: keys without effect in this tool, and what happens instead.
    """
    flags = ClientOptions.flags()
    unused = options.without_effect() + [
        (replace(flags[name], instead=instead), getattr(options, flags[name].field))
        for name, instead in also.items()
    ]
    defaults = ClientOptions.defaults()
    return [
        (replace(key, name=f"{flag} {key.name}"), value)
        for key, value in unused
        if value != defaults[key.field]
    ]


def _bare(error: OptionError) -> str:
    return str(error).removeprefix("--")


_VERSIONS = {"tls1.3": ssl.TLSVersion.TLSv1_3}


def consumer_settings(options: ClientOptions) -> dict[str, Any]:
    """Return the arguments of a Consumer."""
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
    """Return the arguments of a Producer."""
    return {
        "identity": _identity(options),
        "connect_timeout_s": options.dial_timeout_ns / SECOND_NS,
    }


def retry(options: ClientOptions) -> Delay:
    """Return the delay of failed messages, by go-nsq's options if given."""
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
