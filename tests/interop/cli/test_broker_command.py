"""The broker's command as an operator uses it: as a process, by its log lines and exit codes."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LOOPBACK = ("-tcp-address=127.0.0.1:0", "-http-address", "127.0.0.1:0")
LINE = re.compile(
    r"\[\w+\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} (DEBUG|INFO|WARNING|ERROR|FATAL): "
)
START_S = 60
"""Far more than it takes: the machine may be busy with other tests."""


class Command:
    """A running ``martlet broker`` and what it has logged."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "martlet", "broker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for(self, text: str) -> str:
        """The line that has the text in it, as soon as it is logged."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"it ended without {text!r}:\n{''.join(self.lines)}")

    def end(self) -> int:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=START_S)
        assert out == ""
        self.lines += err.splitlines(keepends=True)
        return self.process.returncode


Start = Callable[..., Command]


@pytest.fixture
def start() -> Iterator[Start]:
    commands: list[Command] = []

    def start(*arguments: str) -> Command:
        commands.append(Command(*arguments))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()
            command.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_listens_logs_and_stops(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    command = start(*LOOPBACK, f"-data-path={tmp_path}", "-log-prefix=[me] ")
    tcp = command.wait_for("INFO: TCP: listening on 127.0.0.1:")
    http = command.wait_for("INFO: HTTP: listening on 127.0.0.1:")
    for line in (tcp, http):
        address = line.strip().rpartition(" ")[2]
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
    command.process.send_signal(number)
    assert command.end() == 0
    assert command.lines[-1].endswith("INFO: NSQ: bye\n")
    assert all(LINE.match(line) and line.startswith("[me] ") for line in command.lines)


def test_listens_on_unix_sockets(start: Start, tmp_path: Path) -> None:
    tcp, http = tmp_path / "tcp.sock", tmp_path / "http.sock"
    command = start(f"-tcp-address={tcp}", f"-http-address={http}", f"-data-path={tmp_path}")
    command.wait_for(f"TCP: listening on {tcp}")
    command.wait_for(f"HTTP: listening on {http}")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(http))
        client.sendall(b"GET /info HTTP/1.0\r\n\r\n")
        answer = client.makefile().read()
    assert '"http_port":-1,"tcp_port":-1,' in answer
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tcp))
        client.sendall(b"  V2PUB t\n\x00\x00\x00\x01x")
        assert client.recv(10) == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    command.process.terminate()
    assert command.end() == 0
    assert not tcp.exists()
    assert not http.exists()


def test_a_second_broker_on_the_folder_is_refused(start: Start, tmp_path: Path) -> None:
    first = start(*LOOPBACK, f"-data-path={tmp_path}")
    first.wait_for("HTTP: listening")
    second = start(*LOOPBACK, f"-data-path={tmp_path}")
    assert second.end() == 1
    assert "FATAL: " in second.lines[-1]
    assert f"in use by another broker (process {first.process.pid})" in second.lines[-1]
    assert str(tmp_path) in second.lines[-1]
    assert first.process.poll() is None


def test_the_error_of_a_port_in_use_names_the_flag(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = start(
            "-tcp-address=127.0.0.1:0", f"-http-address={address}", "-data-path", str(tmp_path)
        )
        assert command.end() == 1
    assert f"FATAL: listen ({address}) failed" in command.lines[-1]
    assert "--http-address" in command.lines[-1]


@pytest.mark.parametrize("address", ["foo", "foo:x", "foo:0"])
def test_the_address_of_a_lookup_daemon_needs_host_and_port(
    start: Start, tmp_path: Path, address: str
) -> None:
    command = start(*LOOPBACK, f"-data-path={tmp_path}", f"-lookupd-tcp-address={address}")
    assert command.end() == 2
    assert f"FATAL: --lookupd-tcp-address={address} is not host:port, such" in command.lines[-1]


def test_flags_without_effect_and_unknown_keys_are_warned_of(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "nsqd.cfg"
    config.write_text(
        f'tcp_address = "127.0.0.1:0"\nhttp_address = "127.0.0.1:0"\ndata_path = "{tmp_path}"\n'
        'queue_scan_worker_pool_max = 2\nlog_level = "error"\nmax_rdy_counts = 3\n',
        encoding="utf-8",
    )
    command = start("-config", str(config), "--log-level=warn")
    warnings = [command.wait_for("WARNING"), command.wait_for("WARNING")]
    assert (
        "there is no option max_rdy_counts, it is ignored; did you mean max_rdy_count?"
        in (warnings[0])
    )
    assert "--queue-scan-worker-pool-max=2 has no effect: nothing is scanned" in warnings[1]


def test_imports_nothing_heavy_before_it_listens() -> None:
    code = (
        "import sys, martlet.cli.main, martlet.cli.servers.broker, martlet.server.build, uvloop\n"
        "heavy = {'aiohttp', 'ssl', 'http.client', 'pyarrow', 'pandas', 'pyspark', 'rich'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() in ([], ["ssl"])  # uvloop and asyncio need ssl


UNUSED = (
    "OpenSSL",
    "difflib",
    "jinja2",
    "martlet.console",
    "martlet.client",
    "martlet.lookup",
    "martlet.properties.filter.conditions",
    "martlet.replica.replica",
    "martlet.server.metadata",
    "martlet.server.nsq.traced",
    "martlet.server.replication",
    "martlet.supervisor",
    "multiprocessing",
    "numpy.ma",
    "rich",
    "sqlite3",
    "tomllib",
)
"""Modules and packages of features that a broker has only with flags, files or policies."""


def test_imports_nothing_of_features_that_it_does_not_have(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imports are nearly all of the time that a start takes."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    monkeypatch.setenv("MARTLET_CONFIG", "/dev/null")
    command = start(*LOOPBACK, f"-data-path={tmp_path}")
    command.wait_for("INFO: HTTP: listening on")
    names = [line.rpartition("|")[2].strip() for line in command.lines if "import time:" in line]
    assert {"martlet.server.build", "martlet.server.http.server"} < set(names)
    assert [
        name for name in names if f"{name}.".startswith(tuple(f"{prefix}." for prefix in UNUSED))
    ] == []
