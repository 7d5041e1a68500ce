"""Other brokers as processes, on free ports and temporary folders.

A program is looked for on PATH and where Debian's packages put it; one that is missing is skipped,
and the report says so.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from martlet.testing.ports import free_port

START_S = 60.0
STOP_S = 20.0
_PATH = os.pathsep.join(("/usr/lib/rabbitmq/bin", os.environ.get("PATH", ""), "/usr/sbin"))
"""RabbitMQ's own folder comes first: Debian's script on PATH runs it as another user."""


class Missing(Exception):
    """A broker cannot be run here; the text says why."""


@dataclass(frozen=True)
class Kind:
    """A broker to compare with.

    Attributes:
        name: in the report.
        protocol: its protocol's name.
        sync: whether it flushes to disk before it answers.
        program: what is run.
        arguments: of it; ``{port}`` and ``{folder}`` are filled in.
        package: Debian's.
        version: the arguments that print its version.
        environment: the same for variables.
    """

    name: str
    protocol: str
    sync: bool
    program: str
    arguments: Sequence[str]
    package: str
    version: Sequence[str] = ("--version",)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where the program is. Raises Missing."""
        path = shutil.which(self.program, path=_PATH)
        if path is None:
            raise Missing(f"there is no {self.program} (package: {self.package})")
        return path


_REDIS = (
    *("--bind", "127.0.0.1", "--port", "{port}", "--dir", "{folder}"),
    *("--save", "", "--appendonly", "yes", "--appendfsync"),
)
_BEANSTALK = ("-l", "127.0.0.1", "-p", "{port}", "-b", "{folder}")
_NATS = ("-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", "{folder}")
_RABBIT = {
    "RABBITMQ_NODENAME": "bench{port}@localhost",
    "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
    "RABBITMQ_NODE_PORT": "{port}",
    "RABBITMQ_DIST_PORT": "{port2}",
    "RABBITMQ_MNESIA_BASE": "{folder}/mnesia",
    "RABBITMQ_LOG_BASE": "{folder}/log",
    "RABBITMQ_CONFIG_FILE": "{folder}/none",
    "RABBITMQ_ENABLED_PLUGINS_FILE": "{folder}/plugins",
    "ERL_EPMD_ADDRESS": "127.0.0.1",
    "ERL_EPMD_PORT": "{port3}",
    "RABBITMQ_FEATURE_FLAGS_FILE": "{folder}/feature_flags",
    "HOME": "{folder}",
}
KINDS = (
    Kind("Redis streams", "redis", False, "redis-server", (*_REDIS, "everysec"), "redis-server"),
    Kind("JetStream", "nats", False, "nats-server", _NATS, "nats-server"),
    Kind("beanstalkd", "beanstalk", False, "beanstalkd", _BEANSTALK, "beanstalkd", ("-v",)),
    Kind(
        "RabbitMQ, classic queue",
        "amqp",
        False,
        "rabbitmq-server",
        (),
        "rabbitmq-server",
        (),
        _RABBIT,
    ),
    Kind("Redis streams", "redis", True, "redis-server", (*_REDIS, "always"), "redis-server"),
    Kind(
        "beanstalkd",
        "beanstalk",
        True,
        "beanstalkd",
        (*_BEANSTALK, "-f", "0"),
        "beanstalkd",
        ("-v",),
    ),
    Kind(
        "RabbitMQ, quorum queue",
        "amqp-quorum",
        True,
        "rabbitmq-server",
        (),
        "rabbitmq-server",
        (),
        _RABBIT,
    ),
)
"""With ``--appendfsync everysec``, ``-f 50`` (the default of beanstalkd) and JetStream's files, an
answer says what Martlet's says by default: that the operating system has the message."""


class Daemon:
    """A running broker.

    Raises:
        Missing: the program is not here, or does not start.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.path = kind.path
        self.port = free_port()
        self._ports = {"port": self.port, "port2": free_port(), "port3": free_port()}

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="martlet-bench-")
        folder = Path(self._folder.name)
        (folder / "data").mkdir()
        (folder / "data" / "plugins").write_text("[].\n")
        filled = {**self._ports, "folder": str(folder / "data")}
        command = [self.path, *(each.format(**filled) for each in self.kind.arguments)]
        environment = {name: text.format(**filled) for name, text in self.kind.environment.items()}
        self._log = (folder / "log").open("wb+")
        self._environment = {**os.environ, "PATH": _PATH, **environment}
        self._process = subprocess.Popen(
            command,
            env=self._environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        gives_up_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                code = self._process.poll()
                if code is None and time.monotonic() < gives_up_s:
                    time.sleep(0.05)
                    continue
            self._log.seek(0)
            text = self._log.read().decode("utf-8", "replace").strip()
            last = text.splitlines()[-1:]
            raise Missing(f"{self.kind.program} did not start: {''.join(last)[:200]}")

    def __exit__(self, *_error: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        epmd = shutil.which("epmd") if "ERL_EPMD_PORT" in self._environment else None
        if epmd:  # RabbitMQ leaves its port mapper running.
            subprocess.run([epmd, "-kill"], env=self._environment, capture_output=True, check=False)
        self._log.close()
        self._folder.cleanup()

    def version(self) -> str:
        """The version that the program tells, as far as it does."""
        text = ""
        if self.kind.version:
            command = [self.path, *self.kind.version]
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        else:
            self._log.seek(0)
            text = self._log.read().decode("utf-8", "replace")
        found = re.search(r"(?:RabbitMQ |v=|v|\b)(\d+\.\d+(\.\d+)?)", text)
        return found[1] if found else ""


def nsqd(http_port: int, *flags: str) -> Kind:
    """An nsqd, whose HTTP is at a port."""
    arguments = (
        *("-tcp-address=127.0.0.1:{port}", f"-http-address=127.0.0.1:{http_port}"),
        *("-data-path={folder}", "-log-level=error", *flags),
    )
    return Kind("nsqd", "nsq", False, "nsqd", arguments, "none: .ci/nsqd builds it", ("-version",))
