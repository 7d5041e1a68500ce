"""The paths below /debug, as an operator of nsqd would use them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from tests import brokers

from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


broker = brokers.process("--log-level=error")


@pytest.fixture
async def http(broker: BrokerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield session


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("below", ["", "/", "/profile?seconds=1", "/symbol", "/heap/x"])
async def test_profiles_are_left_to_py_spy(
    http: aiohttp.ClientSession, broker: BrokerProcess, method: str, below: str
) -> None:
    async with http.request(method, f"/debug/pprof{below}", allow_redirects=False) as response:
        assert response.status == 404
        message = (await response.json())["message"]
    assert message.startswith("NOT_FOUND: ")
    assert f"py-spy record --pid {broker.process_id}" in message


async def test_a_block_rate_has_no_effect(http: aiohttp.ClientSession) -> None:
    async with http.put("/debug/setblockrate?rate=5") as response:
        assert response.status == 200
        assert "X-NSQ-Content-Type" not in response.headers
        assert (await response.text()).startswith("no effect: ")
    async with http.put("/debug/setblockrate?rate=x") as response:
        assert response.status == 400
        assert await response.text() == "invalid block rate : 'x' is not a number"


async def test_memory_is_given_back(http: aiohttp.ClientSession) -> None:
    before = await collections(http)
    async with http.post("/debug/freememory") as response:
        assert (response.status, await response.text()) == (200, "")
    assert await collections(http) > before


async def collections(http: aiohttp.ClientSession) -> int:
    async with http.get("/stats?format=json") as response:
        runs: int = (await response.json())["memory"]["gc_total_runs"]
        return runs
