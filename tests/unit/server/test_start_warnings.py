"""Warnings of a broker at its start."""

from __future__ import annotations

import logging
import socket

import pytest

from martlet.options import BrokerOptions
from martlet.server.start_warnings import warn


async def warnings(caplog: pytest.LogCaptureFixture, options: BrokerOptions) -> list[str]:
    caplog.clear()
    await warn(options, logging.getLogger("start"))
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


async def test_a_flush_of_each_message_that_ok_does_not_wait_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (warning,) = await warnings(caplog, BrokerOptions(sync_every=1))
    assert "OK does not wait for that" in warning
    assert "--flush=sync" in warning
    assert await warnings(caplog, BrokerOptions(sync_every=1, flush="sync")) == []
    assert await warnings(caplog, BrokerOptions()) == []


async def test_a_full_disk_is_not_written_to_files_any_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for options in (
        BrokerOptions(disk_full_policy="dead-letter"),
        BrokerOptions(dead_letter_path="/somewhere"),
    ):
        (warning,) = await warnings(caplog, options)
        assert "publishing is refused, unless" in warning


async def test_a_broadcast_name_that_does_not_resolve(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (warning,) = await warnings(caplog, BrokerOptions(broadcast_address="no.such.host.invalid"))
    assert "'no.such.host.invalid'" in warning
    assert "does not resolve on this machine" in warning
    assert "--broadcast-address" in warning
    assert await warnings(caplog, BrokerOptions(broadcast_address="127.0.0.1")) == []
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.invalid")
    by_default = BrokerOptions(broadcast_address="no.such.host.invalid")
    assert await warnings(caplog, by_default) == [], "no lookup daemon tells it anybody"
    with_lookup = by_default.replace(lookupd_tcp_addresses=("127.0.0.1:1",))
    assert len(await warnings(caplog, with_lookup)) == 1


async def test_a_port_of_replicas_by_which_all_local_users_are_operators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = {
        "replica_name": "a",
        "replica_address": "127.0.0.1:4153",
        "metadata": "sqlite:replicas.db",
        "broadcast_address": "127.0.0.1",
    }
    token = {"operator_token_file": "tokens"}
    (warning,) = await warnings(caplog, BrokerOptions(**replica, **token))  # type: ignore[arg-type]
    assert "give all of them the same --replica-secret-file" in warning
    secret = BrokerOptions(**replica, **token, replica_secret_file="s")  # type: ignore[arg-type]
    assert await warnings(caplog, secret) == []
    assert await warnings(caplog, BrokerOptions(**replica)) == []  # type: ignore[arg-type]


async def test_a_name_that_lookup_daemons_refuse(caplog: pytest.LogCaptureFixture) -> None:
    options = BrokerOptions(broadcast_address="a/b", lookupd_tcp_addresses=("127.0.0.1:1",))
    assert "lookup daemons refuse this broker" in (await warnings(caplog, options))[0]
