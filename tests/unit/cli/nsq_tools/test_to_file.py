"""to-file on an event loop, with a broker and a lookup daemon that follow a script."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.polling import until
from tests.unit.client.scripted_broker import ScriptedBroker

from martlet.cli.nsq_tools.to_file import FileOptions, ToFile


def writers(folder: Path, broker: ScriptedBroker, **changes: Any) -> ToFile:
    flags: dict[str, Any] = {"topics": ("t",), "nsqd_tcp_addresses": (broker.address,)}
    return ToFile(FileOptions(output_dir=str(folder), **(flags | changes)))


async def test_a_stop_while_a_lookup_daemon_is_asked_ends_it(tmp_path: Path) -> None:
    """A topic found then is not begun: nothing would stop it any more."""
    requested, go = asyncio.Event(), asyncio.Event()

    async def lookup(_request: web.BaseRequest) -> web.Response:
        requested.set()
        await go.wait()
        return web.json_response({"topics": ["late"], "producers": []})

    server = await asyncio.get_running_loop().create_server(web.Server(lookup), "127.0.0.1", 0)
    async with server, ScriptedBroker() as broker, asyncio.timeout(50):
        daemon = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        some = writers(
            tmp_path,
            broker,
            topics=(),
            topic_pattern=".*",
            nsqd_tcp_addresses=(),
            lookupd_http_addresses=(daemon,),
        )
        running = asyncio.create_task(some.run())
        await requested.wait()
        some.stop()
        go.set()
        await running


async def test_a_file_that_cannot_be_begun_when_it_is_time_ends_it(tmp_path: Path) -> None:
    """Else files would not be exchanged any more while no message comes."""
    folder = tmp_path / "files"
    async with ScriptedBroker() as broker, asyncio.timeout(50):
        some = writers(folder, broker, rotate_interval_ns=1, sync_interval_ns=20_000_000)
        running = asyncio.create_task(some.run())
        await until(lambda: folder.is_dir() and len(list(folder.iterdir())) > 1)
        folder.rename(tmp_path / "moved")
        folder.write_bytes(b"no folder")
        with pytest.raises(ExceptionGroup) as raised:
            await running
        assert raised.group_contains(FileExistsError)


async def test_messages_do_not_wait_for_the_sync_interval(tmp_path: Path) -> None:
    """The help said that they are flushed and finished once an interval."""
    hour_ns = 3600 * 10**9
    async with ScriptedBroker() as broker, asyncio.timeout(50):
        some = writers(tmp_path, broker, sync_interval_ns=hour_ns, rotate_interval_ns=hour_ns)
        running = asyncio.create_task(some.run())
        await until(lambda: bool(broker.named("RDY")))
        broker.deliver(1)
        await until(lambda: bool(broker.named("FIN")))
        (file,) = tmp_path.iterdir()
        assert file.read_bytes()
        some.stop()
        await running
    help = FileOptions.flags()["sync-interval"].help
    assert "without waiting for an interval" in help


async def test_a_file_is_not_closed_while_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another topic's writer fails, this one is cancelled at whatever it does."""
    flushing, go = threading.Event(), threading.Event()
    done: list[str] = []
    fsync, close = os.fsync, os.close

    def slow(file: int) -> None:
        flushing.set()
        assert go.wait(10)
        fsync(file)
        done.append("flushed")

    def closing(file: int) -> None:
        if flushing.is_set():
            done.append("closed")
        close(file)

    async with ScriptedBroker() as broker, asyncio.timeout(50):
        running = asyncio.create_task(writers(tmp_path, broker, gzip=True).run())
        await until(lambda: bool(broker.named("RDY")))
        monkeypatch.setattr("martlet.cli.nsq_tools.output_file.os.fsync", slow)
        monkeypatch.setattr("martlet.cli.nsq_tools.output_file.os.close", closing)
        broker.deliver(1)
        await until(flushing.is_set)
        running.cancel()
        await asyncio.sleep(0.05)
        assert done == []
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert done[:1] == ["flushed"]
    assert "closed" in done
