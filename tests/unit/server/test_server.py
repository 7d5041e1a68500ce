"""Periodic tasks of the server."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from martlet.client import Consumer
from martlet.options import BrokerOptions
from martlet.server import clock
from martlet.server.server import warn
from martlet.testing import Broker


async def test_an_unforeseen_failure_of_a_task_is_logged_and_the_task_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal, and with it finished messages, would never be written again, in silence."""
    async with Broker(tmp_path, journal_interval_ns=10_000_000) as broker:
        core = broker.server.broker
        again = asyncio.Event()
        calls = 0

        def write_some_journal() -> Iterable[None]:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise KeyError("unforeseen")
            again.set()
            return ()

        with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
            patched.setattr(core, "write_some_journal", write_some_journal)
            await asyncio.wait_for(again.wait(), 50)
        failures = [record for record in caplog.records if record.exc_info]
        errors = [str(record.exc_info[1]) for record in failures if record.exc_info]
        assert errors == ["'unforeseen'"]
        assert "write_journal" in failures[0].getMessage()


async def test_messages_due_after_the_wall_clock_is_set_forward_come_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a machine wakes up: it would come as much later as the clock was behind."""
    async with Broker(journal_interval_ns=10_000_000) as broker:
        core, hour_ns = broker.server.broker, 3600 * 10**9
        core.topic("t").channel("c")
        core.delays.publish(core.topic("t"), [b"late"], core.clock() + hour_ns)
        later = SimpleNamespace(
            monotonic_ns=time.monotonic_ns, time_ns=lambda: time.time_ns() + 2 * hour_ns
        )
        async with Consumer("t", "c", broker.tcp_address) as consumer:
            monkeypatch.setattr(clock, "time", later)
            message = await asyncio.wait_for(anext(consumer), 50)
            message.finish()
        assert message.body == b"late"


async def warnings(caplog: pytest.LogCaptureFixture, options: BrokerOptions) -> list[str]:
    caplog.clear()
    await warn(options, logging.getLogger("start"))
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (BrokerOptions(), ()),
        (BrokerOptions(sync_every=1, flush="sync"), ()),
        (BrokerOptions(sync_every=1), ("OK does not wait for that", "--flush=sync")),
        (BrokerOptions(disk_full_policy="dead-letter"), ("publishing is refused, unless",)),
        (BrokerOptions(dead_letter_path="/somewhere"), ("publishing is refused, unless",)),
    ],
)
async def test_a_promise_of_the_log_that_options_do_not_give(
    caplog: pytest.LogCaptureFixture, options: BrokerOptions, texts: tuple[str, ...]
) -> None:
    logged = await warnings(caplog, options)
    assert len(logged) == bool(texts)
    assert all(text in logged[0] for text in texts)


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
    replica = BrokerOptions(
        replica_name="a",
        replica_address="127.0.0.1:4153",
        metadata="sqlite:replicas.db",
        broadcast_address="127.0.0.1",
    )
    assert await warnings(caplog, replica) == []
    with_token = replica.replace(operator_token_file="tokens")
    (warning,) = await warnings(caplog, with_token)
    assert "give all of them the same --replica-secret-file" in warning
    assert await warnings(caplog, with_token.replace(replica_secret_file="s")) == []


async def test_a_name_that_lookup_daemons_refuse(caplog: pytest.LogCaptureFixture) -> None:
    options = BrokerOptions(broadcast_address="a/b", lookupd_tcp_addresses=("127.0.0.1:1",))
    assert "lookup daemons refuse this broker" in (await warnings(caplog, options))[0]
