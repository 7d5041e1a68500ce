"""Fixtures for pytest: a broker for each test that asks for one.

pytest finds this module by itself where the package is installed.  ``martlet_broker`` is an async
fixture, so it needs pytest-asyncio, or anyio with a test that is marked for it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from martlet.testing.broker import Broker
from martlet.testing.broker_process import START_TIMEOUT_S, BrokerProcess

START_TIMEOUT = "martlet_start_timeout_s"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting of ``martlet_broker_process``."""
    text = "seconds that a broker of martlet_broker_process may take until it listens"
    parser.addini(START_TIMEOUT, text, default=str(START_TIMEOUT_S))


def async_fixture(function: Callable[[], AsyncIterator[Broker]]) -> object:
    """The fixture decorator of whichever plugin runs coroutines here."""
    try:
        import pytest_asyncio
    except ImportError:  # anyio's plugin takes what pytest's own decorator marks.
        return pytest.fixture(function)
    return pytest_asyncio.fixture(function)


@async_fixture
async def martlet_broker() -> AsyncIterator[Broker]:
    """A broker inside the test's event loop, empty, on free ports of the loopback interface."""
    async with Broker() as broker:
        yield broker


@pytest.fixture
def martlet_broker_process(pytestconfig: pytest.Config) -> Iterator[BrokerProcess]:
    """A broker as a process, empty, on free ports, with ``kill()`` and ``restart()``.

    Each start may take ``martlet_start_timeout_s`` of pytest's configuration.
    """
    text = pytestconfig.getini(START_TIMEOUT)
    try:
        start_timeout_s = float(text)
    except ValueError:
        raise pytest.UsageError(f"{START_TIMEOUT}={text}: it is a number of seconds") from None
    with BrokerProcess(start_timeout_s=start_timeout_s) as broker:
        yield broker
        # pytest shows this where the test has failed.
        print(broker.log(), file=sys.stderr)
