"""Periodic tasks of the server."""

import asyncio
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from martlet.client import Consumer
from martlet.server import clock
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
        assert [str(record.exc_info[1]) for record in failures if record.exc_info] == [
            "'unforeseen'"
        ]
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
