import dataclasses
from typing import Any

import pytest

from martlet.options import (
    BrokerOptions,
    OptionError,
    TlsRequired,
)
from martlet.options.metrics import default_node_id


def _words(text: str) -> set[str]:
    return set(text.split())


# What `nsqd -help` of version 1.3.0 lists, without the deprecated and -config, -version.
NSQD_FLAGS = _words("""
auth-http-address auth-http-request-method broadcast-address broadcast-http-port
broadcast-tcp-port data-path deflate e2e-processing-latency-percentile
e2e-processing-latency-window-time enable-experiment http-address http-client-connect-timeout
http-client-request-timeout https-address log-level log-prefix lookupd-tcp-address max-body-size
max-bytes-per-file max-channel-consumers max-deflate-level max-heartbeat-interval max-msg-size
max-msg-timeout max-output-buffer-size max-output-buffer-timeout max-rdy-count max-req-timeout
mem-queue-size min-output-buffer-timeout msg-timeout node-id output-buffer-timeout
queue-scan-selection-count queue-scan-worker-pool-max snappy statsd-address
statsd-exclude-ephemeral statsd-interval statsd-mem-stats statsd-prefix statsd-udp-packet-size
sync-every sync-timeout tcp-address tls-cert tls-client-auth-policy tls-key tls-min-version
tls-required tls-root-ca-file topology-region topology-zone
""")
OWN_FLAGS = _words("""
flush min-free-bytes max-connections journal-interval ignore-nsqd-data sync-flush-timeout
checkpoint-interval segment-spare copies initial-replicas metadata min-in-sync replica-address
replica-name replica-secret-file replica-set replica-timeout replica-tls-ca-file replica-tls-cert
replica-tls-key replication sync-replica-timeout max-channels-per-topic max-delay
max-delayed-messages max-disk-bytes dead-letter-path disk-full-policy disk-clean-percent
disk-force-percent disk-refuse-percent retention keep-emptied retention-bytes
transaction-aside-topic transaction-check-after transaction-check-interval transaction-checks
transaction-memory transaction-outcomes transaction-series max-transaction-bytes
max-transaction-sends max-transactions allowed-host operator-token-file trace max-topics
metrics-max-channels
""")


def test_has_every_flag_of_nsqd() -> None:
    assert NSQD_FLAGS - BrokerOptions.flags().keys() == set()


def test_adds_only_flags_that_are_martlets_own() -> None:
    assert BrokerOptions.flags().keys() - NSQD_FLAGS == OWN_FLAGS


def test_defaults_that_nsqd_does_not_tell() -> None:
    options = BrokerOptions()
    assert (options.tcp_address, options.flush) == ("0.0.0.0:4150", "async")


def test_the_default_node_id_is_that_of_nsqd() -> None:
    # `nsqd` on a host named "vm" logs "ID: 617".
    assert default_node_id("vm") == 617


def test_durations_say_so_in_their_name() -> None:
    for flag in BrokerOptions.flags().values():
        assert flag.field.endswith("_ns") == (flag.kind == "duration"), flag


def test_every_default_could_be_written_as_a_flag() -> None:
    for flag in BrokerOptions.flags().values():
        default = BrokerOptions.defaults()[flag.field]
        if default not in ((), ""):
            assert flag.parse(flag.format(default)) == default, flag


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_deflate_level": 12}, "--max-deflate-level is 12; it must be between 1 and 9"),
        ({"node_id": 1024}, "--node-id is 1024; it must be between 0 and 1023"),
        ({"max_disk_bytes": 100 << 20}, "at least 419430400, which is 4 times --max-bytes-per"),
        ({"msg_timeout_ns": 0}, "--msg-timeout is 0s; it must be at least 1ms"),
        ({"flush": "never"}, "--flush is 'never'; it must be one of async, sync"),
        ({"auth_http_request_method": "put"}, "must be one of get, post"),
        ({"e2e_processing_latency_percentiles": (1.5,)}, "1.5; it must be over 0, at most 1"),
        (
            {"tls_required": TlsRequired.YES},
            "cannot require TLS client connections without TLS key",
        ),
        ({"tls_client_auth_policy": "require", "tls_cert": "a"}, "give --tls-cert and --tls-key"),
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        BrokerOptions(**wrong)
    assert message in str(caught.value)


def test_options_without_effect_are_reported_only_when_set() -> None:
    assert BrokerOptions().without_effect() == []
    (flag,) = BrokerOptions(queue_scan_worker_pool_max=2).without_effect()
    assert flag[0].name == "queue-scan-worker-pool-max"
    assert flag[1] == 2


def test_a_segment_is_whole_pages() -> None:
    assert BrokerOptions().segment_bytes == BrokerOptions().max_bytes_per_file == 100 << 20
    assert BrokerOptions(max_bytes_per_file=10_000).segment_bytes == 12288


def test_a_changed_copy_is_checked_again() -> None:
    options = BrokerOptions()
    assert options.replace(max_rdy_count=7).max_rdy_count == 7
    with pytest.raises(OptionError):
        options.replace(max_rdy_count=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_rdy_count = 7  # type: ignore[misc]


def test_the_former_policy_of_a_full_disk_loses_nothing() -> None:
    options = BrokerOptions(disk_full_policy="dead-letter", dead_letter_path="/somewhere")
    assert not options.drops_oldest
    assert BrokerOptions(disk_full_policy="drop-oldest").drops_oldest
