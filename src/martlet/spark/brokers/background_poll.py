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

from martlet.spark.brokers.endpoint import BrokerUnreachable, Endpoint

T = TypeVar("T")
_CLOSE_S = 1.0
_SIGNAL_S = 1.0
"""The longest single wait for an answer. Python runs the handler of a signal in the main thread
only, and one that arrives just before that thread begins to wait does not wake it.
"""


class BackgroundPoll(Generic[T]):
    """The polling of one endpoint.

    Args:
        endpoint: where to ask; nothing else may use it.
        ask: send the request; its second argument is whether to retry until the endpoint's timeout.
            Raises BrokerUnreachable.

    Attributes:
        latest: the latest answer; None before the first.
        silent_since_s: when it stopped answering, by `time.monotonic`; None while it answers.
        trouble: why it does not answer.
    """

    def __init__(self, endpoint: Endpoint, ask: Callable[[Endpoint, bool], T]) -> None:
        self.endpoint = endpoint
        self.latest: T | None = None
        self.silent_since_s: float | None = None
        self.trouble = ""
        self._ask = ask
        self._lock = threading.Lock()
        self._request: Future[T] | None = None
        self._is_patient = False

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer the last request."""
        return self.silent_since_s is not None

    def begin(self, pool: ThreadPoolExecutor, *, patient: bool) -> None:
        """Send the request, unless one is under way.

        Args:
            patient: retry until the endpoint's timeout, in place of one try.
        """
        if self._request is None or (patient and not self._is_patient):
            self.endpoint.is_given_up = False
            self._request = pool.submit(self._ask_locked, patient)
            self._is_patient = patient

    def _ask_locked(self, patient: bool) -> T:
        with self._lock:
            return self._ask(self.endpoint, patient)

    def end(self, wait_s: float | None) -> None:
        """Take the answer if it comes within a time; None waits for it.

        Raises:
            BrokerUnreachable: a patient request has timed out.
            Exception: any other that `ask` raised.
        """
        assert self._request is not None
        try:
            while wait_s is None and not wait([self._request], _SIGNAL_S).done:
                pass
            self.latest = self._request.result(wait_s)
        except NotYetAnswered:
            self._mark_silent("it has not answered yet")
            return
        except BrokerUnreachable as error:
            self._mark_silent(str(error))
            if self._is_patient:
                self._request = None
                raise
        except BaseException:
            self._request = None
            raise
        else:
            self.silent_since_s = None
        self._request = None

    @property
    def request(self) -> Future[T] | None:
        """The request under way."""
        return self._request

    def give_up(self) -> None:
        """Let the request under way be the last try of a patient one."""
        self.endpoint.is_given_up = True
        self._is_patient = False

    def close(self) -> None:
        """Close the connection, and let a request under way be the last.

        A request that is still not over after 1 s keeps its connection: the process would wait for
        its thread anyway.
        """
        self.endpoint.is_given_up = True
        if self._lock.acquire(timeout=_CLOSE_S):
            self.endpoint.close()
            self._lock.release()
        self._request = None

    def _mark_silent(self, trouble: str) -> None:
        self.trouble = trouble
        if self.silent_since_s is None:
            self.silent_since_s = time.monotonic()
