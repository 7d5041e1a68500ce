"""A page in front of two brokers; a module with other brokers has fixtures of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import bcrypt
import pytest
from tests.admin_page import Page, broker_of, page_of, two_brokers

from martlet.testing import Broker


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    async with two_brokers() as both:
        yield both


@pytest.fixture
async def page(brokers: list[Broker]) -> AsyncIterator[Page]:
    async with page_of(brokers) as one_page:
        yield one_page


@pytest.fixture
async def one_broker() -> AsyncIterator[Broker]:
    """With three messages."""
    async with broker_of(3) as broker:
        yield broker


@pytest.fixture
async def page_of_one(one_broker: Broker) -> AsyncIterator[Page]:
    async with page_of([one_broker]) as page:
        yield page


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    (tmp_path / "token").write_text("0123456789abcdef\n")
    return str(tmp_path / "token")


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    """A file with the users ann and bob."""
    file = tmp_path / "htpasswd"
    hashed = [
        f"{name}:{bcrypt.hashpw(word.encode()[:72], bcrypt.gensalt(4)).decode()}"
        for name, word in (("ann", "secret"), ("bob", "x" * 100))
    ]
    # htpasswd writes 2y.
    file.write_text("# users\n\n" + "\n".join(hashed).replace("$2b$", "$2y$") + "\n")
    return str(file)
