"""Failures in a row are logged once, then counted, and so is their end."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Iterator

import pytest

from martlet.addresses import Address
from martlet.client import ConnectFailed, Producer
from martlet.client.transport.backoff import Backoff
from martlet.client.transport.dialer import Dialer
from martlet.client.transport.discovery import Discovery
from martlet.client.transport.identity import Identity
from martlet.unreachable import MAX_REASONS, Outage, is_tcp_port, loss, reason

QUICK = Backoff(first_s=0.001, max_s=0.001)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        yield closed.getsockname()[1]


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "martlet.client")


def test_a_failure_is_logged_once_and_then_counted_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    outage = Outage("cannot connect to A", "connected to A", lambda: now_s)
    assert not outage.over()
    while now_s <= 75:
        outage.failed("refused")
        now_s += 1
    assert outage.over()
    assert not outage.over()
    assert caplog.messages == [
        "cannot connect to A: refused (trying again)",
        "cannot connect to A for 10 s, in 11 attempts: refused (trying again; next line in 20 s)",
        "cannot connect to A for 30 s, in 31 attempts: refused (trying again; next line in 40 s)",
        "cannot connect to A for 70 s, in 71 attempts: refused (trying again; next line in 80 s)",
        "connected to A after 76.0 s and 76 failed attempts",
    ]
    outage.failed("refused")
    assert caplog.messages[-1] == "cannot connect to A: refused (trying again)"


def test_another_reason_is_logged_at_once_up_to_a_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = Outage("it fails", "it works", lambda: 0.0)
    for round_number in range(2):
        for number in range(MAX_REASONS + 3):
            outage.failed(f"reason {number}")
        assert len(caplog.messages) == MAX_REASONS, round_number
    assert caplog.messages[1] == "it fails: reason 1 (trying again)"


async def test_a_closed_port_is_one_warning(
    caplog: pytest.LogCaptureFixture, closed_port: int
) -> None:
    address = Address("127.0.0.1", closed_port)
    dialer = Dialer([address], Identity(), backoff=QUICK, connect_timeout_s=5)
    failures = 0
    enough = asyncio.Event()

    def failed() -> None:
        nonlocal failures
        failures += 1
        if failures == 14:
            enough.set()

    dialer.on_failure = failed
    dialing = asyncio.create_task(dialer.dial())
    await enough.wait()
    dialing.cancel()
    await asyncio.wait([dialing])
    assert caplog.messages == [
        f"cannot connect to {address}: connection refused; is a broker running there?"
        " (trying again)"
    ]


async def test_a_producer_that_finds_no_broker_says_so_in_one_traceback(closed_port: int) -> None:
    with pytest.raises(ConnectFailed) as caught:
        async with Producer(f"127.0.0.1:{closed_port}", timeout_s=0.05, backoff=QUICK):
            pass
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("Traceback") == 1
    assert text.rstrip().endswith(
        f"no broker within 0.05 s: 127.0.0.1:{closed_port}: connection refused; is a broker"
        " running there?"
    )


async def test_a_lookup_daemon_that_is_down_is_logged_once(
    caplog: pytest.LogCaptureFixture, closed_port: int
) -> None:
    looks = 0
    enough = asyncio.Event()

    def on_found(_addresses: list[Address], _is_all: bool) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            enough.set()
        discovery.poll_now()

    discovery = Discovery("t", [f"127.0.0.1:{closed_port}"], 60.0, on_found)
    watching = asyncio.create_task(discovery.watch())
    await enough.wait()
    watching.cancel()
    await asyncio.wait([watching])
    assert caplog.messages == [
        f"the lookup daemon at http://127.0.0.1:{closed_port} does not answer: connection refused;"
        " is a lookup daemon running there? (trying again)"
    ]


def test_losses_are_words() -> None:
    assert loss(None) == "the connection was closed"
    assert loss(ConnectionResetError("the connection was closed")) == "the connection was closed"
    assert loss(ConnectionResetError(104, "Connection reset by peer")) == "connection reset by peer"
    assert loss(ValueError()) == "ValueError"


def test_reasons_are_words() -> None:
    assert reason(ConnectionRefusedError(111, "Connect call failed ('::1', 1)")) == (
        "connection refused; is a broker running there?"
    )
    both = "Multiple exceptions: [Errno 111] Connect call failed, [Errno 111] Connect call failed"
    assert reason(OSError(both)) == "connection refused; is a broker running there?"
    assert reason(OSError(113, "x")) == "no route to host"
    assert reason(OSError("odd")) == "odd"
    missing = socket.gaierror(-2, "Name or service not known")
    assert reason(missing) == "name or service not known"
    assert not is_tcp_port(ValueError("odd"))
    assert is_tcp_port(ValueError("b'\\x12E_BAD_PROTOCOL'"))
