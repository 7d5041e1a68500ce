"""A broker as a process of its own, that can be killed at any moment and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Self

from martlet.testing.ports import free_port

START_TIMEOUT_S = 60.0
"""The default of how long a broker may take until it listens: it may have much to recover."""
STOP_S = 10.0


class BrokerProcess:
    """A ``martlet broker`` process on ports that stay the same over restarts.

    ::

        with BrokerProcess() as broker:
            ...
            broker.kill()
            broker.restart()

    It keeps history however full the machine's disk is, unless ``--disk-force-percent`` is given.

    Attributes:
        tcp_address: where NSQ clients connect, as ``host:port``.
        http_address: where HTTP is served, as ``host:port``.
        https_address: where HTTPS is, if the arguments name a certificate.
    """

    def __init__(
        self,
        data_dir: str | Path | None = None,
        *arguments: str,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Take the settings; the process starts with ``with`` or ``start``.

        Args:
            data_dir: where to keep the data.
            arguments: more of ``martlet broker``, such as ``--msg-timeout=2s``.
            start_timeout_s: how long each start may take until the broker listens.
        """
        self._data_dir = data_dir
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        self.tcp_address = f"127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self.https_address = f"127.0.0.1:{free_port()}"
        self._arguments = arguments
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def data_path(self) -> Path:
        """Its data folder: a temporary one if none was given, which goes when it is closed."""
        if self._data_dir is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix="martlet-")
            self._data_dir = self._own_folder.name
        return Path(self._data_dir)

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The id of the running process.

        Raises:
            RuntimeError: it is not running.
        """
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def command(self) -> list[str]:
        """The arguments of the process."""
        return [
            *(sys.executable, "-m", "martlet", "broker"),
            f"--tcp-address={self.tcp_address}",
            f"--http-address={self.http_address}",
            f"--https-address={self.https_address}",
            f"--data-path={self.data_path}",
            "--disk-force-percent=0",
            *self._arguments,
        ]

    def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            RuntimeError: it runs already, or it ended, or does not listen; the text has its log.
        """
        if self._process is not None:
            raise RuntimeError("the broker is running already")
        self.data_path.mkdir(parents=True, exist_ok=True)
        if self._log is None:
            self._log = tempfile.TemporaryFile(prefix="martlet-log-")  # noqa: SIM115, see close
        self._process = self._spawn(self.command, self._log)
        deadline_s = time.monotonic() + self._start_timeout_s
        while not self._listens():
            code = self._process.poll()
            if code is not None:
                self._process = None
                raise RuntimeError(f"the broker ended with code {code}:\n{self.log()}")
            if time.monotonic() > deadline_s:
                self.kill()
                raise RuntimeError(
                    f"the broker did not listen in start_timeout_s={self._start_timeout_s:g}:\n"
                    f"{self.log()}"
                )
            time.sleep(0.01)

    @staticmethod
    def _spawn(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> int:
        """End the process as an operator does (SIGTERM), and return its exit code.

        Raises:
            RuntimeError: it did not end; it is killed then.
        """
        process = self._taken()
        process.terminate()
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the broker did not stop in {STOP_S:g} s:\n{self.log()}") from None

    def kill(self) -> None:
        """End the process at once, as a crash does (SIGKILL)."""
        process = self._taken()
        process.kill()
        process.wait()

    def restart(self) -> None:
        """Start again on the same ports and folder, after a clean stop if it still runs."""
        if self._process is not None:
            self.stop()
        self.start()

    def log(self) -> str:
        """Return the output of the processes so far."""
        if self._log is None:
            return ""
        descriptor = self._log.fileno()
        # Not read(): that would move the place at which the process writes.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """End the process if it runs, and remove the folder if it was a temporary one."""
        try:
            if self._process is not None:
                self.stop()
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None
            if self._own_folder is not None:
                self._own_folder.cleanup()

    def _taken(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("the broker is not running")
        return process

    def _listens(self) -> bool:
        """Whether it serves: it has its ports before it knows that it has its folder."""
        try:
            self._connect(self.tcp_address).close()
            with self._connect(self.http_address) as http:
                http.sendall(b"GET /ping HTTP/1.0\r\n\r\n")
                return http.recv(5) == b"HTTP/"
        except OSError:
            return False

    @staticmethod
    def _connect(address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=1)
