"""The child: one server as a process, restarted when it ends; its log lines are forwarded.

::

    start -> not ready -- READY=1 --> ready -- stop --> ended
                 |                      |
                 ends                   ends, without a stop
                 |                      |
      the first time: an error        a pause, which doubles up to 30 s
      later: a pause, as beside         while none stays up; then start

It reports that it is ready as to systemd: by a datagram to a socket of its own, in a folder that
only this user can enter.

The supervisor signals a process only through the handle that waits for it, so the process id cannot
belong to another process yet.  Each child has a session of its own: the supervisor gets a Ctrl-C of
the terminal, and stops its children in order.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 30.0
STEADY_S = 10.0
"""A process that was ready for this long has stayed up."""
_MAX_LINE_BYTES = 64 * 1024
_LAST_WORDS_S = 1.0
"""How long to wait for the output of a process that has ended."""
_ADDRESS_FLAG = re.compile(r"--((?:tcp|http)-address)\b")


class Child:
    """One server as a process.

    Args:
        name: the label of its log lines.
        command: the program with its arguments; it must report to ``NOTIFY_SOCKET`` when ready.
        show: called with the name and each line of output, without the newline.
        folder: where its socket is made.
        max_restarts: maximum restarts in a row; 0 for no limit.
        flag_prefix: the beginning of its address flags in the command that runs it. The server's
            errors name its own flags, which the user has not given.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        show: Callable[[str, bytes], None],
        folder: Path,
        max_restarts: int = 0,
        flag_prefix: str = "",
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()
        """Set while the process is ready."""
        self._command = command
        self._show = show
        self._address = folder / name
        self._max_restarts = max_restarts
        self._flag_prefix = flag_prefix
        self._process: asyncio.subprocess.Process | None = None
        self._lives = False
        """Whether datagrams count: a quick process is ready before its start has returned."""
        self._stopping = asyncio.Event()
        self._ready_since_s: float | None = None
        self._has_been_ready = False
        self._last_line = b""

    @property
    def process_id(self) -> int:
        """The id of its process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def run(self) -> None:
        """Keep the server running until ``stop``. Raises ChildProcessError: it ended before it was
        ready for the first time, or too often.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.setblocking(False)
            self._bind(notify)
            loop = asyncio.get_running_loop()
            loop.add_reader(notify, self._receive, notify)
            try:
                await self._keep_running()
            finally:
                loop.remove_reader(notify)
                self._address.unlink(missing_ok=True)

    def _bind(self, notify: socket.socket) -> None:
        try:
            notify.bind(str(self._address))
        except OSError as error:
            raise ChildProcessError(
                f"{self.name} cannot start: a socket cannot be made at {self._address}: {error};"
                " have TMPDIR name a folder with a short path where one can"
            ) from error

    def stop(self) -> None:
        """Ask it to end, and do not restart it."""
        self._stopping.set()
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it, and do not restart it."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _keep_running(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            ended = await self._live()
            if self._stopping.is_set():
                break
            if not self._has_been_ready:
                raise ChildProcessError(f"{self.name} cannot start: it {ended}{self._last_words()}")
            failures = 1 if self._stayed_up() else failures + 1
            if 0 < self._max_restarts < failures:
                raise ChildProcessError(
                    f"{self.name} was started again {self._max_restarts} times and does not stay"
                    f" up (--max-restarts): it {ended}{self._last_words()}"
                )
            pause_s = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 30), MAX_PAUSE_S)
            log.error("%s %s; it is started again in %g s", self.name, ended, pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _live(self) -> str:
        """Run the process once; return how it ended, for the log."""
        self._ready_since_s = None
        self._last_line = b""
        self._lives = True
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
                env={**os.environ, "NOTIFY_SOCKET": str(self._address)},
            )
        except OSError as error:  # no memory, too many processes: that may pass
            self._lives = False
            return f"could not be started: {error}"
        self._process = process
        if self._stopping.is_set():  # while it was being started
            self._signal(signal.SIGTERM)
        log.info("%s is process %d", self.name, process.pid)
        assert process.stdout is not None
        passing_on = asyncio.create_task(self._pass_on(process.stdout))
        try:
            code = await process.wait()
            await asyncio.wait([passing_on], timeout=_LAST_WORDS_S)
        finally:
            passing_on.cancel()
            self._lives = False
            self.ready.clear()
            self._process = None
        return f"(process {process.pid}) ended {_how(code)}"

    async def _pass_on(self, output: asyncio.StreamReader) -> None:
        rest = b""
        while data := await output.read(_MAX_LINE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                lines.append(rest)
                rest = b""
            for line in lines:
                self._pass_on_line(line)
        if rest:
            self._pass_on_line(rest)

    def _pass_on_line(self, line: bytes) -> None:
        self._last_line = line
        self._show(self.name, line)

    def _receive(self, notify: socket.socket) -> None:
        with suppress(BlockingIOError):
            lines = notify.recv(4096).split(b"\n")
            if b"READY=1" in lines and self._lives:
                self._ready_since_s = time.monotonic()
                if self._has_been_ready:
                    log.info("%s is ready again", self.name)
                self._has_been_ready = True
                self.ready.set()

    def _stayed_up(self) -> bool:
        since_s = self._ready_since_s
        return since_s is not None and time.monotonic() - since_s >= STEADY_S

    def _last_words(self) -> str:
        text = self._last_line.decode(errors="replace").strip()
        text = _ADDRESS_FLAG.sub(rf"--{self._flag_prefix}\1", text)
        return f": {text}" if text else ""

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


def _how(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"with code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:  # Of the signals for one's own use not all have names.
        return f"by signal {-code}"
