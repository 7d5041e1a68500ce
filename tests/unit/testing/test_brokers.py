"""The test kit: a broker in the event loop, one as a process, and the fixtures that users get."""

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from martlet.client import Consumer, Producer
from martlet.testing import Broker, BrokerProcess


async def test_a_broker_has_a_folder_of_its_own_that_goes_with_it() -> None:
    async with Broker() as broker:
        assert broker.data_path.is_dir()
        assert broker.tcp_address != broker.http_address
        assert broker.tcp_address.startswith("127.0.0.1:")
    assert not broker.data_path.exists()


async def test_a_broker_keeps_a_folder_that_it_was_given(tmp_path: Path) -> None:
    for publishes in (True, False):
        async with Broker(tmp_path / "data", max_msg_size=1000) as broker:
            assert broker.options.max_msg_size == 1000
            if publishes:
                await _publish(broker.tcp_address, b"kept")
            else:
                assert await _consume(broker.tcp_address) == b"kept"
    assert (tmp_path / "data").is_dir()


def _deleted_files_open() -> set[str]:
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The listing's own.
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {link for link in links if link.endswith("(deleted)")}


async def _publish(address: str, body: bytes) -> None:
    async with Producer(address) as producer:
        await producer.publish("t", body)


async def _consume(address: str) -> bytes:
    async with Consumer("t", "c", address) as consumer:
        message = await asyncio.wait_for(anext(consumer), 50)
        message.finish()
        return message.body


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_stopped_broker_keeps_no_file_open() -> None:
    before = _deleted_files_open()
    async with Broker() as broker:
        await _publish(broker.tcp_address, b"x")
        await _publish(broker.tcp_address, b"y")
        await _consume(broker.tcp_address)
    # One that an earlier test left may be closed meanwhile.
    assert not _deleted_files_open() - before


def test_a_broker_that_does_not_run_has_no_address() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        _ = Broker().tcp_address
    with pytest.raises(TypeError, match="no_such_option"):
        Broker(no_such_option=1)


def test_a_process_is_killed_and_restarted_on_the_same_ports_and_folder() -> None:
    with BrokerProcess() as broker:
        address, first = broker.tcp_address, broker.process_id
        asyncio.run(_publish(address, b"kept"))
        broker.kill()
        with pytest.raises(RuntimeError, match="not running"):
            broker.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        broker.restart()
        assert broker.tcp_address == address
        assert broker.process_id != first
        with pytest.raises(RuntimeError, match="running already"):
            broker.start()
        assert asyncio.run(_consume(address)) == b"kept"
        assert broker.log().count("martlet v") == 2
        assert broker.stop() == 0
    assert not broker.data_path.exists()


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, "--max-msg-size=none")
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 2.*max-msg-size"), broker:
        pass
    with BrokerProcess(tmp_path):
        second = BrokerProcess(tmp_path)
        with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*in use by another"), second:
            pass


USERS_TEST = """
import pytest
from martlet.client import Consumer, Producer

{mark}
async def test_embedded(martlet_broker):
    async with Producer(martlet_broker.tcp_address) as producer:
        await producer.publish("t", b"one")

{mark}
async def test_embedded_is_empty(martlet_broker):
    assert not martlet_broker.server.broker.topics

def test_process(martlet_broker_process):
    martlet_broker_process.kill()
    martlet_broker_process.restart()
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", ["-o", "asyncio_mode=auto"]),
        ("@pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
    ],
    ids=["auto", "strict"],
)
def test_a_user_has_the_fixtures(mark: str, options: list[str], tmp_path: Path) -> None:
    test = tmp_path / "test_users.py"
    test.write_text(USERS_TEST.format(mark=mark))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(test)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
