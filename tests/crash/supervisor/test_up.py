"""`martlet up` as an operator uses it: kill -9 of its parts and of itself, Ctrl-C, taken ports."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from martlet.replica.frames import CLIENT_IS_OPERATOR, Frame, FrameKind
from martlet.server.replication.trust import MAGIC
from martlet.testing.ports import free_port

pytestmark = pytest.mark.crash

ANYWHERE = [
    f"--{name}=127.0.0.1:0"
    for name in (
        *("tcp-address", "http-address", "https-address"),
        *("lookup-tcp-address", "lookup-http-address", "admin-http-address"),
    )
]
WAIT_S = 60
"""Far more than anything takes: the machine may be busy with other tests."""


class Up:
    """A running ``martlet up`` and what it has written."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / "up.log"
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "martlet", "up", *ANYWHERE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def until(self, text: str, times: int = 1) -> None:
        """Wait until that has been written so often."""
        deadline_s = time.monotonic() + WAIT_S
        while self.log.count(text) < times:
            assert time.monotonic() < deadline_s, f"no {text!r} in:\n{self.log}"
            assert self.process.poll() is None, f"it ended without {text!r}:\n{self.log}"
            time.sleep(0.02)

    def server(self, name: str) -> psutil.Process:
        """The process that a server is now."""
        ids = re.findall(rf"INFO: {name} is process (\d+)", self.log)
        return psutil.Process(int(ids[-1]))

    def address(self, name: str) -> str:
        """Where a server answers HTTP."""
        (row,) = re.findall(rf"^{name} +(?:127\S+)? +(127\S+)", self.log, re.M)
        return str(row)

    def ask(self, name: str, path: str, body: bytes | None = None) -> Any:
        url = f"http://{self.address(name)}{path}"
        with urllib.request.urlopen(url, body, timeout=10) as answer:
            return json.load(answer) if body is None else answer.read()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield start
    for child in started:
        if child.process.poll() is None:
            child.process.kill()  # and with it its children
        child.process.wait()


def test_one_command_one_ctrl_c(
    up: Callable[..., Up], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    data = tmp_path / "data"
    (data / "broker-7" / "log").mkdir(parents=True)
    with manager:
        up_now = up("--workers=2", f"--data-path={data}", "--", "--max-msg-size=1000")
        up_now.until("ready; Ctrl-C stops all")
        manager.settimeout(WAIT_S)
        assert manager.recv(100) == b"READY=1"
        assert f"{data / 'broker-7'} holds messages of a broker that is not started" in up_now.log

        for name in ("broker-0", "broker-1"):
            assert up_now.ask(name, f"/pub?topic={name}", b"kept") == b"OK"
        with pytest.raises(urllib.error.HTTPError, match="413"):
            up_now.ask("broker-1", "/pub?topic=t", b"x" * 1001)
        up_now.until("REGISTER category:topic key:broker-0")
        killed = up_now.server("broker-0")
        killed.kill()
        up_now.until("broker-0 is ready again")
        assert f"broker-0 (process {killed.pid}) ended by SIGKILL; it is started aga" in up_now.log
        (topic,) = up_now.ask("broker-0", "/stats?format=json")["topics"]
        assert (topic["topic_name"], topic["depth"]) == ("broker-0", 1)
        up_now.until("REGISTER category:topic key:broker-0", 2)
        assert len(up_now.ask("lookup", "/nodes")["producers"]) == 2

        url = f"http://{up_now.address('admin')}/"
        assert f"the admin page is at {url}" in up_now.log
        deadline_s = time.monotonic() + WAIT_S
        while not all(f'id="topic-broker-{at}"' in page(url) for at in range(2)):
            assert time.monotonic() < deadline_s, page(url)
            time.sleep(0.1)

        names = ("broker-0", "broker-1", "lookup", "admin")
        servers = [up_now.server(name) for name in names]
        up_now.process.send_signal(signal.SIGINT)
        assert up_now.process.wait(WAIT_S) == 0
        assert manager.recv(100) == b"STOPPING=1"
    lines = up_now.log.splitlines()
    ends = [line.split()[0] for line in lines if line.endswith("bye")]
    assert ends[0] == "admin"
    assert sorted(ends[1:3]) == ["broker-0", "broker-1"]
    assert ends[3:] == ["lookup", "up"]
    assert all(map(has_ended, servers))
    assert all(" | [martlet] 20" in line for line in lines if "INFO" in line)


def page(url: str) -> str:
    with urllib.request.urlopen(f"{url}topics", timeout=10) as answer:
        return str(answer.read().decode())


def test_replicas_take_over_from_one_that_is_killed(up: Callable[..., Up], tmp_path: Path) -> None:
    data = tmp_path / "data"
    up_now = up("--replicas=3", "--replica-address=127.0.0.1:0", f"--data-path={data}")
    up_now.until("ready; Ctrl-C stops all")
    metadata = f"--metadata=sqlite:{data / 'replicas.db'}"
    assert f"martlet replicas show {metadata}" in up_now.log
    for name in "abc":  # Whoever is asked, it is the primary that answers.
        assert up_now.ask(f"broker-0.{name}", "/pub?topic=t", name.encode()) == b"OK"
    shown = replicas("show", metadata, "--json")
    assert (shown["primary"], shown["epoch"]) == ("a", 1)
    assert replicas("hand-over", "b", metadata, "--json")["primary"] == "b"
    assert up_now.ask("broker-0.a", "/pub?topic=t", b"d") == b"OK"
    killed = up_now.server("broker-0.b")
    killed.kill()
    killed.wait(WAIT_S)  # Before, its system still takes connections.
    assert up_now.ask("broker-0.a", "/pub?topic=t", b"e") == b"OK"
    up_now.until("broker-0.b is ready again")
    (topic,) = up_now.ask(
        f"broker-0.{replicas('show', metadata, '--json')['primary']}", "/stats?format=json"
    )["topics"]
    assert topic["depth"] == 5
    standby = up_now.ask("broker-0.b", "/stats?format=json")
    assert (standby["topics"], standby["replication"]["role"]) == ([], "standby")
    (queue,) = up_now.ask("broker-0.b", "/log/topics")["topics"][0]["queues"]
    assert queue["end_offset"] == 5
    up_now.process.send_signal(signal.SIGINT)
    assert up_now.process.wait(WAIT_S) == 0

    refused = up(f"--data-path={data}")
    assert refused.process.wait(WAIT_S) == 2
    assert "broker-0 is a replica of a broker: give --replicas=3" in refused.log


def replicas(*arguments: str) -> Any:
    command = [sys.executable, "-m", "martlet", "replicas", *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=WAIT_S)
    return json.loads(done.stdout)


def has_ended(process: psutil.Process) -> bool:
    """Also where no process waits for orphans."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def test_its_servers_end_when_it_is_killed(up: Callable[..., Up], tmp_path: Path) -> None:
    up_now = up(f"--data-path={tmp_path}", "--", "--checkpoint-interval=1h")
    up_now.until("ready; Ctrl-C stops all")
    assert up_now.ask("broker-0", "/pub?topic=t", b"kept") == b"OK"
    servers = [up_now.server(name) for name in ("broker-0", "lookup")]
    up_now.process.kill()
    deadline_s = time.monotonic() + WAIT_S
    while not all(map(has_ended, servers)):
        assert time.monotonic() < deadline_s, "they go on without it"
        time.sleep(0.02)
    # Only a clean stop writes one so early.
    assert (tmp_path / "broker-0" / "checkpoint").exists()


@pytest.mark.parametrize("name", ["lookup", "admin"])
def test_a_taken_port_is_named(up: Callable[..., Up], tmp_path: Path, name: str) -> None:
    """The flag is that of `martlet up`, and not that of the server."""
    flag = f"--{name}-http-address"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        up_now = up(f"--data-path={tmp_path}", f"{flag}={address}")
        # All other servers start first, and are stopped again.
        assert up_now.process.wait(3 * WAIT_S) == 1
    last = next(line for line in reversed(up_now.log.splitlines()) if "FATAL" in line)
    assert f"FATAL: {name} cannot start: it (process " in last
    assert f"listen ({address}" in last
    assert f"another process listens there: stop it, or give another port with {flag}" in last
    assert " --http-address" not in last


def test_a_data_path_that_is_no_folder_is_named(up: Callable[..., Up], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    up_now = up(f"--data-path={file}")
    assert up_now.process.wait(WAIT_S) == 1
    assert f"the data folder {file / 'broker-0'} cannot be used" in up_now.log
    assert "give another --data-path" in up_now.log


def test_its_brokers_go_on_while_it_is_stopped(up: Callable[..., Up], tmp_path: Path) -> None:
    up_now = up("--workers=1", "--lookup=false", f"--data-path={tmp_path / 'data'}")
    up_now.until("ready; Ctrl-C stops all")
    url = f"http://{up_now.address('broker-0')}/ping?"
    up_now.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(300):  # each is a line of the log: a pipe holds a megabyte at most
            with urllib.request.urlopen(url + "x" * 6000, timeout=10) as answer:
                assert answer.read() == b"OK"
    finally:
        up_now.process.send_signal(signal.SIGCONT)
    up_now.until("/ping?xxx", 10)
    urllib.request.urlopen(url, timeout=10).close()
    up_now.until("lines of the log dropped here")


def test_replicas_know_each_other_by_a_secret_and_all_files_are_private(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    folder, tokens = tmp_path / "data", tmp_path / "tokens"
    tokens.write_text("0123456789abcdef")
    port = free_port()
    up_now = up(
        *("--replicas=2", f"--data-path={folder}", f"--replica-address=127.0.0.1:{port}"),
        f"--operator-token-file={tokens}",
    )
    up_now.until("ready; Ctrl-C stops all")
    for path in (folder, *folder.rglob("*")):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path
    with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
        splice = Frame(FrameKind.SPLICE, 1, CLIENT_IS_OPERATOR, body=b"127.0.0.1:1")
        stranger.sendall(splice.pack_header() + splice.body)
        stranger.sendall(b"GET /log/topics HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert answer.startswith(MAGIC)
    assert b"HTTP" not in answer
