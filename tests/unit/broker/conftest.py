"""A broker's core for each test."""

from __future__ import annotations

import pytest
from tests.unit.broker.core import Core


@pytest.fixture
def core() -> Core:
    return Core()
