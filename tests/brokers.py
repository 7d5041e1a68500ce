"""Fixtures of brokers with settings of their own: ``broker = here(max_msg_size=5000)`` in a module.

`tests/conftest.py` has ``broker`` for every test, a broker without any.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest

from martlet.testing import Broker, BrokerProcess


def here(**settings: Any) -> object:
    """Return a fixture: a broker in the test's event loop."""

    @pytest.fixture
    async def broker() -> AsyncIterator[Broker]:
        async with Broker(**settings) as broker:
            yield broker

    return broker


def process(*flags: str, scope: Literal["function", "module", "session"] = "module") -> object:
    """Return a fixture: a broker as a process, which the tests of a module share."""

    @pytest.fixture(scope=scope)
    def broker() -> Iterator[BrokerProcess]:
        with BrokerProcess(None, *flags) as broker:
            yield broker

    return broker
