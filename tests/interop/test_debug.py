"""The paths below /debug, as whoever looks into an nsqd would use them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.unit.server.pprof_reader import read_profile

from martlet.client import Producer
from martlet.testing import BrokerProcess

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(None, "--log-level=error") as broker:
        yield broker


@pytest.fixture
async def http(broker: BrokerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://{broker.http_address}") as session:
        yield session


async def get(http: aiohttp.ClientSession, path: str) -> bytes:
    async with http.get(path) as response:
        assert response.status == 200
        assert "X-NSQ-Content-Type" not in response.headers
        return await response.read()


async def publish_for_ever(broker: BrokerProcess) -> None:
    async with Producer(broker.tcp_address) as producer:
        while True:
            await asyncio.gather(*(producer.publish("debugged", b"x" * 50) for _ in range(200)))


@pytest.fixture
async def load(broker: BrokerProcess) -> AsyncIterator[None]:
    """Somebody publishes all the time."""
    task = asyncio.create_task(publish_for_ever(broker))
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.timeout(300)  # where Go has yet to build pprof
@pytest.mark.usefixtures("load")
async def test_a_profile_tells_where_time_goes(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(get(http, "/debug/pprof/profile?seconds=1"))
        await asyncio.sleep(0.3)
        async with http.get("/debug/pprof/profile?seconds=1") as second:
            assert second.status == 500
            assert "already in use" in await second.text()
    told = first.result()
    functions: set[str] = set()
    at_work = ("Connection.", "Broker.", "Server.", "CommitLog.", "DiskSegment.")
    for _ in range(20):  # a busy machine may leave the load no time in one second
        read = read_profile(told)
        functions = {place.partition(" ")[0] for stack in read.samples for place in stack}
        if any(name.startswith(at_work) for name in functions):
            break
        told = await get(http, "/debug/pprof/profile?seconds=1")
    else:
        pytest.fail(f"the broker was never seen at work, but {functions}")
    assert 0.9e9 < read.numbers[10] < 20e9
    assert sum(values[1] for values in read.samples.values()) > 0
    if shutil.which("go"):
        path = tmp_path / "profile"
        path.write_bytes(told)
        top = subprocess.run(
            ["go", "tool", "pprof", "-top", "-cum", str(path)],
            capture_output=True,
            text=True,
            check=True,
            # Go builds pprof when it is first asked for: its cache stays, all else is written here.
            env={**os.environ, "PPROF_TMPDIR": str(tmp_path)},
        ).stdout
        assert "Type: cpu" in top
        # Which of them are left out as too small is for pprof to say.
        assert any(name in top for name in functions), top


async def test_a_profile_is_refused_that_would_take_too_long(http: aiohttp.ClientSession) -> None:
    async with http.get("/debug/pprof/profile?seconds=301") as response:
        assert response.status == 400
        assert await response.text() == "seconds is 301; at most 300\n"


async def test_a_stop_does_not_wait_for_a_profile() -> None:
    with BrokerProcess(None, "--log-level=error") as broker:
        async with aiohttp.ClientSession(f"http://{broker.http_address}") as http:
            asked = asyncio.create_task(get(http, "/debug/pprof/profile?seconds=60"))
            while b"Sampler._run" not in await get(http, "/debug/pprof/threadcreate?debug=1"):
                pass
            assert await asyncio.to_thread(broker.stop) == 0
            with pytest.raises(aiohttp.ClientError):
                await asked


async def test_tasks_and_threads_tell_where_they_are(http: aiohttp.ClientSession) -> None:
    text = (await get(http, "/debug/pprof/goroutine?debug=2")).decode()
    assert "thread MainThread (" in text
    assert "DebugApi.goroutine" in text
    assert "Server._every.<locals>.repeat" in text
    head = (await get(http, "/debug/pprof/goroutine?debug=1")).split(b"\n")[0]
    total = int(head.removeprefix(b"goroutine profile: total "))
    read = read_profile(await get(http, "/debug/pprof/goroutine"))
    assert read.types == [("goroutine", "count")]
    assert sum(values[0] for values in read.samples.values()) >= total - 3


async def test_the_heap_is_told_by_kinds_of_objects(http: aiohttp.ClientSession) -> None:
    read = read_profile(await get(http, "/debug/pprof/heap"))
    assert read.types == [("inuse_objects", "count"), ("inuse_space", "bytes")]
    ((count, size),) = [
        values for stack, values in read.samples.items() if stack[0].startswith("builtins.dict ")
    ]
    assert size > count > 0
    text = (await get(http, "/debug/pprof/heap?debug=1")).decode()
    assert text.startswith("heap profile: total ")
    assert "# heap_in_use_bytes = " in text


async def test_what_there_is_not_is_told(http: aiohttp.ClientSession) -> None:
    assert read_profile(await get(http, "/debug/pprof/block")).samples == {}
    assert b"Python does not tell" in await get(http, "/debug/pprof/block?debug=1")
    assert await get(http, "/debug/pprof/symbol") == b"num_symbols: 0\n"
    async with http.put("/debug/setblockrate?rate=5") as response:
        assert response.status == 200
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


async def test_the_index_leads_to_what_there_is(
    http: aiohttp.ClientSession, broker: BrokerProcess
) -> None:
    async with http.get("/debug/pprof", allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (301, "/debug/pprof/")
    page = await get(http, "/debug/pprof/")
    for name in ("goroutine?debug=1", "heap?debug=1", "threadcreate?debug=1", "profile"):
        assert f"href='{name}'".encode() in page
    arguments = (await get(http, "/debug/pprof/cmdline")).split(b"\0")
    assert f"--http-address={broker.http_address}".encode() in arguments
