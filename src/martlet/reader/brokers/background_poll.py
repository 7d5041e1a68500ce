"""Poll a broker or a lookup daemon repeatedly; keep its latest answer and since when it is silent.

Several are polled at once, each in a thread of its own, so that a silent one does not hold up the
others: its request goes on in the background, and its answer counts when it comes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYetAnswered
from typing import Generic, TypeVar

from martlet.reader.brokers.endpoint import BrokerUnreachable, Endpoint

T = TypeVar("T")
_CLOSE_S = 1.0
_SIGNAL_S = 1.0
"""The longest single wait for an answer. Python runs the handler of a signal in the main thread
only, and one that arrives just before that thread begins to wait does not wake it.
"""


class BackgroundPoll(Generic[T]):
    """The polling of one endpoint, which nothing else may use.

    Args:
        ask: send the request; its second argument is whether to retry until the endpoint's timeout.
    """

    def __init__(self, endpoint: Endpoint, ask: Callable[[Endpoint, bool], T]) -> None:
        self.endpoint = endpoint
        self.latest: T | None = None
        """The latest answer; None before the first."""
        self.silent_since_s: float | None = None
        """When it stopped answering, by `time.monotonic`; None while it answers."""
        self.trouble = ""
        self._ask = ask
        self._lock = threading.Lock()
        self.request: Future[T] | None = None
        self._is_patient = False

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer the last request."""
        return self.silent_since_s is not None

    def begin(self, pool: ThreadPoolExecutor, *, patient: bool) -> None:
        """Send the request, unless one is under way; if patient, retry until the timeout."""
        if self.request is None or (patient and not self._is_patient):
            self.endpoint.is_given_up = False
            self.request = pool.submit(self._ask_locked, patient)
            self._is_patient = patient

    def _ask_locked(self, patient: bool) -> T:
        with self._lock:
            return self._ask(self.endpoint, patient)

    def end(self, wait_s: float | None) -> None:
        """Take the answer if it comes within a time; None waits for it. Raises what `ask` raised;
        of BrokerUnreachable, only that of a patient request.
        """
        request, self.request = self.request, None
        assert request is not None
        try:
            while wait_s is None and not wait([request], _SIGNAL_S).done:
                pass
            self.latest = request.result(wait_s)
        except NotYetAnswered:
            self.request = request  # It goes on.
            self._mark_silent("it has not answered yet")
        except BrokerUnreachable as error:
            self._mark_silent(str(error))
            if self._is_patient:
                raise
        else:
            self.silent_since_s = None

    def give_up(self) -> None:
        """Let the request under way be the last try of a patient one."""
        self.endpoint.is_given_up = True
        self._is_patient = False

    def close(self) -> None:
        """Close the connection, and let a request under way be the last. One that is not over after
        1 s keeps its connection: the process would wait for its thread anyway.
        """
        self.endpoint.is_given_up = True
        if self._lock.acquire(timeout=_CLOSE_S):
            self.endpoint.close()
            self._lock.release()
        self.request = None

    def _mark_silent(self, trouble: str) -> None:
        self.trouble = trouble
        if self.silent_since_s is None:
            self.silent_since_s = time.monotonic()
