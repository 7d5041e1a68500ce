"""The options of replicas: what does not go together, and what would be open to strangers."""

from __future__ import annotations

from typing import Any

import pytest

from martlet.options import BrokerOptions, OptionError

GIVEN: dict[str, Any] = {"replica_name": "a", "metadata": "sqlite:replicas.db"}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"replica_name": "a b"}, "--replica-name=a b is not valid"),
        ({"replica_name": ""}, "--metadata=sqlite:replicas.db needs --replica-name"),
        (
            {"replica_name": "", "metadata": "", "initial_replicas": "a=127.0.0.1:4153"},
            "--initial-replicas=a=127.0.0.1:4153 needs --replica-name",
        ),
        (
            {"replica_name": "", "metadata": "", "copies": 2},
            "--copies=2 needs --replica-name",
        ),
        (
            {"replica_name": "", "metadata": "", "min_in_sync": 1},
            "--min-in-sync=1 needs --replica-name",
        ),
        ({"metadata": ""}, "--replica-name needs --metadata: etcd:HOST:2379"),
        ({"replica_set": "x/y"}, "--replica-set=x/y is not valid"),
        ({"replica_address": "4153"}, "--replica-address: '4153' is no address"),
        ({"replica_address": ":4153"}, "--replica-address: ':4153' is no address"),
        ({"replica_address": "10.0.0.1:0"}, "--replica-address: '10.0.0.1:0' is no address"),
        ({"replica_address": "0.0.0.0:4153"}, "0.0.0.0:4153 is every address of a machine"),
        ({"replica_address": "[::]:4153"}, "give the address that reaches it, like 10.0.0.1:4153"),
        ({"initial_replicas": "b=0.0.0.0:1"}, "--initial-replicas: 0.0.0.0:1 is every address"),
        ({"replica_address": "10.0.0.1:4153"}, "is open to the network: give --replica-secret"),
        ({"replica_address": "host:4153"}, "is open to the network"),
        ({"replica_tls_cert": "c.pem"}, "--replica-tls-ca-file go together"),
        ({"initial_replicas": "b=127.0.0.1:4153"}, "must have this replica, as a=127.0.0.1:4153"),
        ({"initial_replicas": "a=127.0.0.1:4154"}, "must have this replica, as a=127.0.0.1:4153"),
        ({"initial_replicas": "127.0.0.1:4154"}, "must be NAME=<addr>:<port>, each name once"),
        ({"initial_replicas": "a=1:1,a=1:2"}, "must be NAME=<addr>:<port>, each name once"),
        (
            {"initial_replicas": "a=127.0.0.1:4153,b=127.0.0.1:4153"},
            "127.0.0.1:4153 is the address of a and of b",
        ),
        ({"initial_replicas": "a=127.0.0.1:4153", "copies": 2}, "--copies=2 is more than"),
        ({"initial_replicas": "a=127.0.0.1:4153", "min_in_sync": 2}, "--min-in-sync=2 is more"),
        ({"disk_full_policy": "drop-oldest"}, "replicas lose no message that is not finished"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        BrokerOptions(**(GIVEN | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"replica_address": "localhost:4153"},
        {"replica_address": "[::1]:4153"},
        {"replica_address": "10.0.0.1:4153", "replica_secret_file": "secret"},
        {
            "replica_address": "10.0.0.1:4153",
            "replica_tls_cert": "c.pem",
            "replica_tls_key": "k.pem",
            "replica_tls_ca_file": "ca.pem",
        },
        {"initial_replicas": "a=127.0.0.1:4153,b=10.0.0.2:4153", "copies": 2},
    ],
)
def test_right_options_are_taken(fields: dict[str, Any]) -> None:
    BrokerOptions(**(GIVEN | fields))


def test_a_broker_without_replicas_needs_none_of_them() -> None:
    assert BrokerOptions().replica_name == ""
