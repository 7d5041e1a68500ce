"""Runs the blocks of a page one after the other, as a reader would who tries everything."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from tests.docs.page import ROOT, Block, Page
from tests.interop.nsqd_process import NO_NSQD, NSQD

from martlet.cli.main import main
from martlet.testing import BrokerProcess
from martlet.testing.ports import free_port

_ADDRESS = re.compile(r"(?<=127\.0\.0\.1:)(4[12]\d\d)\b|(?<=localhost:)(4[12]\d\d)\b")
_USES_BROKER = re.compile(r"127\.0\.0\.1:41\d\d|martlet_broker")
_FOR_JAVA = re.compile(r'(checkpointLocation", |\.start\(|from_archive=)"([^"/]+)"')
_NSQD = re.compile(r"[$(] ?nsqd -")
_OTHER_LANGUAGE = re.compile(r"^\$ (node|go) ", re.MULTILINE)
_ALONE = re.compile(r"martlet (pipeline |[^|<>$;&]*$)")
"""A command that needs no shell; of jobs only their SQL has such signs."""
_SERVER = re.compile(r"(?:\./run|martlet) (broker|up|lookup|admin)\b")

_MASKS = [
    (re.compile(r"\b\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d+\b"), "TIME"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "DATE"),
    (re.compile(r"hour=\d\d\b"), "hour=HH"),
    (re.compile(r"DATE \d\d:00\b"), "HOUR"),
    (re.compile(r"\b[0-9a-f]{12,32}\b"), "ID"),
    (re.compile(r"\b[0-9a-f]{8}-\d-"), "ID-"),
    (re.compile(r"\b\d[\d,.]* a second\b"), "RATE"),
    (re.compile(r"<=\S+"), "BOUND"),
    (re.compile(r"[+-]?\b\d[\d,]*(\.\d+)? ?(ns|us|ms|s|m|h|d)\b"), "DURATION"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "PORT"),
    (re.compile(r"\b(python |martlet v?)\d+\.\d+\.\d+\S*"), r"\1VERSION"),
    (re.compile(r"[─━═-]{2,}"), "--"),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r"[- |]*\+?[- |]*$", re.MULTILINE), ""),
]


def masked(text: str) -> str:
    """The text without what differs from run to run: ids, times, ports, widths of columns."""
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    return text.strip()


def matches(shown: str, printed: str) -> bool:
    """Whether a text is what a page shows, where ``...`` stands for anything."""
    parts = [re.escape(part) for part in masked(shown).split("...")]
    return re.fullmatch(".*?".join(parts), masked(printed), re.DOTALL) is not None


class Runner:
    """Runs a page's blocks in a folder of their own, beside a broker of their own.

    Ports from 4100 to 4299 of this machine are replaced by free ones.  A page that starts its own
    servers gets no broker before.
    """

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._fixtures: dict[str, Any] = {"tmp_path": folder}
        self._ports: dict[str, str] = {}
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._servers: list[subprocess.Popen[bytes]] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if NSQD is None and _NSQD.search(self._page.text):
            pytest.skip(NO_NSQD)
        for program in set(_OTHER_LANGUAGE.findall(self._page.text)):
            if shutil.which(program) is None:
                pytest.skip(f"there is no {program} here")
        self._loop = self._stack.enter_context(asyncio.Runner())
        self._stack.enter_context(contextlib.chdir(self._folder))
        environment = self._stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("MARTLET_CONFIG", str(self._folder / "config.toml"))
        (self._folder / "bin").mkdir()
        for path, command in (
            ("run", f"{sys.executable} -m martlet"),
            ("bin/martlet", f"{sys.executable} -m martlet"),
            ("bin/python", sys.executable),
            ("bin/nsqd", NSQD or "false"),
            ("bin/curl", f"{shutil.which('curl')} --silent --show-error"),
        ):
            script = self._folder / path
            script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            script.chmod(0o755)
        starts = any(
            _SERVER.search(line)
            for block in self._page.blocks
            if block.language == "console" and not block.not_run
            for line in block.text.splitlines()
        )
        if not starts and _USES_BROKER.search(self._page.text):
            broker = BrokerProcess()
            broker.tcp_address = self._local("127.0.0.1:4150")
            broker.http_address = self._local("127.0.0.1:4151")
            self._stack.enter_context(broker)
            self._fixtures["martlet_broker"] = broker
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            if server.poll() is None:
                server.terminate()
        for server in self._servers:
            server.wait(20)
        self._stack.close()

    def _local(self, text: str) -> str:
        """The text with free ports in the place of the usual ones."""

        def port(match: re.Match[str]) -> str:
            return self._ports.setdefault(match[0], str(free_port()))

        return _ADDRESS.sub(port, text)

    def run(self, block: Block) -> None:
        """Run one block and compare what it prints with what the page shows."""
        if block.not_run:
            return
        if block.file:
            (self._folder / block.file).write_text(self._local(block.text))
        elif block.language == "python":
            self._python(block)
        elif block.language == "console":
            self._console(block)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "json":
            json.loads(block.text)

    def _python(self, block: Block) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self._execute(block)
        if block.output is not None:
            assert matches(block.output, printed.getvalue()), (
                f"{block.where}: it prints\n{printed.getvalue()}"
            )

    def _execute(self, block: Block) -> None:
        """Run a program, or lines with ``await`` as ``python -m asyncio`` takes them."""
        before = set(self._names)
        code = compile(
            "\n" * block.line + self._in_folder(self._local(block.text)),
            str(block.page.relative_to(ROOT)),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        )
        if code.co_flags & inspect.CO_COROUTINE:
            self._loop.run(self._await(code))
        else:
            exec(code, self._names)
        for name in self._names.keys() - before:
            if name.startswith("test_"):
                test = self._names[name]
                wanted = inspect.signature(test).parameters
                self._loop.run(test(*(self._fixtures[each] for each in wanted)))

    def _in_folder(self, code: str) -> str:
        """Return the code with absolute paths for Java, whose current folder cannot be changed."""
        return _FOR_JAVA.sub(rf'\1"{self._folder}/\2"', code)

    async def _await(self, code: Any) -> None:
        await eval(code, self._names)

    def _console(self, block: Block) -> None:
        text = block.text.replace("\\\n", "\\\f")
        for index, part in enumerate(re.split(r"^\s*\$ ", text, flags=re.MULTILINE)):
            command, _, shown = part.replace("\\\f", "\\\n").partition("\n")
            while command.endswith("\\"):
                more, _, shown = shown.partition("\n")
                command = f"{command[:-1]} {more.strip()}"
            if index:
                self._command(block, self._local(command), shown)

    def _command(self, block: Block, command: str, shown: str) -> None:
        server = _SERVER.search(command)
        if server is not None and "--help" not in command:
            self._serve(command, server[1])
            return
        if _ALONE.match(command):
            code, printed = self._in_process(command)
        else:
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            code, printed = done.returncode, done.stdout + done.stderr
        fails = shown.rstrip().splitlines()[-1:] == [f"exit {code}"]
        if fails:
            printed += f"exit {code}\n"
        assert not shown or matches(shown, printed), (
            f"{block.where}: {command}\nprints (exit code {code})\n{printed}"
        )
        assert code == 0 or fails, f"{block.where}: {command}\nexit code {code}\n{printed}"

    def _environment(self) -> dict[str, str]:
        path = f"{self._folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        source = str(ROOT / "src")
        return {**os.environ, "PATH": path, "PYTHONPATH": source, "COLUMNS": "120"}

    def _in_process(self, command: str) -> tuple[int, str]:
        """Run a command here: it starts sooner, and jobs share the Spark session of the tests."""
        code: int | str | None
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as printed,
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
        ):
            try:
                code = main(shlex.split(command)[1:])
            except SystemExit as ended:
                code = ended.code
            printed.seek(0)
            return int(code or 0), printed.read()

    def _serve(self, command: str, kind: str) -> None:
        """Start a server, and wait until it serves."""
        for flag, port in _PORTS[kind].items():
            if f"--{flag}=" not in command:
                address = self._local(f"127.0.0.1:{port}")
                head, dashes, tail = command.partition(" -- ")
                command = f"{head} --{flag}={address}{dashes}{tail}"
        command = command.removesuffix("&")
        log = (self._folder / f"server-{len(self._servers)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._servers.append(process)
        (address,) = re.findall(r"--http-address=(\S+)", command)
        deadline_s = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/ping"):
                return
            time.sleep(0.05)
        raise AssertionError(f"{command} does not serve:\n{Path(log.name).read_text()}")


_PORTS = {
    "broker": {"tcp-address": 4150, "http-address": 4151},
    "lookup": {"tcp-address": 4160, "http-address": 4161},
    "admin": {"http-address": 4171},
    "up": {
        "tcp-address": 4150,
        "http-address": 4151,
        "lookup-tcp-address": 4160,
        "lookup-http-address": 4161,
        "admin-http-address": 4171,
    },
}
"""The ports on which a server listens by default."""
