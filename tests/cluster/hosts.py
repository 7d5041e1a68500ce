"""Hosts: network namespaces joined by a bridge, or loopback addresses where those cannot be had.

::

    namespace of the drill            namespace of a host
    bridge 10.77.0.254 --- veth ----- 10.77.0.N, one server or client
            |
            +-- without its veth: the host is cut off without a notice
            '-- the veth, or eth0, drops all that it sends: the host is cut off in one direction

The drill has a namespace of its own too (`enter`), so nothing is changed on the machine, and all of
it goes when the drill ends, however it ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TypeVar

_INSIDE = "MARTLET_DRILL_NAMESPACE"
_END_S = 20.0
AnswerT = TypeVar("AnswerT")


def unshare() -> list[str] | None:
    """The command that runs another one in a network of its own; None where that is not allowed."""
    if any(shutil.which(name) is None for name in ("unshare", "nsenter", "ip", "tc")):
        return None
    command = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    tried = subprocess.run(
        [*command, "ip", "link", "add", "name", "b", "type", "bridge"],
        capture_output=True,
        check=False,
    )
    return command if tried.returncode == 0 else None


def enter() -> bool:
    """Go on in a network of one's own; whether that could be had."""
    if os.environ.get(_INSIDE):
        return True
    command = unshare()
    if command is not None:
        os.environ[_INSIDE] = "1"
        os.execvp(command[0], [*command, *sys.orig_argv])
    return False


class Host:
    """One machine with one program on it.

    Attributes:
        name: what it is called.
        address: where others reach it.
        can_be_cut: whether it can be cut off from others, while its program goes on.
    """

    can_be_cut = False

    def __init__(self, name: str, address: str, log: IO[bytes]) -> None:
        self.name = name
        self.address = address
        self._log = log
        self._command: Sequence[str] = ()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, *command: str) -> None:
        """Start its program."""
        self._command = command
        self._process = subprocess.Popen(
            [*self.prefix(), *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def run_again(self) -> None:
        """Start its program as before."""
        self.run(*self._command)

    def kill(self) -> None:
        """End its program at once."""
        self._send(signal.SIGKILL)
        self.running.wait()

    def stop(self) -> None:
        """Have its program do nothing for a while."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Have it go on."""
        self._send(signal.SIGCONT)

    def end(self) -> int:
        """End its program well."""
        self._send(signal.SIGTERM)
        return self.running.wait(_END_S)

    def leave(self) -> None:
        """Be of no use to others without a notice: here, its program stands still."""
        self.stop()

    def come_back(self) -> None:
        """Be of use again."""
        self.go_on()

    def close(self) -> None:
        """End whatever still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def running(self) -> subprocess.Popen[bytes]:
        """Its process."""
        assert self._process is not None
        return self._process

    def _send(self, number: signal.Signals) -> None:
        assert self.running.poll() is None, f"{self.name} has ended by itself"
        self.running.send_signal(number)

    def prefix(self) -> list[str]:
        """The beginning of a command that is to run on it."""
        return []


class Namespace(Host):
    """A host in a network namespace of its own."""

    can_be_cut = True

    def __init__(self, name: str, number: int, log: IO[bytes]) -> None:
        super().__init__(name, f"10.77.0.{number}", log)
        self._link = f"veth{number}"
        # It lives as long as this, and this as long as the drill keeps the other end open.
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; read end"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        inner = str(self._holder.pid)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", inner)
        _ip("link", "set", self._link, "master", "bridge0", "up")
        here = self.prefix()
        _ip("link", "set", "lo", "up", inside=here)
        _ip("address", "add", f"{self.address}/24", "dev", "eth0", inside=here)
        _ip("link", "set", "eth0", "up", inside=here)

    def leave(self) -> None:
        """Take its cable out of the switch: no packet passes, and no connection ends."""
        _ip("link", "set", self._link, "nomaster")

    def come_back(self) -> None:
        """Put it in again."""
        _ip("link", "set", self._link, "master", "bridge0")

    def lose_incoming(self) -> None:
        """Drop each packet to it; those of it arrive."""
        _drop(self._link)

    def keep_incoming(self) -> None:
        """Let packets to it arrive again."""
        _drop_no_more(self._link)

    def lose_outgoing(self) -> None:
        """Drop each packet of it; those to it arrive."""
        _drop("eth0", inside=self.prefix())

    def keep_outgoing(self) -> None:
        """Let packets of it arrive again."""
        _drop_no_more("eth0", inside=self.prefix())

    def close(self) -> None:
        """End whatever still runs, and the namespace."""
        super().close()
        self._holder.communicate()

    def prefix(self) -> list[str]:
        """The beginning of a command that is to run on it."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]


class Network:
    """Makes hosts.

    Args:
        folder: where their logs go.
        namespaces: whether `enter` could.
    """

    def __init__(self, folder: Path, *, namespaces: bool) -> None:
        self._folder = folder
        self._namespaces = namespaces
        self.hosts: list[Host] = []
        self._logs: list[IO[bytes]] = []
        if namespaces:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "bridge0", "type", "bridge")
            _ip("address", "add", "10.77.0.254/24", "dev", "bridge0")
            _ip("link", "set", "bridge0", "up")

    def make(self, name: str) -> Host:
        """One more host."""
        self._logs.append(log := open(self._folder / f"{name}.log", "wb"))  # noqa: SIM115
        number = len(self.hosts) + 1
        host = (
            Namespace(name, number, log)
            if self._namespaces
            else Host(name, f"127.0.1.{number}", log)
        )
        self.hosts.append(host)
        return host

    def close(self) -> None:
        """End all of them."""
        for host in self.hosts:
            host.close()
        for log in self._logs:
            log.close()


def _ip(*arguments: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "ip", *arguments], check=True)


def _drop(device: str, inside: Sequence[str] = ()) -> None:
    """Drop what a device is to send, without an error for the sender."""
    _tc("add", "dev", device, "root", "blackhole", inside=inside)


def _drop_no_more(device: str, inside: Sequence[str] = ()) -> None:
    _tc("del", "dev", device, "root", inside=inside)


def _tc(*arguments: str, inside: Sequence[str] = ()) -> None:
    subprocess.run([*inside, "tc", "qdisc", *arguments], check=True)


def until(ask_once: Callable[[], AnswerT], name: str, seconds: float = 60) -> AnswerT:
    """Ask until the answer is yes, as other processes have to get there; return the answer."""
    deadline_s = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if answer := ask_once():
                return answer
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{name}: not within {seconds:g} s")
        time.sleep(0.01)
