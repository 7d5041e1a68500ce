"""Values of ``--consumer-opt`` and ``--producer-opt``, and the settings that they become."""

from __future__ import annotations

import ssl

import pytest

from martlet.cli.nsq_tools.client_options import (
    ClientOptions,
    client_options,
    consumer_settings,
    producer_settings,
    retry,
    without_effect,
)
from martlet.cli.nsq_tools.pub import PublishOptions
from martlet.cli.nsq_tools.tail import TailOptions
from martlet.cli.nsq_tools.to_file import FileOptions
from martlet.cli.nsq_tools.to_http import ToHttpOptions
from martlet.client import FailureBackoff, Identity, LinearDelay, Rotation, Tls
from martlet.client.consumer.handling.failure_policy import RETRY
from martlet.options import OptionError

# Config's names in go-nsq 1.1, but for tls_config, which no text can stand for.
GO_NSQ = """
    dial_timeout read_timeout write_timeout local_addr lookupd_poll_interval lookupd_poll_jitter
    lookupd_poll_timeout max_requeue_delay default_requeue_delay backoff_strategy
    max_backoff_duration backoff_multiplier max_attempts low_rdy_idle_timeout low_rdy_timeout
    rdy_redistribute_interval client_id hostname user_agent topology_region topology_zone
    heartbeat_interval sample_rate tls_v1 tls_root_ca_file tls_insecure_skip_verify tls_cert tls_key
    tls_min_version deflate deflate_level snappy output_buffer_size output_buffer_timeout
    max_in_flight msg_timeout max_msg_size auth_secret skip_lookupd_authorization
"""


def read(*texts: str) -> ClientOptions:
    return client_options("consumer-opt", texts)


def test_every_name_of_nsqs_client_is_known() -> None:
    assert set(ClientOptions.flags()) == set(GO_NSQ.split())


def test_options_become_settings_of_the_client() -> None:
    options = read(
        *("tls_v1", "tls-root-ca-file,/ca.pem", "tls_cert,/c.pem", "tls_key,/k.pem"),
        *("tls_min_version,tls1.3", "snappy,true", "auth_secret,a,b", "client_id,me"),
        *("heartbeat_interval,1500ms", "sample_rate,42", "msg_timeout,1m30s"),
        *("output_buffer_size,-1", "output_buffer_timeout,0s", "topology_zone,shelf"),
        *("dial_timeout,2s", "lookupd_poll_interval,15s", "backoff_multiplier,2s"),
        *("max_backoff_duration,0", "backoff_strategy,full_jitter", "low_rdy_timeout,7s"),
        *("max_attempts,9", "default_requeue_delay,2s"),
    )
    assert consumer_settings(options) == {
        "identity": Identity(
            client_id="me",
            heartbeat_interval_ms=1500,
            message_timeout_ms=90_000,
            output_buffer_bytes=-1,
            output_buffer_timeout_ms=None,
            sample_rate=42,
            tls=Tls(
                ca_file="/ca.pem",
                cert_file="/c.pem",
                key_file="/k.pem",
                min_version=ssl.TLSVersion.TLSv1_3,
            ),
            compression="snappy",
            auth_secret="a,b",
            topology_zone="shelf",
        ),
        "connect_timeout_s": 2.0,
        "retry": LinearDelay(step_s=2.0),
        "max_attempts": 9,
        "lookup_poll_s": 15.0,
        "failure_backoff": FailureBackoff(multiplier_s=2.0, max_s=0.0, strategy="full_jitter"),
        "rotation": Rotation(low_rdy_timeout_s=7.0),
    }


def test_missing_options_are_the_defaults_of_the_client() -> None:
    assert producer_settings(read()) == {"identity": Identity(), "connect_timeout_s": 5.0}
    assert consumer_settings(read())["rotation"] == Rotation()
    assert consumer_settings(read())["max_attempts"] == 0
    assert retry(read()) is RETRY
    assert retry(read("max_requeue_delay,30s")) == LinearDelay(step_s=30.0, max_s=30.0)
    assert retry(read("default_requeue_delay,0")) == LinearDelay(step_s=0.0)
    assert consumer_settings(read())["failure_backoff"] == FailureBackoff()


def test_the_last_of_a_key_counts_and_false_is_false() -> None:
    options = read("deflate", "deflate,false", "deflate_level,3", "tls_v1,1")
    identity = producer_settings(options)["identity"]
    assert (identity.compression, identity.deflate_level) == (None, 3)
    assert identity.tls == Tls()
    assert producer_settings(read("tls_v1", "tls_insecure_skip_verify"))["identity"].tls == Tls(
        verify=False
    )


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["snapy,hush"], r"--consumer-opt: 'snapy' is none of tls_v1, .*snappy, .*max_attempts"),
        (["client_id"], r"--consumer-opt=client_id needs a value: --consumer-opt=client_id,VALUE"),
        (["sample_rate,x"], r"--consumer-opt: sample_rate: 'x' .*number"),
        (["sample_rate,100"], r"--consumer-opt: sample_rate is 100; it must be between 0 and 99"),
        (["heartbeat_interval,1ms"], r"heartbeat_interval is 1ms; it must be between 1s"),
        (["heartbeat_interval,30000"], r"'30000' has no unit; write 30000s or 30000ms"),
        (["tls_v1,maybe"], r"--consumer-opt: tls_v1: 'maybe'"),
        (["tls_min_version,tls9"], r"'tls9' is none of ssl3\.0, tls1\.0"),
        (["snappy", "deflate"], r"snappy and deflate exclude each other"),
        (["tls_v1", "tls_key,/k.pem"], r"tls_key needs tls_cert too"),
        (["tls_root_ca_file,/ca.pem"], r"tls_root_ca_file has no effect without tls_v1"),
        (["local_addr,127.0.0.1:0"], r"local_addr cannot be used: the system chooses"),
    ],
)
def test_wrong_options_are_named(texts: list[str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        read(*texts)
    assert "hush" not in str(caught.value), "it may be a secret"


def test_options_without_effect_are_reported() -> None:
    flags = without_effect("consumer-opt", read("max_attempts,9", "read_timeout,1s", "snappy"))
    assert [(flag.name, value) for flag, value in flags] == [("consumer-opt read_timeout", 10**9)]


def test_the_tools_take_them() -> None:
    where = {"topics": ("t",), "nsqd_tcp_addresses": ("127.0.0.1:4150",)}
    for kind in (TailOptions, FileOptions):
        tool = kind(**where, consumer_opts=("snappy", "max_attempts,9"))  # type: ignore[arg-type]
        assert tool.client.snappy
        assert [flag.name for flag, _ in tool.without_effect()] == ["consumer-opt max_attempts"]
        with pytest.raises(OptionError, match="--consumer-opt: 'what'"):
            kind(**where, consumer_opts=("what",))  # type: ignore[arg-type]
    gives_up = ToHttpOptions(
        **where,  # type: ignore[arg-type]
        post_urls=("http://localhost/",),
        consumer_opts=("max_attempts,9",),
    )
    assert gives_up.without_effect() == []
    publish = {"topic": "t", "nsqd_tcp_addresses": ("127.0.0.1:4150",)}
    with pytest.raises(OptionError, match="--producer-opt: 'what'"):
        PublishOptions(**publish, producer_opts=("what",))  # type: ignore[arg-type]
