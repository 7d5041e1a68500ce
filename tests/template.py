"""Starts broker processes of the tests in a fraction of their time, by forking a template.

To import what a broker needs takes half a second of the processor, and the tests start hundreds.
So each test process has one template: a process that has imported all of it, and does nothing but
fork.  What it forks runs the command as it was given, with its own arguments, environment, folder,
standard streams and process id; only the imports are done already::

    test process  --  argv, folder, environment and descriptors  -->  template  -- fork -->  broker
                  <--            process id, exit status         --

`install` puts it under `martlet.testing.BrokerProcess`.  Tests of the command line itself start
real interpreters.  ``MARTLET_TEST_TEMPLATE=0`` has all processes start so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn, cast

from martlet.testing.broker_process import BrokerProcess

COMMAND = (sys.executable, "-m", "martlet")
_MAX_REQUEST_BYTES = 1 << 20
_MODULES = ("martlet.cli.servers.broker", "martlet.server.build", "martlet.server.http.routes")


class Forked:
    """A process that the template has forked: of `subprocess.Popen`, what tests use.

    Attributes:
        pid: its id.
        returncode: its exit code, negative for a signal; None while it runs or is not waited for.
    """

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        """Where the template writes how it has ended."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(COMMAND, timeout or 0)
            status = os.read(self._status, 8)
            assert status, "the template has ended"
            self.returncode = int(status)
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # It has ended since.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The template of this process, which begins when it is first needed."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Held for a request and its answer: tests start brokers in threads."""

    def start(self, command: Sequence[str], log: IO[bytes]) -> Forked:
        """Start a command of martlet's, which writes all that it says into a file."""
        request = json.dumps(
            {"argv": command[len(COMMAND) :], "cwd": os.getcwd(), "environ": dict(os.environ)}
        ).encode()
        read, write = os.pipe()
        with self._lock, open(os.devnull, "rb") as nothing:
            connection = self._connection()
            streams = [nothing.fileno(), log.fileno(), log.fileno(), write]
            socket.send_fds(connection, [request], streams)
            os.close(write)
            pid = int(connection.recv(32))
        return Forked(pid, read)

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for each in (self._socket, other):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MAX_REQUEST_BYTES)
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.template", str(other.fileno())],
                    pass_fds=[other.fileno()],
                    cwd=Path(__file__).parent.parent,
                )
        return self._socket

    def close(self) -> None:
        """End it; what it has forked goes on."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait()
            self._socket = None


def install() -> Callable[[], None]:
    """Have broker processes start so from now on. Returns what ends that."""
    if os.environ.get("MARTLET_TEST_TEMPLATE") == "0" or not hasattr(os, "pidfd_open"):
        return lambda: None
    template, spawn = Template(), BrokerProcess._spawn

    def forked(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        if tuple(command[: len(COMMAND)]) != COMMAND:
            return spawn(command, log)  # another server, such as nsqd
        return cast("subprocess.Popen[bytes]", template.start(command, log))

    BrokerProcess._spawn = staticmethod(forked)  # type: ignore[method-assign]
    return template.close


def serve(connection: socket.socket) -> None:
    """Be the template: fork for each request, and report how each process has ended."""
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}
    """The pipe of a process and its id, by its pidfd."""
    while True:
        for ready in select.select([connection.fileno(), *running], [], [])[0]:
            if ready == connection.fileno():
                request, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST_BYTES, 4)
                if not request:
                    return
                pid = os.fork()
                if not pid:
                    connection.close()
                    for pidfd, (status, _) in running.items():
                        os.close(pidfd)
                        os.close(status)
                    _become(json.loads(request), descriptors)
                for descriptor in descriptors[:3]:
                    os.close(descriptor)
                running[os.pidfd_open(pid)] = descriptors[3], pid
                connection.send(str(pid).encode())
            else:
                status, pid = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(ready)
                with contextlib.suppress(BrokenPipeError):  # Its test is over.
                    os.write(status, str(code).encode())
                os.close(status)


def _become(request: Mapping[str, object], descriptors: Sequence[int]) -> NoReturn:
    """Run the command in this process, which was forked for it."""
    code = 1
    try:
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(str(request["cwd"]))
        os.environ.clear()
        os.environ.update(cast("dict[str, str]", request["environ"]))
        arguments = cast("list[str]", request["argv"])
        sys.argv, sys.orig_argv = [COMMAND[-1], *arguments], [*COMMAND, *arguments]
        runpy.run_module(COMMAND[-1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
