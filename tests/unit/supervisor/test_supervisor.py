"""Supervision, with small programs in the place of servers."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.polling import until

from martlet.supervisor import child as child_module
from martlet.supervisor.child import Child
from martlet.supervisor.supervisor import Supervisor

READY = """
import os, signal, socket
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # None is missed until it waits.
print("begins", flush=True)
def ready():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
def stay():
    signal.sigwait([signal.SIGTERM])
    print("ends", flush=True)
"""
STAYS = READY + "ready()\nstay()\n"
STUBBORN = READY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nready()\nsignal.pause()\n"
FALLS = READY + "ready()\nos.kill(os.getpid(), signal.SIGKILL)\n"
NEVER_READY = "import sys\nprint('no door', file=sys.stderr)\nsys.exit(3)\n"


class Stage:
    """Children, and the lines of them and their supervisor, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self._changed = asyncio.Event()

    def show(self, name: str, line: bytes) -> None:
        self.shown.append(f"{name} {line.decode()}")
        self._changed.set()

    async def until(self, line: str, times: int = 1) -> None:
        async with asyncio.timeout(50):
            while self.shown.count(line) < times:
                self._changed.clear()
                await self._changed.wait()

    def child(self, name: str, program: str, max_restarts: int = 0) -> Child:
        command = [sys.executable, "-I", "-S", "-c", program]
        return Child(name, command, self.show, self.folder, max_restarts)

    def supervisor(self, *groups: Sequence[Child], stop_timeout_s: float = 20) -> Supervisor:
        def ready() -> None:
            self.show("all", b"ready")

        return Supervisor(groups, stop_timeout_s, ready, lambda: self.show("all", b"stop"))

    @asynccontextmanager
    async def running(
        self, *groups: Sequence[Child], shown: str = "all ready", stop_timeout_s: float = 20
    ) -> AsyncIterator[Supervisor]:
        """Supervise children once that line is shown, and stop them."""
        supervisor = self.supervisor(*groups, stop_timeout_s=stop_timeout_s)
        running = asyncio.create_task(supervisor.run())
        await self.until(shown)
        yield supervisor
        supervisor.stop()
        await asyncio.wait_for(running, 50)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "FIRST_PAUSE_S", 0.001)


async def test_groups_start_in_order_and_stop_in_reverse(stage: Stage) -> None:
    last, first = stage.child("last", STAYS), stage.child("first", STAYS)
    async with stage.running([first], [last]):
        await stage.until("last begins")  # Its output is another way than its being ready.
        stage.shown.remove("all ready")
    assert stage.shown == [*("first begins", "last begins", "all stop", "last ends", "first ends")]
    assert list(stage.folder.iterdir()) == []


async def test_a_child_that_is_ready_while_it_starts_is_noticed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = asyncio.create_subprocess_exec
    one = stage.child("one", STAYS)

    async def begin_slowly(*command: str, **settings: Any) -> asyncio.subprocess.Process:
        process = await begin(*command, **settings)
        async with asyncio.timeout(50):
            await one.ready.wait()  # It says so before its supervisor has it in hand.
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", begin_slowly)
    async with stage.running([one]):
        pass


async def test_a_child_that_cannot_start_is_reported_and_ends_the_others(stage: Stage) -> None:
    supervisor = stage.supervisor([stage.child("one", STAYS)], [stage.child("two", NEVER_READY)])
    with pytest.raises(ChildProcessError, match=r"two cannot start.*with code 3: no door"):
        await supervisor.run()
    assert stage.shown[-1] == "one ends"
    assert "all ready" not in stage.shown


async def test_several_children_that_cannot_start_leave_no_unhandled_error(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    group = [stage.child("one", NEVER_READY), stage.child("two", READY + "stay()\n")]
    with pytest.raises(ChildProcessError, match="one cannot start"):
        await stage.supervisor(group).run()
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("command", "folder", "why"),
    [
        ("/nowhere/at/all", ".", r"it could not be.*No such file"),
        (sys.executable, "x" * 100, r"a socket .*TMPDIR"),
    ],
    ids=["missing program", "path too long for a socket"],
)
async def test_what_keeps_a_child_from_starting_is_reported(
    stage: Stage, tmp_path: Path, command: str, folder: str, why: str
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    child = Child("one", [command], stage.show, tmp_path / folder)
    with pytest.raises(ChildProcessError, match=f"one cannot start: {why}"):
        await stage.supervisor([child]).run()


@pytest.mark.usefixtures("quick")
async def test_a_child_that_dies_is_started_again(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    one = stage.child("one", STAYS)
    with caplog.at_level(logging.INFO):
        async with stage.running([one]):
            killed = 0
            for _ in range(2):
                killed = one.process_id
                one._signal(signal.SIGKILL)
                await stage.until("one begins", stage.shown.count("one begins") + 1)
                async with asyncio.timeout(50):
                    await one.ready.wait()
                assert one.process_id != killed
    assert f"(process {killed}) ended by SIGKILL; it is started again in 0.002 s" in caplog.text
    assert "one is ready again" in caplog.text


@pytest.mark.usefixtures("quick")
async def test_a_child_that_does_not_stay_up_is_given_up(stage: Stage) -> None:
    supervisor = stage.supervisor(
        [stage.child("one", STAYS)], [stage.child("two", FALLS, max_restarts=2)]
    )
    with pytest.raises(ChildProcessError, match=r"two was started again 2 times and does not"):
        await supervisor.run()
    assert stage.shown.count("two begins") == 3
    assert stage.shown[-1] == "one ends"


async def test_a_child_that_does_not_stop_is_killed_in_time(stage: Stage) -> None:
    async with stage.running([stage.child("one", STUBBORN)], stop_timeout_s=0.05):
        pass


async def test_a_second_stop_kills(stage: Stage) -> None:
    async with stage.running([stage.child("one", STUBBORN)]) as supervisor:
        supervisor.stop()
        await stage.until("all stop")


async def test_a_stop_before_all_is_ready(stage: Stage) -> None:
    slow = READY + "stay()\n"
    children = [stage.child("one", slow)], [stage.child("two", STAYS)]
    async with stage.running(*children, shown="one begins"):
        pass
    assert stage.shown[1] == "all stop"
    assert not any(line.startswith("two") for line in stage.shown)


async def test_a_pause_before_a_restart_ends_with_a_stop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_module, "FIRST_PAUSE_S", 1000)
    monkeypatch.setattr(child_module, "MAX_PAUSE_S", 1000)
    async with stage.running([stage.child("one", FALLS)]):
        await until(lambda: "started again in 1000 s" in caplog.text)
    assert stage.shown.count("one begins") == 1


async def test_an_endless_line_is_shown_in_pieces(stage: Stage) -> None:
    long = READY + "print('x' * 200_000 + chr(10) + 'y', end='', flush=True)\nready()\n"
    await asyncio.wait_for(
        asyncio.gather(
            stage.supervisor([child := stage.child("one", long, max_restarts=1)]).run(),
            return_exceptions=True,
        ),
        20,
    )
    assert not child.process_id
    lines = [line.removeprefix("one ") for line in stage.shown if line.startswith("one ")]
    assert "".join(lines).count("x") == 2 * 200_000
    assert max(map(len, lines)) <= 3 * 64 * 1024
    assert lines.count("y") == 2


async def test_nothing_is_left_unheard_where_several_cannot_start(stage: Stage) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    fails = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{NEVER_READY}"
    children = [stage.child(name, fails) for name in ("one", "two")]
    supervisor = stage.supervisor([*children, stage.child("three", STAYS)])
    with pytest.raises(ChildProcessError, match=r"cannot start"):
        await supervisor.run()
    del supervisor, children
    gc.collect()
    await asyncio.sleep(0)
    assert unheard == []


@pytest.mark.usefixtures("quick")
async def test_a_signal_without_a_name_is_one_too(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    one = stage.child("one", STAYS)
    number = signal.SIGRTMIN + 6
    async with stage.running([one]):
        os.kill(one.process_id, number)
        await stage.until("one begins", 2)
    assert f"ended by signal {number:d}; it is started again" in caplog.text
