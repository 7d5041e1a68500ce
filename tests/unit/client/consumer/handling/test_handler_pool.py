"""Handlers in threads and in processes: heartbeats go on, whatever a handler does."""

import asyncio
import contextvars
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from tests.polling import until
from tests.unit.client.consumer.consuming import NEVER, consuming
from tests.unit.client.process_handlers import obey
from tests.unit.client.scripted_broker import ScriptedBroker, message_frame

from martlet.client import Message, MessageView, Requeue
from martlet.client.consumer.handling.handler_pool import HandlerPool


def deliver(broker: ScriptedBroker, number: int, body: str) -> None:
    broker.peers[-1].send(message_frame(body.encode(), number=number, attempts=3, stamp=9))


async def test_threads_block_without_holding_up_heartbeats_or_each_other() -> None:
    variable = contextvars.ContextVar[str]("variable")
    variable.set("outside")
    go = threading.Event()
    seen: list[MessageView] = []
    at_work: set[int] = set()

    def handle(message: MessageView) -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert variable.get() == "outside"
        at_work.add(int(message.body))
        assert go.wait(10)
        seen.append(message)
        if message.body == b"3":
            raise Requeue(55)
        if message.body == b"4":
            raise ValueError("bad")
        if message.body == b"5":
            raise SystemExit(1)
        return "ignored"

    async with consuming(run=handle, on="threads", concurrency=2, failure_backoff=NEVER) as (
        broker,
        _,
    ):
        for number in range(6):
            deliver(broker, number, str(number))
        await until(lambda: len(at_work) == 2)
        broker.peers[0].answer(b"_heartbeat_")
        await broker.until(lambda: broker.nops == 1)
        assert at_work == {0, 1}, "no more than there are threads"
        go.set()
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 6)
        assert sorted(broker.answered("FIN")) == [0, 1, 2]
        assert sorted(broker.answered("REQ")) == [3, 4, 5]
        delays = {command.words[1][-1]: command.words[2] for command in broker.named("REQ")}
        assert delays["3"] == "55"
    assert MessageView(b"%016x" % 0, 9, 3, b"0") in seen


async def test_a_thread_that_does_not_end_holds_up_no_closing() -> None:
    go = threading.Event()
    async with consuming(
        run=lambda _message: go.wait(20), on="threads", close_timeout_s=0.4, failure_backoff=NEVER
    ) as (broker, consumer):
        deliver(broker, 1, "")
        await until(lambda: not consumer.stats.waiting and consumer.counts.received == 1)
    assert broker.answered("REQ") == [1]
    go.set()


async def test_processes_survive_failures_of_their_handlers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with consuming(run=obey, on="processes", close_timeout_s=1, failure_backoff=NEVER) as (
        broker,
        _,
    ):
        # Messages behind the one that dies are handled by a new process.
        first, second = f"pid {tmp_path / 'one'}", f"pid {tmp_path / 'two'}"
        for number, body in enumerate((first, "odd", "later", "exit", "die", second)):
            deliver(broker, number, body)
        broker.peers[0].answer(b"_heartbeat_")
        await broker.until(lambda: broker.nops == 1)
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 6)
        assert broker.answered("FIN") == [0, 5]
        assert broker.answered("REQ") == [1, 2, 3, 4]
        assert broker.named("REQ")[1].words[2] == "77"
        pids = {int((tmp_path / name).read_text()) for name in ("one", "two")}
        assert len(pids | {os.getpid()}) == 3
        deliver(broker, 7, f"sleep {tmp_path / 'three'}")
        await until((tmp_path / "three").exists)
    assert broker.answered("REQ")[-1] == 7
    pid = int((tmp_path / "three").read_text())
    await until(lambda: not is_running(pid))
    assert "Odd: odd" in caplog.text
    assert "a process that handled messages has ended" in caplog.text


async def test_only_the_message_that_ends_its_process_has_failed() -> None:
    async with consuming(
        run=obey, on="processes", concurrency=4, close_timeout_s=1, failure_backoff=NEVER
    ) as (broker, _):
        for number in range(12):
            deliver(broker, number, "die" if number == 5 else "nap")
        await broker.until(lambda: len(broker.named("FIN", "REQ")) == 12)
        assert broker.answered("REQ") == [5]
        assert sorted(broker.answered("FIN")) == [n for n in range(12) if n != 5]


async def test_a_process_that_ended_while_idle_charges_no_message(tmp_path: Path) -> None:
    pool = HandlerPool(obey, "processes", 1)
    try:
        await pool(Message(None, 9, 1, b"1" * 16, f"pid {tmp_path / 'one'}".encode()))
        os.kill(int((tmp_path / "one").read_text()), signal.SIGKILL)
        await until(lambda: bool(getattr(pool._executor, "_broken")))  # noqa: B009
        await pool(Message(None, 9, 1, b"2" * 16, f"pid {tmp_path / 'two'}".encode()))
        assert (tmp_path / "two").exists()
    finally:
        pool.close()


BEGINS_A_PROCESS = """
import os, sys, time
from pathlib import Path
from martlet.client.consumer.handling.handler_pool import HandlerPool

pool = HandlerPool(print, "processes", 1)
Path(sys.argv[1]).write_text(f"{pool._executor.submit(os.getpid).result()}.")
time.sleep(60)
"""


async def test_processes_end_with_a_consumer_that_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    consumer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BEGINS_A_PROCESS, str(pid_file)
    )
    try:
        await until(lambda: pid_file.exists() and pid_file.read_text().endswith("."))
    finally:
        consumer.kill()
        await consumer.wait()
    pid = int(pid_file.read_text()[:-1])
    await until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False


async def test_handlers_that_cannot_run_there_are_refused() -> None:
    async def coroutine(_message: object) -> None:
        pass

    async with consuming() as (_, consumer):
        with pytest.raises(ValueError, match="run on the event loop"):
            await consumer.run(coroutine, on="threads")
        with pytest.raises(ValueError, match="at the top of a module"):
            await consumer.run(lambda _message: None, on="processes")
