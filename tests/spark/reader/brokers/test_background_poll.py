"""What a poll of a broker does while it waits."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from martlet.reader.brokers.background_poll import BackgroundPoll
from martlet.reader.brokers.endpoint import Endpoint


class Ended(BaseException):
    """Raised by the handler of a signal, as by that of a job."""


def is_waiting(thread: int) -> bool:
    """Whether a thread is in a wait of `BackgroundPoll.end`."""
    frame: FrameType | None = sys._current_frames()[thread]
    assert frame is not None
    if frame.f_code.co_name != "wait":
        return False
    while frame is not None and frame.f_code is not BackgroundPoll.end.__code__:
        frame = frame.f_back
    return frame is not None


def test_a_signal_that_wakes_nobody_ends_a_wait_all_the_same() -> None:
    """It arrived as the main thread began to wait, and a job that had been told to end, and was
    out of reach of its broker, went on for as long as `--timeout` says.
    """
    may_answer = threading.Event()
    answers: list[bool] = []

    def ask(_endpoint: Endpoint, _patient: bool) -> None:
        answers.append(may_answer.wait(60))

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    main = threading.get_ident()

    def send() -> None:
        blocked_count = 0
        while blocked_count < 10:
            time.sleep(0.01)  # So that the main thread goes on, if it can.
            blocked_count = blocked_count + 1 if is_waiting(main) else 0
        # To another thread than the one that waits: so nothing interrupts its wait.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    poll = BackgroundPoll(Endpoint("127.0.0.1:1", 1), ask)
    before = signal.signal(signal.SIGUSR1, end)
    sender = threading.Thread(target=send)
    try:
        with ThreadPoolExecutor() as pool:
            poll.begin(pool, patient=True)
            sender.start()
            with pytest.raises(Ended):
                poll.end(None)
            assert not answers
            may_answer.set()
    finally:
        may_answer.set()
        signal.signal(signal.SIGUSR1, before)
        sender.join()
