"""The page in front of one broker; a module with more of them has fixtures of its own."""

from __future__ import annotations

import pytest

from martlet.testing import Broker


@pytest.fixture
def brokers(broker: Broker) -> list[Broker]:
    return [broker]
